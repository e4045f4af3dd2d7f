"""`pliant run`: one machine's agent in the foreground, with a coordinator of its own unless there is one already.

What to do with workers is decided by `pliant.core.supervisor`; here it is observed and done. Everything comes through
one inbox, and one thread acts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, assert_never

from pliant.agent.coordinator import child
from pliant.agent.coordinator.child import Keeper
from pliant.agent.coordinator.event_follower import Screen, Story
from pliant.agent.coordinator.link import Dialogue
from pliant.agent.exit_status import SIGNALLED, Ends, conclude
from pliant.agent.job_dir import RUNNER, Folder
from pliant.agent.notices import Notice, Notices
from pliant.agent.process.client import Processes
from pliant.agent.process.ports import are_free, free_ports
from pliant.agent.setup import (
    SETUP_S,
    Elsewhere,
    Plan,
    address_of,
    agent_id,
    check_place,
    clock_off,
    environment,
    home_of,
    introduce,
    linger,
    open_job,
    surroundings,
    worker_token,
)
from pliant.agent.workers import Workers
from pliant.client import Client
from pliant.core import supervisor as v
from pliant.core.job.launches import FENCED_CODE, describe_exit, is_own_failure
from pliant.core.messages import AgentReady, Cancel
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.credentials import read_token
from pliant.errors import PliantError
from pliant.wire.api import Use

if TYPE_CHECKING:
    from types import FrameType

LOOKERS_S = 10.0  # how long a command may look at a job before we may start
GOODBYE_S = 10.0
MARGIN_S = 1.0  # a worker that leaves at the very end of its grace period is not killed on its way out
REMIND_S = 15.0  # while the job waits, its reason is said so often


@dataclass(frozen=True, slots=True)
class _Stop:
    """Somebody wants this to end: a signal's number."""

    number: int


@dataclass(frozen=True, slots=True)
class _Verdict:
    """A worker ended, and it is known by now whether it had joined. None: that could not be learned."""

    member: MemberId
    code: int
    joined: bool | None


@dataclass(frozen=True, slots=True)
class _Broken:
    """The warden is gone, and all workers with it."""


