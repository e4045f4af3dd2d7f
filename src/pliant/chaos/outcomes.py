"""What a job made of each fault: a pure fold over its events.

A fault's window reaches from its beginning to that of the next. What happens in it is counted as its doing; of two
faults in quick succession the second may get what the first one began.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise, takewhile
from statistics import median

from pliant.chaos.fault_kinds import FaultKind
from pliant.chaos.plan import Cut, Fault
from pliant.core import messages as m
from pliant.core.model.job import JobState
from pliant.core.model.world import WorldKind

REPORTS = 20  # so many tell how fast training is
SOME = 0.25  # of the usual speed is going on


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was carried out: from when to when, by the coordinator's clock, and what is to be said about it."""

    fault: Fault
    at: float
    until: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a fault.

    `next_step_s` is how long it took until another step was reported: one of a later world, if this one was broken.
    Within a world reports come every second or two, so there it is no finer than that. `steps` were reported from the
    last report before the fault to the first one after its end, in `span_s`. `speed` is how fast training was while it
    lasted, of what it was before: an estimate from these. `went_on` is whether it was at all; None: it did not last, or
    it cannot be told. `restarts` are workers that came in the place of others.
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
    broken: tuple[str, ...] = ()


@dataclass(slots=True)
class Past:
    """What the events up to a moment add up to."""

    live: bool = False
    state: JobState = JobState.STARTING
    why: str = ""
    step: int = 0
    steps: int = 0  # committed in all, those that were rolled back included
    generation: int = 0
    reports: list[m.StepsCommitted] = field(default_factory=list)  # the last ones
    holders: frozenset[str] = frozenset()
    victims: set[str] = field(default_factory=set)

    def add(self, event: m.Event) -> int:
        """Take an event in; how many steps it rolls back."""
        match event:
            case m.JobCreated():
                self.live, self.state = False, JobState.STARTING
                if not event.onward:
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
                self.reports = [*self.reports[-REPORTS:], event]
            case m.WorldFormed(world=world) if world.kind is not WorldKind.PLANNED:
                back, self.step = max(0, self.step - world.base.step), min(self.step, world.base.step)
                return back
            case _:
                pass
        return 0


def outcomes(
    struck: Sequence[Struck], events: Sequence[m.Event], before: Past | None = None
) -> tuple[Past, list[Outcome]]:
    """How the job stands now, and what came of each fault, in order. `before` is how it stood before these events."""
    past = replace(before, victims=set()) if before is not None else Past()
    found: list[Outcome] = []
    place = 0
    for index, one in enumerate(struck):
        while place < len(events) and events[place].at < one.at:
            past.add(events[place])
            place += 1
        end = struck[index + 1].at if index + 1 < len(struck) else float("inf")
        window = list(takewhile(partial(_is_before, end), islice(events, place, None)))
        place += len(window)
        found.append(_outcome(struck[: index + 1], window, past))
    for event in islice(events, place, None):
        past.add(event)
    return past, found


def _is_before(end: float, event: m.Event) -> bool:
    return event.at < end


def _outcome(struck: Sequence[Struck], window: Sequence[m.Event], past: Past) -> Outcome:
    one = struck[-1]
    past.victims |= set(one.fault.victims)
    live, earlier, holders = past.live, past.reports, past.holders
    generation, step = past.generation, past.step
    rolled_back = sum(past.add(event) for event in window)
    gone = [e for e in window if isinstance(e, m.MemberGone) and e.how != "left"]
    came = [e for e in window if isinstance(e, m.MemberJoined)] if live else []
    launches = [e for e in window if isinstance(e, m.Launched)]
    reports = [e for e in window if isinstance(e, m.StepsCommitted)]
    steps, span_s, speed = _pace(one, earlier, reports)
    went_on = None if speed is None else speed >= SOME
    if live:
        broken = max((e.generation for e in window if isinstance(e, m.WorldBroken) and e.entered), default=0)
        if not broken and reports and reports[-1].at < one.until:
            reports = []  # it is not over, or nothing was heard since
        since = one.until if went_on is False and not broken else one.at
        next_at = next((e.at for e in reports if e.generation > broken and e.at >= since), None)
    else:
        next_at = launches[0].at if launches else None  # nobody knows the steps of its workers
    return Outcome(
        step_before=step,
        generation_before=generation,
        generation_after=past.generation,
        next_step_s=None if next_at is None else next_at - one.at,
        steps=steps,
        span_s=span_s,
        speed=speed,
        went_on=went_on,
        rolled_back=rolled_back,
        lost=tuple(event.member for event in gone),
        restarts=len(came) + sum(len(event.launch.seats) for event in launches),
        broken=tuple(_broken(struck, window, rolled_back, holders & {e.member for e in gone} - past.victims)),
    )


def _pace(
    one: Struck, earlier: Sequence[m.StepsCommitted], reports: Sequence[m.StepsCommitted]
) -> tuple[int, float, float | None]:
    """The steps around a fault, in how many seconds, and how fast training was while it lasted."""
    rates = [len(b.lines) / (b.at - a.at) for a, b in pairwise(earlier) if b.at > a.at]
    after = next((index for index, event in enumerate(reports) if event.at >= one.until), None)
    if not rates or after is None:
        return sum(len(event.lines) for event in reports), 0.0, None
    around = reports[: after + 1]
    steps, span_s = sum(len(event.lines) for event in around), around[-1].at - earlier[-1].at
    if not (one.fault.lasts_s or is_at_coordinator(one.fault)):
        return steps, span_s, None
    # What it was not there to hear a coordinator is told afterwards, and when it was away is not known to the second.
    lasted_s = span_s if is_at_coordinator(one.fault) else one.until - one.at
    rate = median(rates)
    meanwhile = steps - rate * (span_s - lasted_s)
    return steps, span_s, min(1.0, max(0.0, meanwhile / (rate * lasted_s)))


def is_at_coordinator(fault: Fault) -> bool:
    return fault.kind is FaultKind.KILL_COORDINATOR or fault.cut is Cut.ALONE


def _broken(
    struck: Sequence[Struck], window: Sequence[m.Event], rolled_back: int, bystanders: frozenset[str]
) -> list[str]:
    """The promises that were not kept, each a sentence."""
    lately = [each.fault.kind for each in struck[-2:]]
    broken = []
    if rolled_back and FaultKind.KILL_ALL not in lately:
        broken.append(f"{rolled_back} committed steps were lost")
    if bystanders and FaultKind.PARTITION not in lately and FaultKind.KILL_ALL not in lately:
        broken.append(f"{', '.join(sorted(bystanders))} held the state and was lost, and no fault was aimed at it")
    failed = [e.why for e in window if isinstance(e, m.StateChanged) and e.state is JobState.FAILED]
    return broken + [f"the job failed: {why}" for why in failed]
