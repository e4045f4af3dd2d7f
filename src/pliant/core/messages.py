"""Commands, which ask, and events, which happened.

A command may be refused with a `Rejection`; an event never is. Every event carries the wall-clock time it was
decided at, for people to read; nothing decides by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.agents import AgentDraining as AgentDraining
from pliant.core.agents import AgentExpire as AgentExpire
from pliant.core.agents import AgentGone as AgentGone
from pliant.core.agents import AgentJoin as AgentJoin
from pliant.core.agents import AgentJoined as AgentJoined
from pliant.core.agents import AgentLeave as AgentLeave
from pliant.core.agents import AgentReadied as AgentReadied
from pliant.core.agents import AgentReady as AgentReady
from pliant.core.agents import AgentSuspect as AgentSuspect
from pliant.core.agents import DrainAgent as DrainAgent
from pliant.core.agents import Launched as Launched
from pliant.core.agents import LaunchOver as LaunchOver
from pliant.core.agents import SeatEnded as SeatEnded
from pliant.core.agents import SeatRefilled as SeatRefilled
from pliant.core.checkpoints import AskCheckpoint as AskCheckpoint
from pliant.core.checkpoints import CheckpointAsked as CheckpointAsked
from pliant.core.checkpoints import CheckpointFailed as CheckpointFailed
from pliant.core.checkpoints import CheckpointPublished as CheckpointPublished
from pliant.core.checkpoints import CheckpointUnreadable as CheckpointUnreadable
from pliant.core.checkpoints import NotWritten as NotWritten
from pliant.core.checkpoints import PartWritten as PartWritten
from pliant.core.checkpoints import Publish as Publish
from pliant.core.checkpoints import Unreadable as Unreadable
from pliant.core.differences import Bits
from pliant.core.doubts import SlotDisputed, StatesDiffered
from pliant.core.ledger import Line, Lineage
from pliant.core.model import (
    NEVER,
    AgentId,
    Dispute,
    JobState,
    Member,
    MemberId,
    Mode,
    Poison,
    Saves,
    Target,
    Terms,
    World,
)
from pliant.core.refusals import Code as Code
from pliant.core.refusals import Rejection as Rejection
from pliant.core.spent import Spent

# ---------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class Create:
    """A user asks for a job. If it has ended, for another attempt: after a failure from where it stood."""

    name: str
    size_min: int
    size_max: int
    target: Target
    wait_limit_s: float | None = None
    max_restarts: int = 3
    mode: Mode = Mode.LIVE
    spares: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    saves: Saves = NEVER
    fresh: bool = False  # from the beginning, whatever an attempt before came to
    chaos: bool = False  # whether `pliant chaos` may strike at it


@dataclass(frozen=True, slots=True)
class Resize:
    """A user wants another size, or an exact placement."""

    target: Target


@dataclass(frozen=True, slots=True)
class Drain:
    """A member is to leave at the next boundary, within `grace_s`: a user's word, SIGTERM, or a spot notice."""

    member: MemberId
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """A user ends the job."""

    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """A worker built its model and is ready. It comes without state, always.

    `address` is where its peers reach it, as "host:port"; empty: nowhere. `bits` is what decides which bits it
    computes, such as ("torch", "2.13.0"); empty: nobody compares them.
    """

    member: MemberId
    agent: AgentId
    terms: Terms
    weight: int = 1
    address: str = ""
    pid: int = 0
    bits: Bits = ()
    age_s: float = 0.0  # of its process


@dataclass(frozen=True, slots=True)
class Report:
    """Committed steps of generation `generation`, in order (rules 1, 5, 17).

    `holders` names who holds the state there, when that changed since this member's last report; None: it did not.
    """

    member: MemberId
    rank: int
    generation: int
    lines: tuple[Line, ...]
    holders: frozenset[MemberId] | None = None
    spent: tuple[Spent, ...] = ()


@dataclass(frozen=True, slots=True)
class Stopped:
    """A member broke its group and applies nothing more in that generation (rule 10).

    `stateless` says that the comparison found nobody whose state the history can go on from (rule 12), `diverged` that
    members with one history hold different states; `suspects` are those of them that a majority has outvoted.
    `disputes` are of the step in flight.
    """

    member: MemberId
    generation: int
    lineage: Lineage
    kept: frozenset[int]
    why: str
    peer: MemberId | None = None
    stateless: bool = False
    diverged: bool = False
    suspects: tuple[MemberId, ...] = ()
    disputes: tuple[Dispute, ...] = ()


