"""The effect of each fault on a job: a pure fold over its events.

A fault's window reaches from its start to the start of the next fault. All events in the window are attributed to it.
Of two faults in quick succession, the second may be charged with effects of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise, takewhile
from statistics import median

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.plan import Cut, PlannedFault
from pliant.core import messages as m
from pliant.core.model.job import JobState
from pliant.core.model.world import WorldKind

REPORTS_KEPT = 20  # enough to measure the usual speed
TRAINING_SPEED_MIN = 0.25  # share of the usual speed from which training counts as going on


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault that was carried out. `at` and `until` are times of the coordinator's clock."""

    fault: PlannedFault
    at: float
    until: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The effect of one fault.

    `next_step_s` is the time until the next reported step: one of a later world, if the fault broke this one. Members
    report every second or two, so within a world the value is no finer than that. `steps` were reported from the last
    report before the fault to the first one after its end, in `span_s`. `speed` is the estimated training speed during
    the fault, relative to before. `went_on` is whether training went on at all; None if the fault has no duration or
    the reports do not tell. `restarts` counts replacement workers. `violations` are the broken promises.
    """

    step_before: int = 0
    generation_before: int = 0
    generation_after: int = 0
    next_step_s: float | None = None
    steps: int = 0
    span_s: float = 0.0
    speed: float | None = None
    went_on: bool | None = None
    rolled_back: int = 0
    lost: tuple[str, ...] = ()
    restarts: int = 0
    violations: tuple[str, ...] = ()


@dataclass(slots=True)
class ChaosProgress:
    """The state of a job after a sequence of events."""

    live: bool = False
    state: JobState = JobState.STARTING
    why: str = ""
    step: int = 0
    steps: int = 0  # all committed steps, including those rolled back later
    generation: int = 0
    reports: list[m.StepsCommitted] = field(default_factory=list)  # the last few
    holders: frozenset[str] = frozenset()
    targeted: set[str] = field(default_factory=set)

    def add(self, event: m.Event) -> int:
        """Apply an event and return the number of steps it rolls back."""
        match event:
            case m.JobCreated():
                self.live, self.state = False, JobState.STARTING
                if not event.resumes:
                    self.step = 0
            case m.MemberJoined():
                self.live = True
            case m.StateChanged():
                self.state, self.why = event.state, event.why
            case m.WorldEntered():
                self.generation = event.generation
            case m.Launched():
                self.generation = event.launch.number
            case m.HoldersChanged():
                self.holders = frozenset(event.holders)
            case m.StepsCommitted():
                self.step = event.lines[-1].lineage.step
                self.steps += len(event.lines)
                self.reports = [*self.reports[-REPORTS_KEPT:], event]
            case m.WorldFormed(world=world) if world.kind is not WorldKind.PLANNED:
                back, self.step = max(0, self.step - world.base.step), min(self.step, world.base.step)
                return back
            case _:
                pass
        return 0


def compute_outcomes(
    injected: Sequence[InjectedFault], events: Sequence[m.Event], before: ChaosProgress | None = None
) -> tuple[ChaosProgress, list[FaultOutcome]]:
    """Return the job's progress after all events and the outcome of each fault, in order.

    `before` is the progress before the first of these events.
    """
    progress = replace(before, targeted=set()) if before is not None else ChaosProgress()
    found: list[FaultOutcome] = []
    place = 0
    for index, one in enumerate(injected):
        while place < len(events) and events[place].at < one.at:
            progress.add(events[place])
            place += 1
        end = injected[index + 1].at if index + 1 < len(injected) else float("inf")
        window = list(takewhile(partial(_is_before, end), islice(events, place, None)))
        place += len(window)
        found.append(_outcome(injected[: index + 1], window, progress))
    for event in islice(events, place, None):
        progress.add(event)
    return progress, found


def _is_before(end: float, event: m.Event) -> bool:
    return event.at < end


def _outcome(injected: Sequence[InjectedFault], window: Sequence[m.Event], progress: ChaosProgress) -> FaultOutcome:
    one = injected[-1]
    progress.targeted |= set(one.fault.victims)
    live, earlier, holders = progress.live, progress.reports, progress.holders
    generation, step = progress.generation, progress.step
    rolled_back = sum(progress.add(event) for event in window)
    gone = [e for e in window if isinstance(e, m.MemberGone) and e.how != "left"]
    came = [e for e in window if isinstance(e, m.MemberJoined)] if live else []
    launches = [e for e in window if isinstance(e, m.Launched)]
    reports = [e for e in window if isinstance(e, m.StepsCommitted)]
    steps, span_s, speed = _measure_pace(one, earlier, reports)
    went_on = None if speed is None else speed >= TRAINING_SPEED_MIN
    if live:
        broken = max((e.generation for e in window if isinstance(e, m.WorldBroken) and e.entered), default=0)
        if not broken and reports and reports[-1].at < one.until:
            reports = []  # the fault lasts, or no member has reported since its end
        since = one.until if went_on is False and not broken else one.at
        next_at = next((e.at for e in reports if e.generation > broken and e.at >= since), None)
    else:
        next_at = launches[0].at if launches else None  # launched workers report no steps
    return FaultOutcome(
        step_before=step,
        generation_before=generation,
        generation_after=progress.generation,
        next_step_s=None if next_at is None else next_at - one.at,
        steps=steps,
        span_s=span_s,
        speed=speed,
        went_on=went_on,
        rolled_back=rolled_back,
        lost=tuple(event.member for event in gone),
        restarts=len(came) + sum(len(event.launch.seats) for event in launches),
        violations=tuple(
            _find_violations(injected, window, rolled_back, holders & {e.member for e in gone} - progress.targeted)
        ),
    )


def _measure_pace(
    one: InjectedFault, earlier: Sequence[m.StepsCommitted], reports: Sequence[m.StepsCommitted]
) -> tuple[int, float, float | None]:
    """Return the steps around a fault, the seconds they took, and the relative speed during the fault."""
    rates = [len(b.lines) / (b.at - a.at) for a, b in pairwise(earlier) if b.at > a.at]
    after = next((index for index, event in enumerate(reports) if event.at >= one.until), None)
    if not rates or after is None:
        return sum(len(event.lines) for event in reports), 0.0, None
    around = reports[: after + 1]
    steps, span_s = sum(len(event.lines) for event in around), around[-1].at - earlier[-1].at
    if not (one.fault.lasts_s or targets_coordinator(one.fault)):
        return steps, span_s, None
    # Members report to the coordinator what it missed afterwards, and the time it was away is not known to the second.
    lasted_s = span_s if targets_coordinator(one.fault) else one.until - one.at
    rate = median(rates)
    meanwhile = steps - rate * (span_s - lasted_s)
    return steps, span_s, min(1.0, max(0.0, meanwhile / (rate * lasted_s)))


def targets_coordinator(fault: PlannedFault) -> bool:
    return fault.kind is FaultKind.KILL_COORDINATOR or fault.cut is Cut.COORDINATOR_ISOLATED


def _find_violations(
    injected: Sequence[InjectedFault], window: Sequence[m.Event], rolled_back: int, bystanders: frozenset[str]
) -> list[str]:
    """Return a sentence for each broken promise."""
    lately = [each.fault.kind for each in injected[-2:]]
    violations = []
    if rolled_back and FaultKind.KILL_ALL not in lately:
        violations.append(f"{rolled_back} committed steps were lost")
    if bystanders and FaultKind.PARTITION not in lately and FaultKind.KILL_ALL not in lately:
        violations.append(
            f"{', '.join(sorted(bystanders))} held the state and was lost, but was not the target of a fault"
        )
    failed = [e.why for e in window if isinstance(e, m.StateChanged) and e.state is JobState.FAILED]
    return violations + [f"the job failed: {why}" for why in failed]
