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
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, assert_never

from pliant.agent import keeper
from pliant.agent.dialogue import Dialogue
from pliant.agent.folder import RUNNER, Folder
from pliant.agent.keeper import Keeper
from pliant.agent.opening import SETUP_S, Elsewhere, Plan, agent_id, environment, open_job, worker_token
from pliant.agent.output import Sink
from pliant.agent.processes import Processes
from pliant.agent.story import Screen, Story
from pliant.client import Client
from pliant.core import supervisor as v
from pliant.core.job import FENCED_CODE
from pliant.core.messages import Cancel
from pliant.core.model import JobState, MemberId
from pliant.credentials import read_token
from pliant.errors import PliantError

if TYPE_CHECKING:
    from types import FrameType

LOOKERS_S = 10.0  # how long a command may look at a job before we may start
GOODBYE_S = 10.0
MARGIN_S = 1.0  # a worker that leaves at the very end of its grace period is not killed on its way out
REMIND_S = 15.0  # while the job waits, its reason is said so often
SIGNALLED = 128  # a shell adds the signal's number to it


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


@dataclass(slots=True)
class _Ends:
    """What decides over the exit status, besides how the job ended."""

    signalled: int = 0
    hurried: bool = False  # a second signal came
    early: int = 0  # workers in a row that ended before they had joined
    after: list[str] = field(default_factory=list)  # workers that failed after the job's end


