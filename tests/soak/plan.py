"""The timetable of a soak: windows with faults, a quiet one before each, and one under load at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pliant.chaos.fault_kinds import FaultKind

BATCH = 512  # samples a step
KINDS = (FaultKind.KILL, FaultKind.DRAIN, FaultKind.STOP, FaultKind.KILL_COORDINATOR)
WINDOW_S = 120.0
QUIET = 0.25  # of the window that follows
LOADED = 0.2  # of the disturbed time


@dataclass(frozen=True)
class Window:
    """A while of one kind: `disturbed`, `quiet` (without faults), or `loaded` (with faults and burners)."""

    kind: str
    seconds: float


def windows(minutes: float) -> list[Window]:
    """For so many minutes with faults. The quiet ones come on top."""
    loaded_s = LOADED * minutes * 60.0
    left_s = minutes * 60.0 - loaded_s
    count = max(2, round(left_s / WINDOW_S))
    pair = (Window("quiet", QUIET * left_s / count), Window("disturbed", left_s / count))
    return [*pair * count, Window("loaded", loaded_s)]


def kinds(seed: int) -> Iterator[FaultKind]:
    """Return which faults, for ever: each kind once in every four, in an order of chance."""
    chance = random.Random(seed)
    while True:
        yield from chance.sample(KINDS, len(KINDS))
