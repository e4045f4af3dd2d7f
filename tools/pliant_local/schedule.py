"""The number of agents over time: parse a schedule, and decide which agents to add and remove.

"0:2,10:4,20:1"     two agents at first, four from second 10 on, one from second 20 on
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pliant.errors import BadInput

AGENTS_MAX = 64
AGENTS = 2  # default
EXAMPLE = '"0:2,10:4,20:1": 2 agents at first, 4 from second 10 on, 1 from second 20 on'

_POINT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*:\s*([0-9]+)\s*", re.ASCII)
_NAME = re.compile(r"agent-([1-9][0-9]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class SchedulePoint:
    """The number of agents from a time on."""

    at_s: float
    agents: int


@dataclass(frozen=True, slots=True)
class AgentChange:
    """Names of agents to start and to remove, in this order."""

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()


def parse(text: str) -> tuple[SchedulePoint, ...]:
    """Parse a schedule. Raises BadInput with the wrong part and a correct example."""
    points: list[SchedulePoint] = []
    for part in text.split(","):
        found = _POINT.fullmatch(part)
        if found is None:
            raise BadInput(f"{part.strip()!r} is not SECOND:AGENTS. Example: {EXAMPLE}.")
        point = SchedulePoint(float(found[1]), int(found[2]))
        if point.agents > AGENTS_MAX:
            raise BadInput(f"{part.strip()!r} has {point.agents} agents; at most {AGENTS_MAX} are possible.")
        if points and point.at_s <= points[-1].at_s:
            raise BadInput(f"{part.strip()!r} is not after {points[-1].at_s:g} s. Times must increase.")
        points.append(point)
    return tuple(points)


def plan(agents: int | None, text: str | None) -> tuple[SchedulePoint, ...]:
    """Combine --agents and --agent-schedule into a schedule that starts at second 0."""
    points = parse(text) if text is not None else ()
    starts = bool(points) and points[0].at_s == 0
    if starts and agents is not None and agents != points[0].agents:
        raise BadInput(f"--agents is {agents}, but the schedule begins with {points[0].agents}. Drop one of them.")
    if agents is not None and not 1 <= agents <= AGENTS_MAX:
        raise BadInput(f"--agents must be from 1 to {AGENTS_MAX}, got {agents}.")
    if not starts:
        points = (SchedulePoint(0.0, AGENTS if agents is None else agents), *points)
    if not any(point.agents for point in points):
        raise BadInput(f"The schedule never has an agent. Example: {EXAMPLE}.")
    return points


def due(points: Sequence[SchedulePoint], after_s: float, now_s: float) -> int | None:
    """Return the number of agents set by the last point in (after_s, now_s]; None without one."""
    found = [point.agents for point in points if after_s < point.at_s <= now_s]
    return found[-1] if found else None


def next_at(points: Sequence[SchedulePoint], now_s: float) -> float | None:
    """Return the time of the next point; None without one."""
    return next((point.at_s for point in points if point.at_s > now_s), None)


def agent_change(wanted: int, present: Sequence[str], known: Iterable[str]) -> AgentChange:
    """Return the agents to start or remove for `wanted` agents; the newest are removed first.

    `present` are the agents that are not leaving, oldest first. `known` are all there ever were: names are not reused.
    """
    if wanted <= len(present):
        return AgentChange(remove=tuple(reversed(present[wanted:])))
    last = max((number_of(name) for name in (*known, *present)), default=0)
    return AgentChange(add=tuple(f"agent-{last + more}" for more in range(1, wanted - len(present) + 1)))


def number_of(name: str) -> int:
    """Return the number in an agent's name; 0 for other names."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0