class Agent:
    """Make one and `run` it, in the main thread. `program` is the command line that `pliant` itself is started with."""

    def __init__(self, plan: Plan, home: Path, screen: Screen, program: Sequence[str], place: Elsewhere | None) -> None:
        self._plan = plan
        self._screen = screen
        self._program = program
        self._place = place
        self._folder = Folder(home / "jobs" / plan.job)
        self._inbox: SimpleQueue[v.Signal | _Stop | _Verdict | _Broken] = SimpleQueue()
        self._ends = _Ends()
        self._seats: dict[MemberId, int] = {}
        self._dismissed: set[MemberId] = set()
        self._keeper: Keeper | None = None
        self._done = False
        self._late = False  # the time that workers have after the end of a job that did not finish is running
        self._said_at = time.monotonic()

    def run(self) -> int:
        """Until the job has ended or somebody stops it; the exit status. Nothing is left behind."""
        self._folder.make()
        with self._folder.lock(RUNNER, LOOKERS_S), Processes(self._process_ended, self._broken) as self._processes:
            place = self._place or self._own_coordinator()
            with Client(place.urls, read_token(place.token_file), patience_s=SETUP_S) as client:
                try:
                    return self._live(client, place)
                finally:
                    if self._keeper is not None:
                        self._keeper.stop()
                        self._folder.forget_endpoint()

    def _own_coordinator(self) -> Elsewhere:
        self._keeper = Keeper(self._processes, self._folder, self._program, self)
        self._keeper.start()
        return Elsewhere((self._keeper.url,), self._folder.token)

    def _live(self, client: Client, place: Elsewhere) -> int:
        about = client.about()
        found = open_job(client, self._plan, self._folder)
        # A revision stands in the names of this life's workers: if an earlier life's ever joined, it was a lower one.
        self._state = v.Supervisor(agent_id(), str(found.revision), self._plan.size_max)
        token_file = worker_token(client, self._plan.job, self._folder, place, about.scope)
        self._env = environment(self._plan, self._folder, place, token_file, self._state.id)
        self._story = Story(self._screen, found.revision, found.state, found.why)
        self._dialogue = Dialogue(
            client, self._plan.job, self._state.id, self._story, self._inbox.put, about.lease_ttl_s
        )
        self._screen.say(f"{self._plan.job} is {found.state.value}: {found.why}")
        handlers = {number: signal.signal(number, self._signalled) for number in _STOPS}
        try:
            self._dialogue.start(self._screen.say)
            self._inbox.put(v.LookAgain())
            while not self._done:
                self._take(self._inbox.get())
            self._dialogue.close(GOODBYE_S)
            return self._conclude()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def say(self, text: str) -> None:
        """For the keeper of the coordinator, as `ready` is."""
        self._screen.say(text)

    def ready(self, url: str, pid: int) -> None:
        self._folder.write_endpoint(url, pid)

    # ----------------------------------------------------------------------------------- what is observed

    def _process_ended(self, name: str, code: int) -> None:
        if name == keeper.NAME:
            assert self._keeper is not None  # it started it
            self._keeper.ended(code)
            return
        member = MemberId(name)
        if member in self._story.joined:
            self._inbox.put(v.Ended(member, code))
        else:
            self._dialogue.do(lambda: self._inbox.put(self._judged(member, code)))

    def _judged(self, member: MemberId, code: int) -> _Verdict:
        knows = self._dialogue.catch_up()
        joined = member in self._story.joined
        return _Verdict(member, code, joined if joined or knows else None)

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
            case v.Ended():
                self._ends.early = 0
                self._feed(given)
            case v.LookAgain():
                self._feed(given)
                self._end_the_lost()
                self._remind()
            case _:
                self._feed(given)

    def _feed(self, given: v.Signal) -> None:
        if isinstance(given, v.Ended):
            self._note(given.member, given.code)
        self._state, actions = v.supervise(self._state, given, time.monotonic())
        for action in actions:
            self._act(action)
        pause_s = self._state.not_before - time.monotonic()
        if pause_s > 0 and isinstance(given, v.Ended):
            self._after(pause_s, v.LookAgain())
        if self._state.ended and self._story.state is JobState.FINISHED:
            self._dismiss()
        if self._state.ended and not self._late and self._story_ended_badly():
            self._late = True
            self._after(self._plan.grace_s + MARGIN_S, v.TooLate())

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

    def _act(self, action: v.Action) -> None:
        match action:
            case v.Start(member):
                show = _Shown(self._screen, member)
                sink = Sink(self._folder.logs / f"{member}.log", show.line, self._screen.say)
                env = {**self._env, "PLIANT_MEMBER": member, "LOCAL_RANK": str(self._take_seat(member))}
                self._processes.start(member, self._plan.worker, env, sink)
            case v.Terminate(member):
                self._processes.terminate(member)
            case v.Kill(member):
                self._processes.kill(member)
            case v.Say(command):
                self._dialogue.say(command)
            case v.Finish():
                self._done = True
            case _:
                assert_never(action)

    def _take_seat(self, member: MemberId) -> int:
        """The lowest number that no running worker has: which of the machine's devices is its own."""
        self._seats = {each: seat for each, seat in self._seats.items() if each in self._state.workers}
        taken = set(self._seats.values())
        self._seats[member] = next(seat for seat in count() if seat not in taken)
        return self._seats[member]

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
            self._feed(v.TooLate())
            return
        self._ends.signalled = number
        why = f"{name} to pliant run"
        self._screen.say(f"{name}: draining within {self._plan.grace_s:g} s; again to end now")
        self._going(why)

    def _going(self, why: str) -> None:
        self._after(self._plan.grace_s + MARGIN_S, v.TooLate())
        self._feed(v.MachineGoing(self._plan.grace_s, why))

    def _ended_early(self, verdict: _Verdict) -> None:
        """A worker that never joined is unknown to the coordinator: whether to try again is for us to say."""
        own_end = verdict.code == 0 or _failed_by_itself(verdict.code)
        if verdict.joined is False and own_end and not self._story.state.ended and not self._state.leaving:
            self._ends.early += 1
            how = _how(verdict.code)
            if verdict.code == 0:
                self._give_up(
                    f"{verdict.member} ended with {how} and had never joined the job: "
                    "a script for live training calls pliant.join()"
                )
            elif self._ends.early > self._plan.max_restarts:
                self._give_up(
                    f"{self._ends.early} workers in a row ended before they joined, {verdict.member} with {how}; "
                    f"what it wrote is in {self._folder.logs / verdict.member}.log"
                )
        self._feed(v.Ended(verdict.member, verdict.code))

    def _give_up(self, why: str) -> None:
        self._dialogue.say(Cancel(why))
        self._going(why)

    def _note(self, member: MemberId, code: int) -> None:
        if member in self._dismissed:
            return
        if self._state.ended and code not in (0, FENCED_CODE):
            self._ends.after.append(f"{member} ended with {_how(code)}")
        elif code != 0 and member not in self._story.joined:  # else the coordinator says it
            self._screen.say(f"{member} ended with {_how(code)} before it had joined")

    def _remind(self) -> None:
        """While nothing is trained, say why, now and then."""
        now, story = time.monotonic(), self._story
        if story.state is JobState.RUNNING or story.state.ended:
            self._said_at = now
        elif now - self._said_at >= REMIND_S:
            self._said_at = now
            running = f"{len(self._state.workers)} of {self._state.wanted} workers run here"
            self._screen.say(f"{self._plan.job} is {story.state.value} still: {story.why}; {running}")

    def _conclude(self) -> int:
        job, story = self._plan.job, self._story
        if story.state is JobState.FINISHED and not self._ends.after:
            return 0  # also if somebody wanted it to end: it did not have to
        if self._ends.signalled:
            if not story.state.ended:
                self._screen.say(f"{job} is {story.state.value}: {story.why}; the same command goes on with it")
            return SIGNALLED + self._ends.signalled
        if story.state is not JobState.FINISHED:
            raise PliantError(f"{job} is {story.state.value}: {story.why}")
        raise PliantError(f"{job} is finished, but after it: {'; '.join(self._ends.after)}.")


_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The way of a worker's lines to the screen."""

    screen: Screen
    member: MemberId

    def line(self, line: bytes) -> None:
        self.screen.worker(self.member, line)


def _failed_by_itself(code: int) -> bool:
    """Whether trying again is likely to end the same way: not if it was killed, or fenced."""
    return (code > 0 and code != FENCED_CODE) or -code in _CRASHES


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
