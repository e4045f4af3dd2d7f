"""The main loop of `pliant chaos`: wait for each fault's time, inject it, observe the outcome, report at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from pliant.chaos import plan, socket_filter
from pliant.chaos.event_log import EventLog
from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.inject import FaultInjector, StopRequest
from pliant.chaos.outcomes import ChaosProgress, FaultOutcome, InjectedFault, compute_outcomes
from pliant.chaos.plan import COORDINATOR, ChaosOptions, ChaosTarget, JobSnapshot, PlannedFault, Postponed
from pliant.chaos.processes import ProcessRef
from pliant.chaos.report import ChaosReport, ChaosRun, build_report, describe_fault, describe_outcome
from pliant.chaos.sockets import NetworkFacts
from pliant.chaos.undo import UndoProcess
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.leases import LEASE_TTL_S
from pliant.core.model.job import JobState, Mode
from pliant.core.model.view import MemberState
from pliant.errors import BadInput, PliantError
from pliant.wire.api import JobStatus

POLL_S = 0.2
START_LIMIT_S = 60.0  # for the job to start training
RECOVERY_SHARE = 0.5  # share of the interval that is kept free after a fault with a duration
RESUME_LIMIT_S = 60.0  # for training to resume after the last fault
FORBIDDEN = "the job no longer allows chaos"

AT_WORKERS = (FaultKind.KILL, FaultKind.STOP, FaultKind.SLOW, FaultKind.PARTITION, FaultKind.KILL_ALL)


class LocalJob(Protocol):
    """The part of the job that runs on this machine."""

    def find_member(self, pid: int, member: str) -> ProcessRef | None:
        """Return the process of that id if it is that member's worker."""

    def find_coordinator(self) -> ProcessRef | None:
        """Return the job's own coordinator; None if it does not run on this machine."""

    def network_facts(self, hosts: frozenset[str]) -> NetworkFacts:
        """Return the addresses that matter for a cut. `hosts` are those of members on other machines."""

    def is_running(self) -> bool:
        """Return whether an agent still runs the job; True if that is unknown."""

    def read_events(self, after: int) -> list[m.Event]:
        """Return the job's events after a revision, even if no agent runs the job any more."""


@dataclass(frozen=True, slots=True)
class JobObservation:
    """The job at one moment, with its processes on this machine."""

    snapshot: JobSnapshot
    processes: dict[str, ProcessRef]
    remote_members: tuple[str, ...]
    mode: Mode = Mode.LIVE
    ended: bool = False
    all_pids_known: bool = False  # agents report the pids of launched workers after a while