@dataclass(frozen=True, slots=True)
class WiringFailed:
    """The group of a generation could not be built; `peer` is whom this member could not reach."""

    member: MemberId
    generation: int
    peer: MemberId | None


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised on one of some slots (rule 20); the member stops with it."""

    poison: Poison


@dataclass(frozen=True, slots=True)
class Leave:
    """A member's goodbye. `released` is the generation whose first collective let it go; 0: none did."""

    member: MemberId
    released: int
    why: str


@dataclass(frozen=True, slots=True)
class Exited:
    """An agent's proof of a worker's end: its exit status, negative for a signal (rule 19), and what it said last."""

    member: MemberId
    code: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Expire:
    """A member's lease ran out (rule 19)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Suspect:
    """A member's watch closed without goodbye and did not come back in time (rule 19)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The job waited for members longer than its limit."""


Command = (
    Create
    | Resize
    | Drain
    | DrainAgent
    | Cancel
    | AgentJoin
    | AgentReady
    | AgentLeave
    | Join
    | Report
    | Stopped
    | WiringFailed
    | Raised
    | Publish
    | NotWritten
    | Unreadable
    | AskCheckpoint
    | Leave
    | Exited
    | Expire
    | AgentExpire
    | AgentSuspect
    | Suspect
    | WaitOver
)


# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class JobCreated:
    at: float
    name: str
    size_min: int
    size_max: int
    target: Target
    wait_limit_s: float | None
    max_restarts: int
    mode: Mode = Mode.LIVE
    spares: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    saves: Saves = NEVER
    attempt: int = 1
    onward: bool = False  # from where the attempt before stood
    chaos: bool = False


@dataclass(frozen=True, slots=True)
class TargetChanged:
    at: float
    target: Target


@dataclass(frozen=True, slots=True)
class MemberJoined:
    at: float
    member: Member
    terms: Terms
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberDraining:
    at: float
    member: MemberId
    grace_s: float
    why: str
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class MemberGone:
    """A member's life in the job is over. `how` is `left`, `lost` or `barred`; all three are final."""

    at: float
    member: MemberId
    how: str
    why: str


@dataclass(frozen=True, slots=True)
class WorldFormed:
    at: float
    world: World


@dataclass(frozen=True, slots=True)
class WorldEntered:
    """The first accepted report of a generation made it current (rule 5)."""

    at: float
    generation: int


@dataclass(frozen=True, slots=True)
class WorldBroken:
    """A generation cannot go on. `entered` says whether somebody was in it, so that a recovery is due."""

    at: float
    generation: int
    entered: bool
    why: str
    stateless: bool = False


@dataclass(frozen=True, slots=True)
class PairAccused:
    at: float
    generation: int
    a: MemberId
    b: MemberId


@dataclass(frozen=True, slots=True)
class StepsCommitted:
    """Ledger lines accepted: these steps are durable now (rules 1, 24)."""

    at: float
    generation: int
    reporter: MemberId
    lines: tuple[Line, ...]
    spent: tuple[Spent, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldersChanged:
    at: float
    generation: int
    holders: frozenset[MemberId]


@dataclass(frozen=True, slots=True)
class SlotRaised:
    at: float
    poison: Poison


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker exited non-zero by itself; counts against `max_restarts`."""

    at: float
    member: MemberId
    code: int


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The job's state, or the reason for it, is another one."""

    at: float
    state: JobState
    why: str


Event = (
    JobCreated
    | TargetChanged
    | AgentJoined
    | AgentReadied
    | AgentDraining
    | AgentGone
    | Launched
    | SeatEnded
    | SeatRefilled
    | LaunchOver
    | MemberJoined
    | MemberDraining
    | MemberGone
    | WorldFormed
    | WorldEntered
    | WorldBroken
    | StatesDiffered
    | SlotDisputed
    | PairAccused
    | StepsCommitted
    | HoldersChanged
    | CheckpointPublished
    | PartWritten
    | CheckpointAsked
    | CheckpointFailed
    | CheckpointUnreadable
    | SlotRaised
    | WorkerFailed
    | StateChanged
)
