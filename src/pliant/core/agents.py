"""What agents say, what happens to them, and to the workers they launch together.

Commands first, then events, as in `messages`, which has the rest and is where others find these, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model import AgentId, End, Launch, MemberId


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """An agent offers room for workers; the rest is as in `Agent`."""

    agent: AgentId
    capacity: int
    address: str = ""
    home: str = ""
    life: str = ""


@dataclass(frozen=True, slots=True)
class AgentReady:
    """None of that agent's workers runs any more, of launch `generation` or any before; here are free ports."""

    agent: AgentId
    generation: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrainAgent:
    """Everybody on that agent is to leave; `at_once`: they need not train on until the last moment."""

    agent: AgentId
    grace_s: float
    why: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class AgentLeave:
    """An agent says goodbye: its workers are gone or going."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class AgentExpire:
    """An agent's lease ran out. That says nothing about its workers, which have leases of their own."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class AgentSuspect:
    """An agent's watch closed without goodbye and did not come back in time: with it went what it had launched."""

    agent: AgentId


# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class AgentJoined:
    at: float
    agent: AgentId
    capacity: int
    address: str = ""
    home: str = ""
    life: str = ""


@dataclass(frozen=True, slots=True)
class AgentReadied:
    at: float
    agent: AgentId
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AgentDraining:
    """That agent gets no seat any more: its machine goes, or somebody asked for it."""

    at: float
    agent: AgentId
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class AgentGone:
    at: float
    agent: AgentId
    why: str
    lost: bool = False  # it did not say goodbye


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch is formed; its agents start their seats."""

    at: float
    launch: Launch


@dataclass(frozen=True, slots=True)
class SeatEnded:
    at: float
    generation: int
    end: End


@dataclass(frozen=True, slots=True)
class SeatRefilled:
    """Another worker takes the seat of one that ended: same rank, same address, and nobody else is disturbed."""

    at: float
    generation: int
    rank: int
    member: MemberId


@dataclass(frozen=True, slots=True)
class LaunchOver:
    """Every worker of a launch is to be stopped; the next one forms when all are."""

    at: float
    generation: int
    why: str
