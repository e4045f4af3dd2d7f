"""The report of a chaos run: faults, outcomes and broken promises. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.outcomes import ChaosProgress, FaultOutcome, InjectedFault
from pliant.chaos.plan import ChaosOptions, Cut, PlannedFault
from pliant.core.model.job import JobState


@dataclass(frozen=True, slots=True)
class FaultReport:
    """One fault of the report. `after_s` counts from the start of the run."""

    number: int
    kind: FaultKind
    cut: Cut | None
    victims: tuple[str, ...]
    at: float
    after_s: float
    lasted_s: float
    note: str
    outcome: FaultOutcome


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all faults. Times are None if no fault has one."""

    faults: int
    by_kind: dict[str, int]
    postponed: int
    steps: int
    rolled_back: int
    rolled_back_by_all: int
    restarts: int
    next_step_median_s: float | None
    next_step_max_s: float | None


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The whole report.

    `postponed` lists faults that could not be injected before the next was due, `unavailable` fault kinds that this
    machine cannot inject, `remote_members` members on other machines. `ok` is true if there are no `violations`.
    """

    job: str
    ok: bool
    seed: int
    state: JobState
    why: str
    lasted_s: float
    interrupted: bool
    totals: Totals
    faults: tuple[FaultReport, ...]
    postponed: tuple[str, ...]
    unavailable: tuple[str, ...]
    remote_members: tuple[str, ...]
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChaosRun:
    """Facts about the run that are not in the job's events."""

    job: str
    options: ChaosOptions
    began: float
    lasted_s: float
    interrupted: bool
    postponed: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    remote_members: tuple[str, ...] = ()
    stuck: str = ""  # the violation that training did not resume after the last fault


def build_report(
    run: ChaosRun,
    injected: Sequence[InjectedFault],
    progress: ChaosProgress,
    found: Sequence[FaultOutcome],
    steps_before: int,
) -> ChaosReport:
    """Build the report. `steps_before` were committed before the first fault."""
    lines = tuple(fault_report(run.began, one, outcome) for one, outcome in zip(injected, found, strict=True))
    violations = [f"fault {each.number}: {sentence}" for each in lines for sentence in each.outcome.violations]
    if progress.state is JobState.FAILED and not any("the job failed" in each for each in violations):
        violations.append(f"the job failed: {progress.why}")
    violations += [run.stuck] if run.stuck else []
    nexts = [each.outcome.next_step_s for each in lines if each.outcome.next_step_s is not None]
    totals = Totals(
        faults=len(lines),
        by_kind=dict(sorted(Counter(each.kind.value for each in lines).items())),
        postponed=len(run.postponed),
        steps=progress.steps - steps_before,
        rolled_back=sum(each.outcome.rolled_back for each in lines),
        rolled_back_by_all=sum(each.outcome.rolled_back for each in lines if not each.outcome.violations),
        restarts=sum(each.outcome.restarts for each in lines),
        next_step_median_s=median(nexts) if nexts else None,
        next_step_max_s=max(nexts, default=None),
    )
    return ChaosReport(
        job=run.job,
        ok=not violations,
        seed=run.options.seed,
        state=progress.state,
        why=progress.why,
        lasted_s=run.lasted_s,
        interrupted=run.interrupted,
        totals=totals,
        faults=lines,
        postponed=run.postponed,
        unavailable=run.unavailable,
        remote_members=run.remote_members,
        violations=tuple(violations),
    )


def fault_report(began: float, one: InjectedFault, outcome: FaultOutcome) -> FaultReport:
    fault = one.fault
    return FaultReport(
        number=fault.number,
        kind=fault.kind,
        cut=fault.cut,
        victims=fault.victims,
        at=one.at,
        after_s=one.at - began,
        lasted_s=one.until - one.at if fault.lasts_s else 0.0,
        note=one.note,
        outcome=outcome,
    )


_CUTS = {
    Cut.ISOLATED: "cut {0} off from all others",
    Cut.PEERS: "cut {0} off from its peers",
    Cut.COORDINATOR: "cut {0} off from the coordinator",
    Cut.INBOUND: "drop everything {0} receives",
    Cut.OUTBOUND: "drop everything {0} sends",
    Cut.COORDINATOR_ISOLATED: "cut the coordinator off from all members",
}


def describe_fault(fault: PlannedFault) -> str:
    """Describe a fault in words, such as `kill w1 and w2`."""
    names = " and ".join(fault.victims)
    match fault.kind:
        case FaultKind.KILL:
            return f"kill {names}"
        case FaultKind.KILL_ALL:
            return f"kill all {len(fault.victims)} workers"
        case FaultKind.KILL_COORDINATOR:
            return "kill the coordinator"
        case FaultKind.STOP:
            return f"stop {names} for {fault.lasts_s:.1f} s"
        case FaultKind.SLOW:
            return f"slow {names} down for {fault.lasts_s:.1f} s"
        case FaultKind.PARTITION:
            assert fault.cut is not None, "every partition has a cut"
            return f"{_CUTS[fault.cut].format(names)} for {fault.lasts_s:.1f} s"
        case _:
            raise ValueError(f"`pliant chaos` cannot inject {fault.kind}.")


def describe_outcome(outcome: FaultOutcome, *, live: bool) -> str:
    """Describe the outcome of a fault as far as it is known."""
    parts = []
    if live:
        step_s = outcome.next_step_s
        parts.append("no step reported yet" if step_s is None else f"next step after {step_s:.2f} s")
        if outcome.speed is not None:
            parts.append(f"about {outcome.speed:.0%} of the usual speed meanwhile")
    elif outcome.next_step_s is not None:
        parts.append(f"relaunched after {outcome.next_step_s:.2f} s")
    if outcome.generation_after != outcome.generation_before:
        parts.append(f"generation {outcome.generation_before} to {outcome.generation_after}")
    if outcome.lost:
        parts.append(f"lost {', '.join(outcome.lost)}")
    if outcome.restarts:
        parts.append(f"{outcome.restarts} {'worker' if outcome.restarts == 1 else 'workers'} started")
    if outcome.rolled_back:
        parts.append(f"{outcome.rolled_back} steps rolled back")
    return "; ".join([*parts, *(f"VIOLATION: {each}" for each in outcome.violations)]) or "no effect"