class Agent:
    """Make one and `run` it, in the main thread. `program` is the command line that `pliant` itself is started with."""

    def __init__(self, plan: Plan, home: Path, screen: Screen, program: Sequence[str], place: Elsewhere | None) -> None:
        self._plan = plan
        self._screen = screen
        self._program = program
        self._place = place
        self._folder = Folder(home / "jobs" / plan.job)
        self._inbox: SimpleQueue[v.Signal | _Stop | _Verdict | _Broken] = SimpleQueue()
        self._ends = Ends()
        self._dismissed: set[MemberId] = set()
        self._keeper: Keeper | None = None
        self._uses: tuple[Use, ...] = ()
        self._ports: tuple[int, ...] = ()  # offered, and not used yet
        self._done = False
        self._late = False  # the time that workers have after the end of a job that did not finish is running
        self._said_at = time.monotonic()

    def run(self) -> int:
        """Until the job has ended or somebody stops it; the exit status. Nothing is left behind."""
        self._folder.make()
        with (
            self._folder.lock(RUNNER, LOOKERS_S),
            Processes(self._process_ended, self._broken, self._look) as self._processes,
        ):
            place = self._place or self._own_coordinator()
            with Client(place.urls, read_token(place.token_file), patience_s=SETUP_S) as client:
                try:
                    return self._live(client, place)
                finally:
                    if self._keeper is not None:
                        linger(place, self._plan.job)
                        self._keeper.stop()
                        self._folder.forget_endpoint()

    def _own_coordinator(self) -> Elsewhere:
        self._keeper = Keeper(self._processes, self._folder, self._program, self, self._plan.listen)
        self._keeper.start()
        return Elsewhere((self._keeper.url,), self._folder.token)

    def _live(self, client: Client, place: Elsewhere) -> int:
        about = client.about()
        if off := clock_off(about.now):
            self._screen.say(off)
        check_place(client, self._plan, self._folder)
        found = open_job(client, self._plan, own=self._keeper is not None)
        # A revision stands in the names of this life's workers: if an earlier life's ever joined, it was a lower one.
        self._state = v.Supervisor(
            id=agent_id(),
            run_id=str(found.revision),
            capacity=self._plan.capacity,
            address=address_of(self._plan, place),
            install_id=home_of(self._folder),
            stop_s=self._plan.shutdown_s,
        )
        token_file = worker_token(client, self._plan.job, self._folder, place, about.scope)
        env = environment(self._plan, self._folder, place, token_file, self._state.id)
        self._workers = Workers(self._plan, self._folder, self._processes, self._screen, self._state.id)
        self._workers.open(env, surroundings(self._plan, self._folder))
        self._story = Story(self._screen, found.revision, found.state, found.why)
        job, ttl_s = self._plan.job, about.lease_ttl_s
        self._dialogue = Dialogue(client, job, self._state.id, self._story, self._inbox.put, ttl_s, lambda: self._uses)
        self._screen.say(f"{job} is {found.state.value}: {found.why}")
        heeded = [number for number in self._plan.signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        handlers = {number: signal.signal(number, self._signalled) for number in heeded}
        watch = Notices(self._plan.notices, self._noticed, self._screen.say)
        try:
            introduce(client, job, v.agent_join(self._state), ttl_s, self._screen.say, self._wait_for_stop)
            watch.start()
            self._dialogue.start(self._screen.say)
            self._look()
            while not self._done:
                self._take(self._inbox.get())
            self._dialogue.close(GOODBYE_S)
            first = self._workers.first_failure
            return conclude(job, self._story, self._ends, first, self._screen.say, own=self._keeper is not None)
        finally:
            watch.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _wait_for_stop(self, limit_s: float) -> bool:
        """Whether somebody wants this to end before it has begun."""
        try:
            self._inbox.put(self._inbox.get(timeout=limit_s))
        except Empty:
            return False
        return True

    def say(self, text: str) -> None:
        """For the keeper of the coordinator, as `ready` is."""
        self._screen.say(text)

    def ready(self, url: str, pid: int) -> None:
        self._folder.write_endpoint(url, pid)

    # ----------------------------------------------------------------------------------- what is observed

    def _process_ended(self, name: str, code: int) -> None:
        if name == child.NAME:
            assert self._keeper is not None  # it started it
            self._keeper.ended(code)
            return
        member = MemberId(name)
        if self._is_launched(member):
            if code <= 0:
                self._inbox.put(v.WorkerEnded(member, code))
            else:  # what it wrote last is about to be read
                threading.Thread(target=self._listened, args=(member, code), daemon=True).start()
        elif member in self._story.joined:
            self._inbox.put(v.WorkerEnded(member, code))
        else:
            self._dialogue.do(lambda: self._inbox.put(self._judged(member, code)))

    def _is_launched(self, member: MemberId) -> bool:
        order = self._state.order
        return order is not None and not order.live and member in self._state.begun_seats

    def _listened(self, member: MemberId, code: int) -> None:
        self._inbox.put(v.WorkerEnded(member, code, self._workers.ended(member, code)))

    def _judged(self, member: MemberId, code: int) -> _Verdict:
        knows = self._dialogue.catch_up()
        joined = member in self._story.joined
        return _Verdict(member, code, joined if joined or knows else None)

    def _noticed(self, notice: Notice) -> None:
        grace_s = self._plan.grace_s if notice.grace_s is None else min(notice.grace_s, self._plan.grace_s)
        self._screen.say(f"{notice.why}: draining within {grace_s:g} s")
        self._inbox.put(v.MachineGoing(grace_s, notice.why))

    def _look(self) -> None:
        self._inbox.put(v.Recheck())

    def _broken(self) -> None:
        self._inbox.put(_Broken())

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if self._done:
            os._exit(SIGNALLED + number)  # all that is left are goodbyes; the warden ends whoever is there still
        self._inbox.put(_Stop(number))

    # ----------------------------------------------------------------------------------------- what is done

    def _take(self, given: v.Signal | _Stop | _Verdict | _Broken) -> None:
        match given:
            case _Stop():
                self._stop(given.number)
            case _Verdict():
                self._ended_early(given)
            case _Broken():
                raise PliantError("The process that keeps the workers was killed, and took them with it. Run it again.")
            case v.WorkerEnded():
                self._ends.early = 0
                self._feed(given)
            case v.Recheck():
                self._uses = self._workers.look()
                self._feed(given)
                self._end_the_lost()
                self._end_the_stuck()
                self._remind()
            case _:
                self._feed(given)

    def _feed(self, given: v.Signal) -> None:
        if isinstance(given, v.WorkerEnded):
            self._note(given.member, given.code)
            self._workers.forget(given.member)
        live = self._state.order is None or self._state.order.live
        self._state, actions = v.supervise(self._state, given, time.monotonic())
        for action in actions:
            self._act(action)
        pause_s = self._state.not_before - time.monotonic()
        if pause_s > 0 and isinstance(given, v.WorkerEnded):
            self._after(pause_s, v.Recheck())
        if not live or not self._state.ended:
            return  # who was launched is stopped by the supervisor
        if self._story.state is JobState.FINISHED:
            self._dismiss()
        elif not self._late and self._story_ended_badly():
            self._late = True
            self._after(self._plan.grace_s + MARGIN_S, v.GraceExpired())

    def _dismiss(self) -> None:
        """After a finished job nobody needs a worker that has not joined yet: it is importing, most likely."""
        for member in self._state.workers - self._story.joined - self._dismissed:
            self._dismissed.add(member)
            self._processes.terminate(member)

    def _end_the_lost(self) -> None:
        """Lost is final (rule 11). A worker that is not counted on leaves by itself, unless it is frozen."""
        for member in self._state.workers & self._story.lost.keys():
            if time.monotonic() - self._story.lost[member] > self._plan.grace_s:
                self._screen.say(f"{member} is lost to the job and has not ended by itself: killing it")
                self._processes.kill(member)

    def _end_the_stuck(self) -> None:
        """Launched workers that all hang are started again; live ones have a watch of their own."""
        order = self._state.order
        if order is None or order.live or order.launch is None:
            return
        done = order.launch.done
        elsewhere = [s for s in order.launch.seats if s.agent != self._state.id and s.member not in done]
        why = self._workers.stuck(all_here=not elsewhere)
        if not why:
            return
        self._screen.say(f"{why}: killing them")
        for member in self._state.workers:
            self._processes.kill(member)

    def _act(self, action: v.Action) -> None:
        match action:
            case v.Start(member):
                self._workers.start(member, self._state.draining | self._state.stopping)
            case v.StartSeat(launch, member):
                self._ports = ()
                self._workers.start_seat(launch, member)
            case v.Offer(generation):
                if self._is_in_no_hurry() and self._workers.is_warming():
                    return  # we look again when it is done
                self._dialogue.say(AgentReady(self._state.id, generation, self._free_ports()))
            case v.Terminate(member, grace_s):
                self._processes.terminate(member)
                self._after(grace_s + MARGIN_S, v.StopOverdue(member))
            case v.Kill(member):
                self._processes.kill(member)
            case v.SendCommand(command):
                self._dialogue.say(command)
            case v.Finish():
                self._done = True
            case _:
                assert_never(action)

    def _free_ports(self) -> tuple[int, ...]:
        """The same as long as they are free: what is said twice must be known to be the same."""
        if not self._ports or not are_free(self._ports):
            self._ports = free_ports(self._plan.capacity)
        return self._ports

    def _is_in_no_hurry(self) -> bool:
        """Whether others train already, and would be stopped for us: they must not wait for our imports."""
        order = self._state.order
        return order is not None and order.launch is not None and not order.launch.over

    def _after(self, pause_s: float, given: v.Signal) -> None:
        timer = threading.Timer(pause_s, self._inbox.put, (given,))
        timer.daemon = True
        timer.start()

    def _story_ended_badly(self) -> bool:
        """Whether workers have nothing more to do. After a finished job a script may go on as long as it likes."""
        return self._dialogue.catch_up() and self._story.state is not JobState.FINISHED

    # ------------------------------------------------------------------------------------------- how it ends

    def _stop(self, number: int) -> None:
        """First: drain within the grace period. Second: now. Third: without a word."""
        name = signal.Signals(number).name
        if self._ends.hurried:
            os._exit(SIGNALLED + number)
        if self._ends.signalled:
            self._ends.hurried = True
            self._screen.say(f"{name} again: ending now")
            self._feed(v.GraceExpired())
            return
        self._ends.signalled = number
        why = f"{name} to pliant run"
        self._screen.say(f"{name}: draining within {self._plan.grace_s:g} s; again to end now")
        self._going(why, at_once=number == signal.SIGINT)  # a person waits; whoever sends SIGTERM counts on the time

    def _going(self, why: str, *, at_once: bool = False) -> None:
        self._feed(v.MachineGoing(self._plan.grace_s, why, at_once))

    def _ended_early(self, verdict: _Verdict) -> None:
        """A worker that never joined is unknown to the coordinator: whether to try again is for us to say."""
        own_end = verdict.code == 0 or is_own_failure(verdict.code)
        asked = self._state.leaving or verdict.member in self._state.stopping
        if verdict.joined is False and own_end and not self._story.state.ended and not asked:
            self._ends.early += 1
            how = describe_exit(verdict.code)
            if verdict.code == 0:
                self._give_up(
                    f"{verdict.member} ended with {how} and had never joined the job: "
                    "a script for live training calls pliant.join(); for one that does not say --mode relaunch --fresh"
                )
            elif self._ends.early > self._plan.spec.max_restarts:
                self._give_up(
                    f"{self._ends.early} workers in a row ended before they joined, {verdict.member} with {how}; "
                    f"what it wrote is in {self._plan.logs.path(self._folder.logs, verdict.member)}"
                )
        self._feed(v.WorkerEnded(verdict.member, verdict.code))

    def _give_up(self, why: str) -> None:
        self._ends.gave_up = why
        self._dialogue.say(Cancel(why))
        self._going(why)

    def _note(self, member: MemberId, code: int) -> None:
        if member in self._dismissed or self._is_launched(member):
            return
        if code > 0:
            self._workers.ended(member, code)
        if self._state.ended and code not in (0, FENCED_CODE):
            self._ends.after.append(f"{member} ended with {describe_exit(code)}")
        elif code != 0 and member not in self._story.joined:  # else the coordinator says it
            self._screen.say(f"{member} ended with {describe_exit(code)} before it had joined")

    def _remind(self) -> None:
        """While nothing is trained, say why, now and then."""
        now, story = time.monotonic(), self._story
        if story.state is JobState.RUNNING or story.state.ended:
            self._said_at = now
        elif now - self._said_at >= REMIND_S:
            self._said_at = now
            running = f"{len(self._state.workers)} of {self._state.wanted} workers run here"
            self._screen.say(f"{self._plan.job} is {story.state.value} still: {story.why}; {running}")
