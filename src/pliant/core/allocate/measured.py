"""The measurements of a job as `allocate` uses them: speeds by size, the time of a change, and the remaining samples.

`JobPace` refines its means with each report. A mean replaces the measurement in use only when it differs clearly from
it. So noise in the reports moves no worker. A new leader has measured nothing: a job that had workers before keeps its
size until the leader has measured it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pliant.core.allocate.model import Demand
from pliant.core.autoscale import JobPace, facts_of
from pliant.core.autoscale.advise import MEASURED_S
from pliant.core.model.job import Job

SPEED_STEP = 1.25  # a mean speed replaces the one in use once it is higher or lower by this factor
PAUSE_STEP = 2.0  # the same for the time of a change, which no two changes share
ANEW_S = 60.0  # a new leader waits this long for the speed of a job


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a job in use: (size of the world, samples a second) pairs, and the time of a change."""

    speeds: tuple[tuple[int, float], ...] = ()
    pause_s: float | None = None  # None: no change was reported


NOTHING = Measured()


def measure(before: Measured, pace: JobPace) -> Measured:
    """Return the measurements to use after those of `before`."""
    kept = dict(before.speeds)
    speeds = {size: _steady(kept.get(size), speed, SPEED_STEP) for size, speed in pace.speeds_over(MEASURED_S)}
    pause_s = before.pause_s if not pace.has_pauses else _steady(before.pause_s, pace.pause_s, PAUSE_STEP)
    return Measured(tuple(sorted({**kept, **speeds}.items())), pause_s)


def _steady(kept: float | None, mean: float, step: float) -> float:
    return mean if kept is None or not kept / step <= mean <= kept * step else kept


def with_measurements(demand: Demand, job: Job, measured: Measured, *, is_inherited: bool) -> Demand:
    """Return the demand with what was measured of the job.

    `is_inherited`: a leader before granted its workers, and this one may still have to measure it. Spares train
    nothing, so a size of the demand has the speed of a world without them.
    """
    facts = facts_of(job)
    spares = job.spec.spares
    return replace(
        demand,
        speeds=tuple((size + spares, speed) for size, speed in measured.speeds),
        pause_s=measured.pause_s or 0.0,
        left=None if facts is None else facts.left,
        is_measured_anew=is_inherited and facts is not None and not measured.speeds,
    )
