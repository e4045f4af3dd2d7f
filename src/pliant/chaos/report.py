"""The report: what was done, what came of it, and whether every promise was kept. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.outcomes import Outcome, Past, Struck
from pliant.chaos.plan import Cut, Fault, Wish
from pliant.core.model.job import JobState


@dataclass(frozen=True, slots=True)
class Line:
    """One fault in the report; `after_s` is since the start, the rest as in `Fault`, `Struck` and `Outcome`."""

    number: int
    kind: FaultKind
    cut: Cut | None
    victims: tuple[str, ...]
    at: float
    after_s: float
    lasted_s: float
    note: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all faults. Times are None where there is none to tell."""

    faults: int
    by_kind: dict[str, int]
    put_off: int
    steps: int
    rolled_back: int
    rolled_back_by_all: int
    restarts: int
    next_step_median_s: float | None
    next_step_max_s: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything. `put_off` are faults that never had their moment; `left_out` and `elsewhere` what could not be done
    at all and to whom. `broken` are promises that were not kept; `ok`: none.
    """

    job: str
    ok: bool
    seed: int
    state: JobState
    why: str
    lasted_s: float
    interrupted: bool
    totals: Totals
    faults: tuple[Line, ...]
    put_off: tuple[str, ...]
    left_out: tuple[str, ...]
    elsewhere: tuple[str, ...]
    broken: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """What the one who struck has to say, besides."""

    job: str
    wish: Wish
    began: float
    lasted_s: float
    interrupted: bool
    put_off: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    stuck: str = ""  # that training did not go on after the last fault


def report(told: Told, struck: Sequence[Struck], past: Past, found: Sequence[Outcome], steps_at_first: int) -> Report:
    """Call at the end, with what `outcomes` found. `steps_at_first` were committed before the first fault."""
    lines = tuple(line(told.began, one, outcome) for one, outcome in zip(struck, found, strict=True))
    broken = [f"fault {each.number}: {sentence}" for each in lines for sentence in each.outcome.broken]
    if past.state is JobState.FAILED and not any("the job failed" in each for each in broken):
        broken.append(f"the job failed: {past.why}")
    broken += [told.stuck] if told.stuck else []
    nexts = [each.outcome.next_step_s for each in lines if each.outcome.next_step_s is not None]
    totals = Totals(
        faults=len(lines),
        by_kind=dict(sorted(Counter(each.kind.value for each in lines).items())),
        put_off=len(told.put_off),
        steps=past.steps - steps_at_first,
        rolled_back=sum(each.outcome.rolled_back for each in lines),
        rolled_back_by_all=sum(each.outcome.rolled_back for each in lines if not each.outcome.broken),
        restarts=sum(each.outcome.restarts for each in lines),
        next_step_median_s=median(nexts) if nexts else None,
        next_step_max_s=max(nexts, default=None),
    )
    return Report(
        job=told.job,
        ok=not broken,
        seed=told.wish.seed,
        state=past.state,
        why=past.why,
        lasted_s=told.lasted_s,
        interrupted=told.interrupted,
        totals=totals,
        faults=lines,
        put_off=told.put_off,
        left_out=told.left_out,
        elsewhere=told.elsewhere,
        broken=tuple(broken),
    )


def line(began: float, one: Struck, outcome: Outcome) -> Line:
    fault = one.fault
    return Line(
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
    Cut.EVERYBODY: "cut {0} off from everybody",
    Cut.PEERS: "cut {0} off from its peers",
    Cut.COORDINATOR: "cut {0} off from the coordinator",
    Cut.DEAF: "let {0} hear nobody",
    Cut.MUTE: "let nobody hear {0}",
    Cut.ALONE: "cut the coordinator off from everybody",
}


def deed(fault: Fault) -> str:
    """What a fault does, for people: `kill w1 and w2`."""
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
            assert fault.cut is not None, "every partition says who is cut off"
            return f"{_CUTS[fault.cut].format(names)} for {fault.lasts_s:.1f} s"
        case _:
            raise ValueError(f"`pliant chaos` has no fault {fault.kind}.")


def told_of(outcome: Outcome, *, live: bool) -> str:
    """What came of a fault, for people; as far as it is known by now."""
    parts = []
    if live:
        step_s = outcome.next_step_s
        parts.append("no step was reported yet" if step_s is None else f"next step after {step_s:.2f} s")
        if outcome.speed is not None:
            parts.append(f"at about {outcome.speed:.0%} of its speed meanwhile")
    elif outcome.next_step_s is not None:
        parts.append(f"launched again after {outcome.next_step_s:.2f} s")
    if outcome.generation_after != outcome.generation_before:
        parts.append(f"generation {outcome.generation_before} to {outcome.generation_after}")
    if outcome.lost:
        parts.append(f"lost {', '.join(outcome.lost)}")
    if outcome.restarts:
        parts.append(f"{outcome.restarts} started")
    if outcome.rolled_back:
        parts.append(f"{outcome.rolled_back} steps rolled back")
    return "; ".join([*parts, *(f"BROKEN: {each}" for each in outcome.broken)]) or "nothing"
