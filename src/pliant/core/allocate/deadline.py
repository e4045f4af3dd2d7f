"""Deadlines: the workers that a job with `--deadline` needs to end in time, at its measured speed.

A size that the job does not have meets the deadline only with some reserve. The same reserve is needed once no size met
it. So small changes of the measured speed move no workers.
"""

from __future__ import annotations

from pliant.core.allocate.model import Deadline, Demand
from pliant.core.allocate.sizes import seconds_at

MARGIN = 1.1  # of the time until the end, at a size that the job does not have


def size_needed(demand: Demand, sizes: tuple[int, ...], kept: int) -> int | None:
    """Return the smallest of the sizes that meets the deadline; 0: none of them; None: unknown, or no deadline.

    `kept` is the size that the last allocation aimed at.
    """
    deadline = demand.deadline
    if deadline is None:
        return None
    if deadline.in_s <= 0:
        return 0
    for size in sizes:
        left_s = end_in_s(deadline, size)
        if left_s is None:
            return None
        is_kept = size == kept and not deadline.was_missed
        if (left_s if is_kept else MARGIN * left_s + deadline.pause_s) <= deadline.in_s:
            return size
    return 0


def end_in_s(deadline: Deadline, size: int) -> float | None:
    """Return the seconds until a job ends at a size; None if its speed or its remaining samples are not known."""
    return seconds_at(deadline.samples_left, deadline.speeds, size - deadline.spares)
