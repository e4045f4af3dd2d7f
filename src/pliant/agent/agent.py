"""`pliant run`: one machine's agent in the foreground, with a coordinator of its own unless there is one already.

`pliant.core.supervisor` decides what happens to workers. This module feeds it with what it observes, through one inbox,
and carries out its actions in one thread.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, assert_never

from pliant import settings
from pliant.agent.closing import Progress, describe_away, describe_closing, describe_closing_away, describe_wait
from pliant.agent.coordinator import child
from pliant.agent.coordinator.child import CoordinatorChild
from pliant.agent.coordinator.link import CoordinatorLink
from pliant.agent.exit_status import SIGNALLED, StopSignals, exit_status
from pliant.agent.job_dir import RUNNER, JobDir
from pliant.agent.last_command import write_last_command
from pliant.agent.notices import Notice, Notices
from pliant.agent.output import RunOutput
from pliant.agent.plan import RunPlan
from pliant.agent.process.client import Processes
from pliant.agent.process.ports import are_free, free_ports
from pliant.agent.resume import check_script, describe_resume
from pliant.agent.setup import (
    SETUP_S,
    OpenedJob,
    agent_address,
    agent_id,
    announce_join,
    check_checkpoint_dir,
    checkpoint_dir,
    describe_clock_skew,
    describe_opening,
    install_id,
    metrics_token,
    open_job,
    register_agent,
    wait_for_other_agents,
    worker_environment,
    worker_settings,
    worker_token,
)
from pliant.agent.workers import Workers
from pliant.client import Client
from pliant.core.job.launches import describe_exit
from pliant.core.messages import AgentDraining, AgentReady, Event
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.supervisor import Supervisor, agent_join, is_live, next_deadline, supervise
from pliant.core.supervisor import signals as v
from pliant.core.supervisor.state import MARGIN_S
from pliant.credentials import CoordinatorAddress, read_token
from pliant.errors import PliantError
from pliant.wire.api import WorkerUsage

if TYPE_CHECKING:
    from types import FrameType

LOOKERS_S = 10.0  # how long another command may hold the job's lock before this one starts
GOODBYE_S = 10.0
AWAY_FIRST_S = 15.0  # an absent coordinator is reported after this time
AWAY_AGAIN_S = 60.0  # and then again so often
REMIND_FIRST_S = 5.0  # the reason is shown when the job has waited so long
REMIND_S = 15.0  # and then again so often
STOPS_S = 0.5  # how often the agent looks for workers that are stopped (SIGSTOP)


@dataclass(frozen=True, slots=True)
class _StopRequested:
    """A signal from the user, by its number, and when it came."""

    number: int
    at: float


@dataclass(frozen=True, slots=True)
class _SpawnerDied:
    """The process that starts workers ended, and all workers with it."""


_Input = v.Signal | _StopRequested | _SpawnerDied


class AgentProcess:
    """Call `run` in the main thread. `program` is the command line that starts `pliant` itself."""

    def __init__(
        self, plan: RunPlan, home: Path, output: RunOutput, program: Sequence[str], place: CoordinatorAddress | None
    ) -> None:
        self._plan = plan
        self._output = output
        self._program = program
        self._place = place
        self._folder = JobDir(home / "jobs" / plan.job)
        self._inbox: SimpleQueue[_Input] = SimpleQueue()
        self._stops = StopSignals()
        self._coordinator: CoordinatorChild | None = None
        self._uses: tuple[WorkerUsage, ...] = ()
        self._ports: tuple[int, ...] = ()  # offered, and not used yet
        self._done = False
        self._wake_at: float | None = None
        self._stops_looked_at = 0.0
        self._began_at = self._reminded_at = time.monotonic()
        self._reminders = 0
        self._away_told_at: float | None = None
        self._asked_to_leave = ""  # the reason, once it was

    def run(self) -> int:
        """Run until the job has ended or the user stops it, and return the exit status. No process is left behind."""
        self._folder.make()
        with (
            self._folder.lock(RUNNER, LOOKERS_S),
            Processes(self._process_ended, self._spawner_died, self._recheck) as self._processes,
        ):
            check_script(self._plan, self._folder)
            place = self._place or self._own_coordinator()
            self._url = place.urls[0]
            if self._place is not None:
                announce_join(place, self._output)
            token = read_token(place.token_file)
            with Client(place.urls, token, patience_s=SETUP_S, tls=place.tls) as client:
                try:
                    return self._run_job(client, place)
                finally:
                    if self._coordinator is not None:
                        wait_for_other_agents(place, self._plan.job)
                        self._coordinator.stop()
                        self._folder.forget_endpoint()

    @property
    def finished(self) -> bool:
        """True if the job was finished when `run` returned. An agent that left a job has the same exit status."""
        return self._link.state is JobState.FINISHED

    def _own_coordinator(self) -> CoordinatorAddress:
        plan = self._plan
        where = (plan.listen, plan.tls, plan.store)
        self._coordinator = child.in_job_dir(self._processes, self._folder, self._program, self, *where)
        self._coordinator.start()
        return CoordinatorAddress((self._coordinator.url,), self._folder.token, plan.tls)

    def _run_job(self, client: Client, place: CoordinatorAddress) -> int:
        about = client.about()
        if off := describe_clock_skew(about.now):
            self._output.warn(off)
        check_checkpoint_dir(client, self._plan, self._folder)
        opened = open_job(client, self._plan, own=self._coordinator is not None)
        self._announce_resume(opened)
        found, saved = opened.now.job, opened.now.checkpoint
        self._progress = Progress(found.step, found.total_steps, None if saved is None else saved.lineage.step)
        self._plan = replace(self._plan, spec=opened.now.spec)
        self._state = self._first_state(opened, place)
        token_file = worker_token(client, self._plan.job, self._folder, place, about.scope)
        self._announce_metrics(client, place)
        env = worker_environment(self._plan, self._folder, place, token_file, self._state.id, found.generation)
        self._workers = Workers(self._plan, self._folder, self._processes, self._output, self._state.id)
        self._workers.open(env, worker_settings(self._plan, self._folder))
        job, ttl_s = self._plan.job, about.lease_ttl_s
        self._link = CoordinatorLink(
            client, found, self._state.id, self._inbox.put, self._show_event, ttl_s, lambda: self._uses
        )
        self._output.say(describe_opening(found, self._plan.logs.log_dir or self._folder.logs))
        heeded = [number for number in self._plan.signals if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
        handlers = {number: signal.signal(number, self._signalled) for number in heeded}
        watch = Notices(self._plan.notices, self._on_notice, self._output.warn)
        try:
            register_agent(client, job, agent_join(self._state), ttl_s, self._output.warn, self._wait_for_stop)
            watch.start()
            self._link.start(self._output.warn)
            self._recheck()
            while not self._done:
                with suppress(Empty):
                    self._take(self._inbox.get(timeout=STOPS_S))
                self._look_for_stops()
            self._link.close(GOODBYE_S)
            self._print_closing()
            return exit_status(
                job,
                self._link.state,
                self._link.why,
                self._state,
                self._stops.first,
                self._workers.first_failure,
                is_host=self._coordinator is not None,
            )
        finally:
            watch.close()
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _first_state(self, opened: OpenedJob, place: CoordinatorAddress) -> Supervisor:
        found = opened.now.job
        return Supervisor(
            id=agent_id(),
            role=settings.read_worker().role or "",
            run_id=str(found.revision),  # workers of an earlier run joined at a lower one
            capacity=self._plan.capacity,
            server_count=self._plan.servers,
            address=agent_address(self._plan, place),
            install_id=install_id(self._folder),
            stop_s=self._plan.shutdown_s,
            grace_s=self._plan.grace_s,
            max_restarts=self._plan.spec.max_restarts,
            script_joins=found.total_steps is not None,
            trains=bool(opened.now.members),
            elsewhere=frozenset(line.id for line in opened.now.members if line.agent != agent_id()),
            stall_s=settings.read().stall_s,
        )

    def _announce_metrics(self, client: Client, place: CoordinatorAddress) -> None:
        """Print where Prometheus reads the metrics, if --metrics-port was given."""
        if self._plan.metrics:
            token_file = metrics_token(client, self._folder, place)
            self._output.say(f"metrics: {place.urls[0]}/metrics, with the token in {token_file}")

    def _announce_resume(self, opened: OpenedJob) -> None:
        for line in describe_resume(opened, self._plan, self._folder, checkpoint_dir(self._plan, self._folder)):
            self._output.say(line)
        write_last_command(self._folder.command, self._plan.command)

    def _wait_for_stop(self, limit_s: float) -> bool:
        """Return whether the user stops this agent before it has started."""
        try:
            self._inbox.put(self._inbox.get(timeout=limit_s))
        except Empty:
            return False
        return True

    def say(self, text: str) -> None:
        """Show a message of `CoordinatorChild`, which also calls `ready`."""
        self._output.warn(text)

    def ready(self, url: str, pid: int) -> None:
        self._folder.write_endpoint(url, pid)

    # ---------------------------------------------------------------------------------------- observations

    def _process_ended(self, name: str, code: int) -> None:
        if name == child.NAME:
            assert self._coordinator is not None  # it started it
            self._coordinator.ended(code)
            return
        member = MemberId(name)
        if code > 0:  # its last output is about to be read, which takes a moment
            threading.Thread(target=self._read_failure, args=(member, code), daemon=True).start()
        else:
            self._inbox.put(v.WorkerEnded(member, code, self._workers.ended(member, code)))

    def _read_failure(self, member: MemberId, code: int) -> None:
        error = self._workers.ended(member, code)
        log = self._plan.logs.path(self._folder.logs, member)
        self._inbox.put(v.WorkerEnded(member, code, error, str(log or "")))

    def _on_notice(self, notice: Notice) -> None:
        grace_s = self._plan.grace_s if notice.grace_s is None else min(notice.grace_s, self._plan.grace_s)
        self._output.warn(f"{notice.why}: the workers leave within {grace_s:g} s")
        self._inbox.put(v.MachineGoing(grace_s, notice.why))

    def _recheck(self) -> None:
        self._inbox.put(v.Recheck())

    def _spawner_died(self) -> None:
        self._inbox.put(_SpawnerDied())

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._stops.is_same(number, now):
            return
        if self._done:
            os._exit(SIGNALLED + number)  # only goodbyes are left; the spawner ends whatever still runs
        self._inbox.put(_StopRequested(number, now))

    # --------------------------------------------------------------------------------------------- actions

    def _take(self, given: _Input) -> None:
        match given:
            case _StopRequested():
                self._stop(given.number, given.at)
            case _SpawnerDied():
                raise PliantError(
                    "The process that starts workers was killed, and all workers with it. Run the command again."
                )
            case v.Recheck():
                self._uses, samples = self._workers.look()
                self._feed(given)
                self._feed(v.WorkersSampled(samples))
                self._remind()
            case _:
                self._feed(given)

    def _look_for_stops(self) -> None:
        """Sample the workers if one of them is stopped: others may wait for it."""
        now = time.monotonic()
        if now - self._stops_looked_at >= STOPS_S and not self._done:
            self._stops_looked_at = now
            if self._workers.has_stopped():
                self._uses, samples = self._workers.look()
                self._feed(v.WorkersSampled(samples))

    def _feed(self, given: v.Signal) -> None:
        before = self._state
        self._state, actions = supervise(before, given, time.monotonic())
        if isinstance(given, v.WorkerEnded) and given.member not in self._state.workers:
            self._show_end(before, given)
            self._workers.forget(given.member)
        for action in actions:
            self._act(action)
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Wake up at the supervisor's next deadline."""
        now = time.monotonic()
        deadline = next_deadline(self._state, now)
        if deadline is not None and (self._wake_at is None or deadline < self._wake_at or self._wake_at <= now):
            self._wake_at = deadline
            self._after(deadline - now, v.Recheck())

    def _act(self, action: v.Action) -> None:
        match action:
            case v.Start(member, is_server=True):
                self._workers.start_server(member)
            case v.Start(member):
                self._workers.start(member, self._state.draining | self._state.stopping)
            case v.StartSeat(launch, member):
                self._ports = ()
                self._workers.start_seat(launch, member)
            case v.Offer(generation):
                if self._others_train() and self._workers.is_warming():
                    return  # the template calls for another look when it is done
                self._link.send(AgentReady(self._state.id, generation, self._free_ports()))
            case v.ReadEvents(ended):
                self._link.run_after_sent(lambda: self._read_events(ended))
            case v.Terminate(member, grace_s):
                self._processes.terminate(member)
                self._after(grace_s + MARGIN_S, v.StopOverdue(member))
            case v.StopWithin(member, grace_s):
                self._after(grace_s + MARGIN_S, v.StopOverdue(member))
            case v.Kill(member):
                self._processes.kill(member)
            case v.Announce(text):
                self._output.warn(text)
            case v.SendCommand(command):
                self._link.send(command)
            case v.Finish():
                self._done = True
            case _:
                assert_never(action)

    def _read_events(self, ended: v.WorkerEnded) -> None:
        self._inbox.put(replace(ended, events_read=self._link.catch_up()))

    def _free_ports(self) -> tuple[int, ...]:
        """Return the same ports as long as they are free, so that a repeated offer is the same one."""
        if not self._ports or not are_free(self._ports):
            self._ports = free_ports(self._plan.capacity)
        return self._ports

    def _others_train(self) -> bool:
        """Return whether a launch runs that would be stopped for this agent; it should not wait for imports."""
        order = self._state.order
        return order is not None and order.launch is not None and not order.launch.over

    def _after(self, pause_s: float, given: v.Signal) -> None:
        timer = threading.Timer(pause_s, self._inbox.put, (given,))
        timer.daemon = True
        timer.start()

    def _stop(self, number: int, at: float) -> None:
        """Drain within the grace period on the first signal, kill on the second, exit at once on the third."""
        name = signal.Signals(number).name
        if self._stops.is_same(number, at):
            return
        if self._stops.repeated:
            os._exit(SIGNALLED + number)
        if self._stops.first:
            self._stops.repeated = True
            self._output.warn(f"{name} again: ending now")
            self._feed(v.GraceExpired())
            return
        self._stops.first, self._stops.first_at = number, at
        self._output.warn(f"{name}: the workers save and leave within {self._plan.grace_s:g} s; again to end now")
        # SIGINT comes from a person who waits; the sender of SIGTERM counts on the grace period.
        immediate = number == signal.SIGINT
        self._feed(v.MachineGoing(self._plan.grace_s, f"{name} to pliant run", immediate))

    # -------------------------------------------------------------------------------------------- messages

    def _show_end(self, before: Supervisor, ended: v.WorkerEnded) -> None:
        """Show how a worker ended if no event of the job will: it had not joined, and was not stopped here."""
        unknown = is_live(before) and ended.member not in before.joined | before.stopping and not before.ended
        if unknown and ended.code != 0:
            self._output.warn(f"{ended.member} ended with {describe_exit(ended.code)} before it had joined")

    def _remind(self) -> None:
        """Show now and then why nothing is trained, or that the coordinator is away, as long as that is so."""
        if self._stops.first or self._remind_away():
            return
        now, state = time.monotonic(), self._link.state
        if state is JobState.RUNNING or state.ended:
            self._reminded_at, self._reminders = now, 0
        elif now - self._reminded_at >= (REMIND_S if self._reminders else REMIND_FIRST_S):
            still = "still " if self._reminders else ""
            self._reminded_at, self._reminders = now, self._reminders + 1
            why = self._link.why if self._link.why.startswith("waiting ") else f"{state.value}: {self._link.why}"
            self._output.say(f"{still}{describe_wait(why, len(self._state.workers), len(self._state.joined))}")

    def _remind_away(self) -> bool:
        """Return whether the coordinator is away. This machine's own one is started again, and reports itself."""
        now, since = time.monotonic(), self._link.away_since
        if self._coordinator is not None or (since is None and self._away_told_at is None):
            return False
        if since is None:
            self._away_told_at = None
            self._output.warn("the coordinator answers again")
        elif self._link.away_s >= AWAY_FIRST_S and (
            self._away_told_at is None or now - self._away_told_at >= AWAY_AGAIN_S
        ):
            self._away_told_at = now
            self._output.warn(describe_away(self._url, since))
        return since is not None

    def _show_event(self, revision: int, event: Event) -> None:
        self._progress.feed(event)
        if isinstance(event, AgentDraining) and event.agent == self._state.id:
            self._asked_to_leave = event.why
        self._output.event(revision, event)

    def _print_closing(self) -> None:
        job, state, host = self._plan.job, self._link.state, self._coordinator is not None
        duration_s, storage = time.monotonic() - self._began_at, checkpoint_dir(self._plan, self._folder)
        away_since = None if host else self._link.away_since
        if away_since is not None and not state.ended:
            self._output.warn(describe_closing_away(job, away_since))
            return
        asked = self._asked_to_leave
        for line in describe_closing(job, state, self._progress, duration_s, storage, all_left=host, asked=asked):
            self._output.say(line)
