"""The demand of a job in the coordinator, and the slots that the processes of ended jobs still occupy."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from pliant.core.allocate.model import CostLimit, Deadline, Demand
from pliant.core.autoscale import JobPace, facts_of
from pliant.core.autoscale.advise import MEASURED_S
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId, MemberId

SETTLE_S = 20.0  # two leases: an agent that has a worker of an ended job has reported it by then

REPORT_S = 10.0  # steps of a job that trains are reported well within this


@dataclass(frozen=True, slots=True)
class WorkerReports:
    """Reports of agents about the workers of a job: the processes that run, by agent, and those that have ended."""

    running: Mapping[AgentId, Set[MemberId]] = field(default_factory=dict)
    ended: Set[MemberId] = frozenset()


Remains = Mapping[MemberId, float]  # the workers of an ended job that may run, with the time at which they last did


def remains_of(reports: WorkerReports, before: Remains, now: float) -> Remains:
    """Return the workers of an ended job that may still run.

    An ended job stores no ends, so its workers count until their end is reported. A worker of which no agent reports
    anything for `SETTLE_S` was lost with its agent.
    """
    running = {name for names in reports.running.values() for name in names}
    found = {**before, **dict.fromkeys(running, now)}
    return {name: at for name, at in found.items() if name not in reports.ended and now - at < SETTLE_S}


def cost_limit_of(job: Job, wall: float, price: float | None, pace: JobPace | None) -> CostLimit | None:
    """Return the cost limit of a job, with what it has spent until now; None if it has none."""
    if job.spec.at_most_cost is None:
        return None
    facts = facts_of(job) if pace is not None else None
    left, speeds = (facts.left, pace.speeds_over(MEASURED_S)) if pace is not None and facts is not None else (None, ())
    return CostLimit(job.spec.at_most_cost, job.spent_by(wall), price, left, speeds, spares=job.spec.spares)


def deadline_of(job: Job, wall: float, pace: JobPace | None, *, was_missed: bool) -> Deadline | None:
    """Return the deadline of a job, with what was measured of it; None if it has none.

    The remaining samples are those at the last report, so the remaining time is counted from then, too.
    """
    at, spares = job.spec.deadline, job.spec.spares
    if at is None:
        return None
    facts, speeds = facts_of(job), () if pace is None else pace.speeds_over(MEASURED_S)
    if pace is None or facts is None or not speeds or at <= wall:
        return Deadline(at - wall, spares=spares, was_missed=was_missed)
    seen = min(wall, max(pace.now, wall - REPORT_S))
    return Deadline(at - seen, facts.left, speeds, pace.pause_s, spares, was_missed)


def demand_of(
    job: Job,
    planned: int | None,
    unchanged_s: float,
    cost: CostLimit | None = None,
    deadline: Deadline | None = None,
) -> Demand:
    """Return what a job in a queue wants and has, in whole units. Its spares count as workers."""
    spec = job.spec
    wanted = max(spec.size_min, min(job.target.size, spec.size_max, job.slots) + spec.spares)
    return Demand(
        name=job.name,
        size_min=spec.size_min,
        wanted=-(-wanted // spec.unit) * spec.unit,
        priority=spec.priority,
        since=job.created_at,
        queue=spec.queue,
        unit=spec.unit,
        sizes=tuple(sorted({size + more for size in spec.sizes for more in (0, spec.spares)})),
        held=len(job.occupants),
        granted=job.granted,
        planned=planned,
        unchanged_s=unchanged_s,
        cost=cost,
        deadline=deadline,
        suspended=spec.suspended,
    )