class ChaosRunner:
    """One run of `pliant chaos`. `show` prints a line of progress."""

    def __init__(
        self,
        client: Client,
        job: str,
        options: ChaosOptions,
        local: LocalJob,
        stop: StopRequest,
        show: Callable[[str], None],
    ) -> None:
        self._client = client
        self._job = job
        self._options = options
        self._local = local
        self._stop = stop
        self._print = show
        self._injected: list[InjectedFault] = []
        self._postponed: list[str] = []
        self._remote_members: dict[str, None] = {}
        self._local_agents: set[str] = set()  # agents with a worker on this machine
        self._clock_offset_s = 0.0
        self._lease_s = LEASE_TTL_S
        self._earliest_next = 0.0  # monotonic time before which no fault starts
        self._forbidden = False  # a new attempt of the job does not allow chaos

    def run(self) -> ChaosReport:
        """Inject faults until the time is up, the job ends or forbids chaos, or a stop is requested.

        Raise BadInput if no fault can be injected.
        """
        about = self._client.about()
        self._lease_s, self._clock_offset_s = about.lease_ttl_s, about.now - time.time()
        with self._follow_events() as log, UndoProcess() as undo:
            seen = self._wait_until_training()
            unavailable = self._drop_unavailable(seen)
            log.discard()
            began, began_at = time.monotonic(), self._now()
            self._inject_all(FaultInjector(undo, self._stop), log, began)
            if self._forbidden:
                self._print(f"{self._job}: {FORBIDDEN}")
            stuck = self._wait_until_resumed(log)
            if not log.progress.state.ended and not self._local.is_running():
                log.append_rest(self._local.read_events)
            progress, found = self._compute_outcomes(log)
            run = ChaosRun(
                job=self._job,
                options=self._options,
                began=began_at,
                lasted_s=time.monotonic() - began,
                interrupted=bool(self._stop),
                postponed=tuple(self._postponed),
                unavailable=unavailable,
                remote_members=tuple(self._remote_members),
                stuck=stuck,
            )
            return build_report(run, self._injected, progress, found, log.discarded.steps)

    @contextmanager
    def _follow_events(self) -> Iterator[EventLog]:
        with EventLog(self._client, self._job) as log:
            known = self._client.job(self._job).job.revision
            while log.revision < known and not self._stop.wait(POLL_S / 10):
                pass
            yield log

    def _now(self) -> float:
        """Return the time of the coordinator's clock, which events carry."""
        return time.time() + self._clock_offset_s

    # ------------------------------------------------------------------------------------------- start

    def _wait_until_training(self) -> JobObservation:
        """Wait until the job trains and return it."""
        until = time.monotonic() + START_LIMIT_S
        while True:
            seen = self._observe()
            if self._stop or (not seen.snapshot.not_training and (seen.all_pids_known or time.monotonic() > until)):
                return seen
            if seen.ended or self._forbidden or time.monotonic() > until:
                raise BadInput(f"Job {self._job} is not training ({seen.snapshot.not_training}). Retry once it trains.")
            self._stop.wait(POLL_S)

    def _drop_unavailable(self, seen: JobObservation) -> tuple[str, ...]:
        """Report the fault kinds that cannot be injected here, and drop them."""
        reasons = {kind: self._why_unavailable(kind, seen) for kind in self._options.kinds}
        unavailable = tuple(f"{kind}: {why}" for kind, why in reasons.items() if why)
        for each in unavailable:
            self._print(f"not available here: {each}")
        for member in seen.remote_members:
            self._print(f"{member} runs on another machine and is left alone")
        kinds = tuple(kind for kind, why in reasons.items() if not why)
        if not kinds:
            raise BadInput(f"None of the requested faults is available here ({'; '.join(unavailable)}).")
        self._options = replace(self._options, kinds=kinds)
        return unavailable

    def _why_unavailable(self, kind: FaultKind, seen: JobObservation) -> str:
        workers = [process for name, process in seen.processes.items() if name != COORDINATOR]
        if kind is FaultKind.KILL_COORDINATOR:
            return "" if seen.snapshot.coordinator_reachable else plan.NO_COORDINATOR
        if not workers:
            return plan.NO_WORKER
        if kind is not FaultKind.PARTITION:
            return ""
        return plan.NOT_LIVE if seen.mode is Mode.RELAUNCH else socket_filter.why_unavailable(workers[0])

    # ------------------------------------------------------------------------------------------ faults

    def _inject_all(self, injector: FaultInjector, log: EventLog, began: float) -> None:
        for number in count():
            due = plan.due_time(self._options, number)
            if due is None:
                return
            later = plan.due_time(self._options, number + 1)
            end = began + (self._options.for_s if later is None else later)
            begin = max(began + due, self._earliest_next)
            if end <= begin:
                continue  # the fault before took too long
            if not self._wait_until(log, begin):
                return
            drawn = self._next_fault(number, log, end)
            if isinstance(drawn, Postponed):
                self._postponed.append(f"{drawn.kind}: {drawn.why}")
                self._print(f"{time.monotonic() - began:6.1f} s  {drawn.kind} postponed: {drawn.why}")
            elif drawn is not None:
                self._inject(injector, log, *drawn, began)
                self._print_outcome(log, end)

    def _wait_until(self, log: EventLog, until: float) -> bool:
        """Wait until that time. Return False if the run is over."""
        while (left_s := until - time.monotonic()) > 0 and not self._is_over(log):
            self._stop.wait(min(left_s, POLL_S))
        return not self._is_over(log)

    def _is_over(self, log: EventLog) -> bool:
        return bool(self._stop) or self._forbidden or log.progress.state.ended or not self._local.is_running()

    def _next_fault(
        self, number: int, log: EventLog, end: float
    ) -> tuple[PlannedFault, JobObservation] | Postponed | None:
        """Return the next fault and the job it applies to as soon as it can start.

        Return `Postponed` if it could not start before `end`, and None if the run is over.
        """
        while True:
            seen = self._observe()
            drawn = plan.draw_fault(self._options, number, seen.snapshot)
            if isinstance(drawn, PlannedFault):
                return drawn, seen
            if self._is_over(log):
                return None
            if time.monotonic() >= end:
                return drawn
            self._stop.wait(POLL_S)

    def _inject(
        self, injector: FaultInjector, log: EventLog, fault: PlannedFault, seen: JobObservation, began: float
    ) -> None:
        self._print(f"{time.monotonic() - began:6.1f} s  {describe_fault(fault)}")
        away = self._remote_hosts(log, seen)
        at = self._now()
        note = injector.inject(fault, seen.processes, lambda: self._local.network_facts(away))
        self._injected.append(InjectedFault(fault, at, self._now(), note))
        if fault.lasts_s:
            self._earliest_next = time.monotonic() + self._options.every_s * RECOVERY_SHARE

    def _remote_hosts(self, log: EventLog, seen: JobObservation) -> frozenset[str]:
        """Return the hosts of members on other machines. Local members may share the coordinator's address."""
        return frozenset(
            address.rpartition(":")[0].strip("[]")
            for member, address in log.addresses().items()
            if member not in seen.processes
        )

    def _print_outcome(self, log: EventLog, end: float) -> None:
        """Wait until the outcome of the last fault is known, at most until the next fault, and print it."""
        while True:
            progress, found = self._compute_outcomes(log)
            fault, outcome = self._injected[-1].fault, found[-1]
            known = self._is_outcome_known(progress.live, fault, outcome)
            if known or time.monotonic() >= end or self._is_over(log):
                break
            self._stop.wait(POLL_S)
        note = f" ({self._injected[-1].note})" if self._injected[-1].note else ""
        self._print(f"          {describe_outcome(outcome, live=progress.live)}{note}")

    def _compute_outcomes(self, log: EventLog) -> tuple[ChaosProgress, list[FaultOutcome]]:
        return compute_outcomes(self._injected, log.events, log.discarded)

    @staticmethod
    def _is_outcome_known(live: bool, fault: PlannedFault, outcome: FaultOutcome) -> bool:
        return outcome.next_step_s is not None or (not live and fault.kind not in (FaultKind.KILL, FaultKind.KILL_ALL))

    def _wait_until_resumed(self, log: EventLog) -> str:
        """Wait until training resumes after the last fault. Return the violation if it does not."""
        if not self._injected:
            return ""
        until = time.monotonic() + RESUME_LIMIT_S
        while not self._is_over(log):
            progress, found = self._compute_outcomes(log)
            if self._is_outcome_known(progress.live, self._injected[-1].fault, found[-1]):
                return ""
            if time.monotonic() > until:
                return (
                    f"training did not resume within {RESUME_LIMIT_S:g} s after the last fault "
                    f"({progress.state}: {progress.why})"
                )
            self._stop.wait(POLL_S)
        return ""

    # --------------------------------------------------------------------------------------- observing

    def _observe(self) -> JobObservation:
        """Return the job as it is now. If the coordinator does not answer, that is why the job does not train."""
        try:
            found = self._client.job(self._job)
        except PliantError as error:
            return JobObservation(JobSnapshot((), 1, self._lease_s, not_training=error.why), {}, ())
        self._forbidden = not found.spec.chaos_allowed
        processes = {
            line.id: process
            for line in found.members
            if line.pid and (process := self._local.find_member(line.pid, line.id)) is not None
        }
        self._local_agents |= {line.agent for line in found.members if line.id in processes}
        elsewhere = tuple(line.id for line in found.members if line.pid and line.agent not in self._local_agents)
        coordinator = self._local.find_coordinator()
        snapshot = JobSnapshot(
            members=tuple(
                ChaosTarget(line.id, line.state is MemberState.ACTIVE, line.id in processes)
                for line in found.members
                if line.rank is not None
            ),
            size_min=found.job.size_min,
            lease_s=self._lease_s,
            coordinator_reachable=coordinator is not None,
            live=found.live,
            not_training=_why_not_now(found),
        )
        self._remote_members |= dict.fromkeys(elsewhere)
        named: dict[str, ProcessRef] = {str(member): process for member, process in processes.items()}
        if coordinator is not None:
            named[COORDINATOR] = coordinator
        known = bool(found.members) and all(line.pid for line in found.members)
        return JobObservation(snapshot, named, elsewhere, found.spec.mode, found.job.state.ended, known)


def _why_not_now(found: JobStatus) -> str:
    """Return why no fault may be injected into the job now; empty if one may."""
    if not found.spec.chaos_allowed:
        return FORBIDDEN
    return "" if found.job.state is JobState.RUNNING else f"the job is {found.job.state.value} ({found.job.why})"
