"""Advice about the size of a job: one pure function of what was measured.

The worth of a size is its speed, less a charge for its workers. A worker is charged `CHARGE` of what one worker
achieves at the smallest measured size, so a size is worth more only while each further worker adds at least that much.
A change must gain clearly, pay off within a horizon, and follow the last one by some time. For given measurements each
change raises the worth, and a size that was never tried is tried once, so advice never goes back and forth.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.allocate.sizes import HORIZON_S, speed_at
from pliant.core.autoscale.pace import JobPace
from pliant.core.model.job import Job

CHARGE = 0.5
GAIN_MIN = 0.05  # of the present speed: smaller gains are not worth a change
STAY_S = 30.0  # a size stays this long, or five times as long as a change takes
STAY_PAUSES = 5.0
MEASURED_S = 20.0  # undisturbed time at a size before it is judged
REACH = 2  # a size that was not measured is at most this many times as large or small as the present one
PROBE_LEFT_S = 600.0  # a second size is tried only if the job goes on for longer than this


@dataclass(frozen=True, slots=True)
class ScalingFacts:
    """The limits of the size of a job: the smallest and largest one, its target, and the samples until its end."""

    size_min: int
    size_max: int
    target: int
    left: float | None = None  # None: unknown

    @property
    def sizes(self) -> range:
        return range(self.size_min, self.size_max + 1)


@dataclass(frozen=True, slots=True)
class Advice:
    """The size that a job should ask for, and why. It is the present target if nothing should change."""

    size: int
    why: str


def facts_of(job: Job) -> ScalingFacts | None:
    """Return the facts about a job; None if no advice is possible for it."""
    if job.terms is None or job.target.placement:
        return None
    grid = job.terms.grid
    most = max(job.spec.size_min, min(job.spec.size_max, job.slots))
    left = grid.samples_up_to(grid.total_steps) - grid.samples_up_to(job.durable.step)
    return ScalingFacts(job.spec.size_min, most, job.target.size, max(0.0, float(left)))


def advise(facts: ScalingFacts, pace: JobPace) -> Advice:
    """Return the size to ask for."""
    now = pace.size
    stay = facts.target
    if not facts.size_min <= facts.target <= facts.size_max:
        stay = max(facts.size_min, min(facts.target, facts.size_max))
        return Advice(stay, f"the target {facts.target} is outside {facts.size_min} to {facts.size_max}")
    if now != facts.target:
        return Advice(stay, f"{now} of {facts.target} workers train: waiting until all do")
    if pace.measured_s < MEASURED_S:
        return Advice(stay, f"measuring {now} workers: {pace.measured_s:.0f} of {MEASURED_S:.0f} s")
    stays_s = max(STAY_S, STAY_PAUSES * pace.pause_s)
    if pace.now - pace.changed_at < stays_s:
        return Advice(stay, f"changed less than {stays_s:.0f} s ago")
    return _best(facts, pace)


def _best(facts: ScalingFacts, pace: JobPace) -> Advice:
    """Return the size with the highest worth, if a change to it pays off."""
    now, speeds = pace.size, pace.speeds
    speed = speed_at(speeds, now)
    left_s = HORIZON_S if facts.left is None else facts.left / speed
    other = max(facts.size_min, now // REACH) if now > facts.size_min else min(facts.size_max, now * REACH)
    if len(speeds) == 1 and other != now and (facts.left is None or left_s > PROBE_LEFT_S):
        return Advice(other, f"{now} workers at {speed:.1f} samples a second; trying {other} to compare")
    first_size, first_speed = speeds[0]
    charge = CHARGE * first_speed / first_size
    measured = {size for size, _ in speeds}
    able = [size for size in facts.sizes if size in measured or now / REACH <= size <= now * REACH]
    worths = {size: speed_at(speeds, size) - charge * size for size in able}
    best = max(able, key=lambda size: (worths[size], -abs(size - now), -size))
    gain = worths[best] - worths[now]
    if best == now or gain <= GAIN_MIN * speed:
        return Advice(now, f"{now} workers at {speed:.1f} samples a second: no other size is clearly worth more")
    if min(HORIZON_S, left_s) * gain <= pace.pause_s * speed_at(speeds, best):
        return Advice(now, f"{now} workers: a change to {best} would not pay off before the end")
    how = "measured" if best in measured else "expected"
    return Advice(
        best,
        f"{now} workers at {speed:.1f} samples a second; {speed_at(speeds, best):.1f} {how} with {best}, "
        f"a change takes {pace.pause_s:.1f} s",
    )
