"""How many agents there are to be, and when: a schedule's text, and what follows from it. Pure.

"0:2,10:4,20:1"     two agents at first, four from second 10 on, one from second 20 on
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.errors import BadInput

AGENTS_MAX = 64
AGENTS = 2  # if nobody says how many
EXAMPLE = '"0:2,10:4,20:1": 2 agents at first, 4 from second 10 on, 1 from second 20 on'

_POINT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*:\s*([0-9]+)\s*", re.ASCII)
_NAME = re.compile(r"agent-([1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Point:
    """From this second on there are to be so many agents."""

    at_s: float
    agents: int


@dataclass(frozen=True, slots=True)
class Change:
    """Whom to start, in this order, and whom to let leave, in this one."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def parse(text: str) -> tuple[Point, ...]:
    """What a schedule says. BadInput names the part that is wrong, and what is right."""
    points: list[Point] = []
    for part in text.split(","):
        found = _POINT.fullmatch(part)
        if found is None:
            raise BadInput(f"{part.strip()!r} is not SECOND:AGENTS. A schedule is like {EXAMPLE}.")
        point = Point(float(found[1]), int(found[2]))
        if point.agents > AGENTS_MAX:
            raise BadInput(f"{part.strip()!r} wants {point.agents} agents; there are {AGENTS_MAX} at most.")
        if points and point.at_s <= points[-1].at_s:
            raise BadInput(f"{part.strip()!r} is not later than {points[-1].at_s:g} s: a schedule goes on in time.")
        points.append(point)
    return tuple(points)


def plan(agents: int | None, text: str | None) -> tuple[Point, ...]:
    """The schedule of a whole run, its first point at second 0. `agents` and `text` are what the command line says."""
    points = parse(text) if text is not None else ()
    starts = bool(points) and points[0].at_s == 0
    if starts and agents is not None and agents != points[0].agents:
        raise BadInput(
            f"--agents says {agents}, and the schedule begins with {points[0].agents}. Leave one of the two out."
        )
    if agents is not None and not 1 <= agents <= AGENTS_MAX:
        raise BadInput(f"--agents takes a number from 1 to {AGENTS_MAX}, not {agents}.")
    if not starts:
        points = (Point(0.0, AGENTS if agents is None else agents), *points)
    if not any(point.agents for point in points):
        raise BadInput(f"This schedule never has an agent. One that has is {EXAMPLE}.")
    return points


def due(points: Sequence[Point], after_s: float, now_s: float) -> int | None:
    """How many agents there are to be by what came after one moment and up to another; None: nothing came."""
    found = [point.agents for point in points if after_s < point.at_s <= now_s]
    return found[-1] if found else None


def next_at(points: Sequence[Point], now_s: float) -> float | None:
    """When the schedule has something to say again."""
    return next((point.at_s for point in points if point.at_s > now_s), None)


def change(wanted: int, present: Sequence[str], known: Iterable[str]) -> Change:
    """How to get to so many. `present` are those that are there and stay so far, oldest first; the newest leave first.

    `known` are all that ever were: a name is never given twice.
    """
    if wanted <= len(present):
        return Change(remove=tuple(reversed(present[wanted:])))
    last = max((number_of(name) for name in (*known, *present)), default=0)
    return Change(add=tuple(f"agent-{last + more}" for more in range(1, wanted - len(present) + 1)))


def number_of(name: str) -> int:
    """The number in an agent's name; 0 if it is none of ours."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0
