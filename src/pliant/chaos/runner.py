"""The loop of `pliant chaos`: wait for the next fault's moment, strike, see what comes of it, and report at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from pliant.chaos import plan, socket_filter
from pliant.chaos.event_log import Chronicle
from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.inject import Over, Strikes
from pliant.chaos.outcomes import Outcome, Past, Struck, outcomes
from pliant.chaos.plan import COORDINATOR, Alive, Fault, NotNow, Somebody, Wish
from pliant.chaos.processes import Process
from pliant.chaos.report import Report, Told, deed, report, told_of
from pliant.chaos.sockets import Around
from pliant.chaos.undo import Mender
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import JobState, Mode
from pliant.core.model.view import MemberState
from pliant.errors import BadInput, PliantError
from pliant.wire.api import JobStatus

LOOK_S = 0.2
BEGIN_S = 60.0  # how long a job may take to begin to train
BREATH = 0.5  # of the time between two faults is left after one that lasted
SETTLE_S = 60.0  # how long after the last fault training may take to go on
FORBIDDEN = "it does not allow chaos any more"

AT_WORKERS = (FaultKind.KILL, FaultKind.STOP, FaultKind.SLOW, FaultKind.PARTITION, FaultKind.KILL_ALL)


class Here(Protocol):
    """What can be reached on this machine."""

    def member(self, pid: int, member: str) -> Process | None:
        """The process of that number, if it is that member's."""

    def coordinator(self) -> Process | None:
        """The job's own coordinator; None: it has none on this machine."""

    def around(self, hosts: frozenset[str]) -> Around:
        """Where connections lead. `hosts` are those of members that are elsewhere."""

    def is_run(self) -> bool:
        """Whether there is still somebody to run the job; unknown counts as yes."""

    def rest(self, after: int) -> list[m.Event]:
        """What is in the job's log after a revision, also when nobody runs it any more."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The job at one moment, and whom of it we can reach."""

    alive: Alive
    processes: dict[str, Process]
    elsewhere: tuple[str, ...]
    mode: Mode = Mode.LIVE
    ended: bool = False
    known: bool = False  # whether every worker's process is known; agents tell those of launched ones after a while


