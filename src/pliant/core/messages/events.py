"""Events: the decisions of the coordinator, in order.

An event is never refused. It carries the wall-clock time of its decision for people; no decision depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.accounting.pauses import Pause
from pliant.core.data.ledger import LedgerLine
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import Disputed, FailingSlots, JobSpec, JobState, Member, Target, Terms
from pliant.core.model.launch import Launch, SeatEnd
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World
from pliant.core.ps.messages import ServerEvent
from pliant.core.tasks.messages import TaskEvent


@dataclass(frozen=True, slots=True)
class JobCreated:
    at: float
    name: str
    spec: JobSpec
    attempt: int = 1
    resumes: bool = False  # from the last durable step of the attempt before


@dataclass(frozen=True, slots=True)
class SettingsChanged:
    """The settings of a job that has not ended changed. `what` names them, with both values."""

    at: float
    spec: JobSpec
    target: Target
    what: str


@dataclass(frozen=True, slots=True)
class TargetChanged:
    """Another number of workers is wanted. `why` is empty if a person asked for it."""

    at: float
    target: Target
    why: str = ""


@dataclass(frozen=True, slots=True)
class Granted:
    """The pool grants a job in a queue so many workers, or the reason for their number changed."""

    at: float
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class PriceChanged:
    """From now on a slot of the pool costs a job in a queue so much for an hour."""

    at: float
    price: float


@dataclass(frozen=True, slots=True)
class Advised:
    """Another size was advised, from the job's own history. `applied`: the target changes; else this is all."""

    at: float
    size: int
    why: str
    applied: bool


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
    immediate: bool = False


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
    """A generation cannot go on. `entered`: members were in it, so a recovery is due."""

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
    """Ledger lines were accepted: these steps are durable (rules 1, 24)."""

    at: float
    generation: int
    reporter: MemberId
    lines: tuple[LedgerLine, ...]
    pauses: tuple[Pause, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldersChanged:
    at: float
    generation: int
    holders: frozenset[MemberId]


@dataclass(frozen=True, slots=True)
class SlotRaised:
    at: float
    failing_slots: FailingSlots


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """A worker exited non-zero by itself; counts against `max_restarts`."""

    at: float
    member: MemberId
    code: int


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The job's state, or the reason for it, changed.

    `ends_as` is the final state of a job that is stopping. `last_step` is set if user code finished the job early.
    """

    at: float
    state: JobState
    why: str
    ends_as: JobState | None = None
    last_step: int | None = None


@dataclass(frozen=True, slots=True)
class AgentJoined:
    at: float
    agent: AgentId
    capacity: int
    address: str = ""
    install_id: str = ""
    run_id: str = ""
    role: str = ""
    started: int = 0
    workers: tuple[MemberId, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkersPermitted:
    """An agent of a job in a queue may start these workers. Each occupies a slot from now on."""

    at: float
    agent: AgentId
    workers: tuple[MemberId, ...]


@dataclass(frozen=True, slots=True)
class PermitReturned:
    """The process of a permitted worker has ended, or its agent does not start it."""

    at: float
    worker: MemberId


@dataclass(frozen=True, slots=True)
class AgentReadied:
    at: float
    agent: AgentId
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AgentDraining:
    """The agent gets no seats any more: its machine goes away, or a user drained it."""

    at: float
    agent: AgentId
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class AgentGone:
    at: float
    agent: AgentId
    why: str
    lost: bool = False  # it ended without leaving


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch was formed; its agents start their seats."""

    at: float
    launch: Launch


@dataclass(frozen=True, slots=True)
class SeatEnded:
    at: float
    generation: int
    end: SeatEnd


@dataclass(frozen=True, slots=True)
class SeatRefilled:
    """Another worker takes the seat of one that ended, with the same rank and address. No other worker is disturbed."""

    at: float
    generation: int
    rank: int
    member: MemberId


@dataclass(frozen=True, slots=True)
class LaunchOver:
    """All workers of a launch are to be stopped. The next launch forms when they are."""

    at: float
    generation: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    at: float
    generation: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class PartWritten:
    """One member's part of a checkpoint is written; other parts are missing."""

    at: float
    generation: int
    member: MemberId
    checkpoint: Checkpoint
    part: int
    count: int


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    at: float
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """`split_storage`: members save to different locations. From then on one member writes the whole checkpoint."""

    at: float
    generation: int
    name: str
    member: MemberId
    why: str
    split_storage: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointUnreadable:
    """A damaged checkpoint is never restored. Another member may restore one out of this member's reach."""

    at: float
    generation: int
    name: str
    member: MemberId
    why: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class StatesDiffered:
    """Members of a generation hold different states of one history, after that step.

    `rolls_back`: no member's state can be trusted; the job goes back to the last state that all agreed on.
    """

    at: float
    generation: int
    step: int
    suspects: tuple[MemberId, ...]
    rolls_back: bool
    why: str


@dataclass(frozen=True, slots=True)
class SlotDisputed:
    """Two members computed different gradients for one slot. Nothing of that step was applied."""

    at: float
    disputed: Disputed


Event = (
    JobCreated
    | SettingsChanged
    | TargetChanged
    | Granted
    | PriceChanged
    | Advised
    | WorkersPermitted
    | PermitReturned
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
    | CheckpointRequested
    | CheckpointFailed
    | CheckpointUnreadable
    | SlotRaised
    | WorkerFailed
    | StateChanged
    | TaskEvent
    | ServerEvent
)
