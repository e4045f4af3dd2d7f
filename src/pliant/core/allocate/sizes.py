"""The sizes that a job can have, and what each of them is worth.

A size is worth its speed relative to the job's smallest size. Jobs that end sooner count more (`URGENCY`), because then
fewer jobs wait. The global batch of a job is fixed, so its samples a second are its progress.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import log

from pliant.core.allocate.model import Demand

SCALING = 0.7  # of a job that was not measured: its speed grows by this power of its size
SCALING_PRIOR = 0.05  # the weight of that power beside those of the measured sizes, which are their spread squared
UNKNOWN_LEFT_S = 3600.0  # the remaining time of a job, at its smallest size, of which nothing is known
URGENCY = 0.5  # how much sooner-ending jobs are preferred: 0 not at all, 1 in inverse proportion to their time
HORIZON_S = 600.0  # a change pays off within this time, or it is not made
GAIN_MIN = 0.01  # a larger size must be this much faster for each doubling, or it is not used


@dataclass(frozen=True, slots=True)
class Curve:
    """The sizes of a job that are worth their slots, with their speeds relative to the first of them.

    `first_speed` is the speed of the first size in samples a second; None: it was not measured.
    """

    sizes: tuple[int, ...]
    speeds: tuple[float, ...]
    first_speed: float | None


def sizes_of(demand: Demand) -> tuple[int, ...]:
    """Return the sizes that the job can have, ascending: whole pods from its minimum to what it wants."""
    return _sizes(demand.size_min, demand.wanted, demand.unit, demand.sizes)


@lru_cache(maxsize=4096)
def _sizes(size_min: int, wanted: int, unit: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    least = -(-size_min // unit) * unit
    most = max(least, wanted // unit * unit)
    if not sizes:
        return tuple(range(least, most + 1, unit))
    fitting = tuple(sorted({-(-size // unit) * unit for size in sizes if size >= size_min}))
    return tuple(size for size in fitting if size <= most) or (fitting or (least,))[:1]


def curve_of(demand: Demand) -> Curve:
    """Return the sizes of the job and their relative speeds, without sizes that are no faster."""
    return _curve(sizes_of(demand), demand.speeds)


@lru_cache(maxsize=4096)
def _curve(sizes: tuple[int, ...], speeds: tuple[tuple[int, float], ...]) -> Curve:
    measured = tuple(sorted((size, speed) for size, speed in speeds if size > 0 and speed > 0))
    scaling = _scaling(measured)
    values = [speed_at(measured, size, scaling) for size in sizes]
    last = 0  # the largest size that is worth its slots
    for index in range(1, len(sizes)):
        if values[index] >= values[last] * (sizes[index] / sizes[last]) ** GAIN_MIN:
            last = index
    kept = sizes[: last + 1]
    relative = _concave(kept, [value / values[0] for value in values[: last + 1]])
    return Curve(kept, relative, values[0] if measured else None)


def _scaling(measured: tuple[tuple[int, float], ...]) -> float:
    """Return the power of the size by which the speed grows, fitted to what was measured; from 0 to 1."""
    points = [(log(size), log(speed)) for size, speed in measured]
    middle = sum(x for x, _ in points) / max(1, len(points))
    spread = sum((x - middle) ** 2 for x, _ in points)
    slope = sum((x - middle) * y for x, y in points)
    return min(1.0, max(0.0, (slope + SCALING_PRIOR * SCALING) / (spread + SCALING_PRIOR)))


def speed_at(measured: tuple[tuple[int, float], ...], size: int, scaling: float = SCALING) -> float:
    """Return the speed at a size: measured, between two measured sizes, or scaled from the nearest one.

    Between two sizes it grows by a power of the size, and beyond the largest by `scaling`. Below the smallest it falls
    by no less than that of an unmeasured job. `measured` are (size, speed) pairs, ascending.
    """
    if not measured:
        return float(size**scaling)
    at = bisect_left(measured, (size, 0.0))
    if at == len(measured) or (at == 0 and measured[0][0] != size):
        near, speed = measured[min(at, len(measured) - 1)]
        return float(speed * (size / near) ** (max(scaling, SCALING) if at == 0 else scaling))
    right, fast = measured[at]
    if right == size:
        return fast
    left, slow = measured[at - 1]
    return float(slow * (fast / slow) ** (log(size / left) / log(right / left)))


def seconds_at(left: float | None, measured: tuple[tuple[int, float], ...], size: int) -> float | None:
    """Return the seconds that a number of samples takes at a size; None if it or the speed is not known."""
    return None if left is None or not measured else left / speed_at(measured, max(size, 1))


def _concave(sizes: tuple[int, ...], values: list[float]) -> tuple[float, ...]:
    """Return the smallest concave curve above the values: steps that pay off only together count together."""
    hull: list[int] = []
    for index, size in enumerate(sizes):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (values[b] - values[a]) * (size - sizes[a]) >= (values[index] - values[a]) * (sizes[b] - sizes[a]):
                break
            hull.pop()
        hull.append(index)
    smooth = list(values)
    for a, b in pairwise(hull):
        for index in range(a + 1, b):
            part = (sizes[index] - sizes[a]) / (sizes[b] - sizes[a])
            smooth[index] = values[a] + (values[b] - values[a]) * part
    return tuple(smooth)


def seconds_left(demand: Demand) -> float:
    """Return the remaining time of the job at its smallest size."""
    speed = curve_of(demand).first_speed
    if demand.left is None or speed is None:
        return UNKNOWN_LEFT_S
    return max(1.0, demand.left / speed)