class Storm:
    """One run of `pliant chaos`. `say` is told what people should see meanwhile."""

    def __init__(
        self, client: Client, job: str, wish: Wish, here: Here, over: Over, say: Callable[[str], None]
    ) -> None:
        self._client = client
        self._job = job
        self._wish = wish
        self._here = here
        self._over = over
        self._say = say
        self._struck: list[Struck] = []
        self._put_off: list[str] = []
        self._elsewhere: dict[str, None] = {}
        self._agents: set[str] = set()  # some worker of theirs was found here
        self._ahead_s = 0.0
        self._lease_s = 10.0
        self._recovered = 0.0  # when the next fault may begin
        self._forbidden = False  # by whoever started the job again meanwhile

    def run(self) -> Report:
        """Until the time is over, the job has ended or allows it no more, or somebody wants it to end.

        BadInput if nothing can be done.
        """
        about = self._client.about()
        self._lease_s, self._ahead_s = about.lease_ttl_s, about.now - time.time()
        with self._chronicle() as chronicle, Mender() as mender:
            seen = self._begun()
            left_out = self._leave_out(seen)
            chronicle.forget()
            began, began_at = time.monotonic(), self._now()
            self._faults(Strikes(mender, self._over), chronicle, began)
            if self._forbidden:
                self._say(f"{self._job}: {FORBIDDEN}")
            stuck = self._settle(chronicle)
            if not chronicle.past.state.ended and not self._here.is_run():
                chronicle.rest(self._here.rest)
            past, found = self._outcomes(chronicle)
            told = Told(
                job=self._job,
                wish=self._wish,
                began=began_at,
                lasted_s=time.monotonic() - began,
                interrupted=bool(self._over),
                put_off=tuple(self._put_off),
                left_out=left_out,
                elsewhere=tuple(self._elsewhere),
                stuck=stuck,
            )
            return report(told, self._struck, past, found, chronicle.before.steps)

    @contextmanager
    def _chronicle(self) -> Iterator[Chronicle]:
        with Chronicle(self._client, self._job) as chronicle:
            known = self._client.job(self._job).job.revision
            while chronicle.revision < known and not self._over.wait(LOOK_S / 10):
                pass
            yield chronicle

    def _now(self) -> float:
        """By the coordinator's clock, as events are."""
        return time.time() + self._ahead_s

    # ------------------------------------------------------------------------------------------- the beginning

    def _begun(self) -> Seen:
        """Wait until the job trains."""
        until = time.monotonic() + BEGIN_S
        while True:
            seen = self._look()
            if self._over or (not seen.alive.why and (seen.known or time.monotonic() > until)):
                return seen
            if seen.ended or self._forbidden or time.monotonic() > until:
                raise BadInput(f"{self._job} does not train: {seen.alive.why}. Chaos is for a job that does.")
            self._over.wait(LOOK_S)

    def _leave_out(self, seen: Seen) -> tuple[str, ...]:
        """Say which faults cannot be had here, and do without them."""
        reasons = {kind: self._why_never(kind, seen) for kind in self._wish.kinds}
        left_out = tuple(f"{kind}: {why}" for kind, why in reasons.items() if why)
        for each in left_out:
            self._say(f"left out: {each}")
        for member in seen.elsewhere:
            self._say(f"{member} runs on another machine, and is not struck at from here")
        kinds = tuple(kind for kind, why in reasons.items() if not why)
        if not kinds:
            raise BadInput(f"None of these faults can be had here. {'; '.join(left_out)}.")
        self._wish = replace(self._wish, kinds=kinds)
        return left_out

    def _why_never(self, kind: FaultKind, seen: Seen) -> str:
        workers = [process for name, process in seen.processes.items() if name != COORDINATOR]
        if kind is FaultKind.KILL_COORDINATOR:
            return "" if seen.alive.coordinator else plan.NO_COORDINATOR
        if not workers:
            return plan.NOBODY
        if kind is not FaultKind.PARTITION:
            return ""
        return plan.NOT_LIVE if seen.mode is Mode.RELAUNCH else socket_filter.why_not(workers[0])

    # ----------------------------------------------------------------------------------------------- the faults

    def _faults(self, strikes: Strikes, chronicle: Chronicle, began: float) -> None:
        for number in count():
            due = plan.moment(self._wish, number)
            if due is None:
                return
            later = plan.moment(self._wish, number + 1)
            end = began + (self._wish.for_s if later is None else later)
            begin = max(began + due, self._recovered)
            if end <= begin:
                continue  # the one before took so long
            if not self._wait(chronicle, begin):
                return
            drawn = self._drawn(number, chronicle, end)
            if isinstance(drawn, NotNow):
                self._put_off.append(f"{drawn.kind}: {drawn.why}")
                self._say(f"{time.monotonic() - began:6.1f} s  {drawn.kind} put off: {drawn.why}")
            elif drawn is not None:
                self._strike(strikes, chronicle, *drawn, began)
                self._show(chronicle, end)

    def _wait(self, chronicle: Chronicle, until: float) -> bool:
        """Wait for a moment; False if there is nothing to wait for any more."""
        while (left_s := until - time.monotonic()) > 0 and not self._is_over(chronicle):
            self._over.wait(min(left_s, LOOK_S))
        return not self._is_over(chronicle)

    def _is_over(self, chronicle: Chronicle) -> bool:
        return bool(self._over) or self._forbidden or chronicle.past.state.ended or not self._here.is_run()

    def _drawn(self, number: int, chronicle: Chronicle, end: float) -> tuple[Fault, Seen] | NotNow | None:
        """The fault and whom it meets, as soon as it may begin; `NotNow` if it never may; None: all is over."""
        while True:
            seen = self._look()
            drawn = plan.draw(self._wish, number, seen.alive)
            if isinstance(drawn, Fault):
                return drawn, seen
            if self._is_over(chronicle):
                return None
            if time.monotonic() >= end:
                return drawn
            self._over.wait(LOOK_S)

    def _strike(self, strikes: Strikes, chronicle: Chronicle, fault: Fault, seen: Seen, began: float) -> None:
        self._say(f"{time.monotonic() - began:6.1f} s  {deed(fault)}")
        away = self._hosts(chronicle, seen)
        at = self._now()
        note = strikes.strike(fault, seen.processes, lambda: self._here.around(away))
        self._struck.append(Struck(fault, at, self._now(), note))
        if fault.lasts_s:
            self._recovered = time.monotonic() + self._wish.every_s * BREATH

    def _hosts(self, chronicle: Chronicle, seen: Seen) -> frozenset[str]:
        """Of members that are elsewhere. Those that are here may have the same address as the coordinator."""
        return frozenset(
            address.rpartition(":")[0].strip("[]")
            for member, address in chronicle.addresses().items()
            if member not in seen.processes
        )

    def _show(self, chronicle: Chronicle, end: float) -> None:
        """Wait until it is known what came of the last fault, no longer than until the next; and tell it."""
        while True:
            past, found = self._outcomes(chronicle)
            fault, outcome = self._struck[-1].fault, found[-1]
            known = self._is_known(past.live, fault, outcome)
            if known or time.monotonic() >= end or self._is_over(chronicle):
                break
            self._over.wait(LOOK_S)
        note = f" ({self._struck[-1].note})" if self._struck[-1].note else ""
        self._say(f"          {told_of(outcome, live=past.live)}{note}")

    def _outcomes(self, chronicle: Chronicle) -> tuple[Past, list[Outcome]]:
        return outcomes(self._struck, chronicle.events, chronicle.before)

    @staticmethod
    def _is_known(live: bool, fault: Fault, outcome: Outcome) -> bool:
        return outcome.next_step_s is not None or (not live and fault.kind not in (FaultKind.KILL, FaultKind.KILL_ALL))

    def _settle(self, chronicle: Chronicle) -> str:
        """Wait until training went on after the last fault; what to say if it did not."""
        if not self._struck:
            return ""
        until = time.monotonic() + SETTLE_S
        while not self._is_over(chronicle):
            past, found = self._outcomes(chronicle)
            if self._is_known(past.live, self._struck[-1].fault, found[-1]):
                return ""
            if time.monotonic() > until:
                return f"training did not go on within {SETTLE_S:g} s after the last fault: {past.state}: {past.why}"
            self._over.wait(LOOK_S)
        return ""

    # -------------------------------------------------------------------------------------------------- looking

    def _look(self) -> Seen:
        """The job as it is now. While nobody answers, that is why it is not to be struck at."""
        try:
            found = self._client.job(self._job)
        except PliantError as error:
            return Seen(Alive((), 1, self._lease_s, why=error.why), {}, ())
        self._forbidden = not found.spec.chaos_allowed
        processes = {
            line.id: process
            for line in found.members
            if line.pid and (process := self._here.member(line.pid, line.id)) is not None
        }
        self._agents |= {line.agent for line in found.members if line.id in processes}
        elsewhere = tuple(line.id for line in found.members if line.pid and line.agent not in self._agents)
        coordinator = self._here.coordinator()
        alive = Alive(
            members=tuple(
                Somebody(line.id, line.state is MemberState.ACTIVE, line.id in processes)
                for line in found.members
                if line.rank is not None
            ),
            size_min=found.job.size_min,
            lease_s=self._lease_s,
            coordinator=coordinator is not None,
            live=found.live,
            why=_why_not(found),
        )
        self._elsewhere |= dict.fromkeys(elsewhere)
        named: dict[str, Process] = {str(member): process for member, process in processes.items()}
        if coordinator is not None:
            named[COORDINATOR] = coordinator
        known = bool(found.members) and all(line.pid for line in found.members)
        return Seen(alive, named, elsewhere, found.spec.mode, found.job.state.ended, known)


def _why_not(found: JobStatus) -> str:
    """Why the job is not to be struck at now; empty: it may be."""
    if not found.spec.chaos_allowed:
        return FORBIDDEN
    return "" if found.job.state is JobState.RUNNING else f"it is {found.job.state.value}: {found.job.why}"
