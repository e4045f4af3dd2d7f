"""Commands: requests to the coordinator. Each may be refused with a `Rejection`."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.accounting.pauses import Pause
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import Dispute, FailingSlots, JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.ps.messages import ServerCommand
from pliant.core.tasks.messages import TaskCommand

SCHEDULED = "scheduled"  # why a checkpoint is saved when its interval is over


@dataclass(frozen=True, slots=True)
class Create:
    """Create a job. For a job that has ended, start another attempt: after a failure, from the last durable step."""

    name: str
    spec: JobSpec
    fresh: bool = False  # from the beginning, not from an earlier attempt's progress
    only_settings: bool = False  # change a job that goes on: create none, and start no attempt of one that has ended


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the target: a number, or an exact placement."""

    target: Target


@dataclass(frozen=True, slots=True)
class GrantWorkers:
    """Let a job in a queue have so many workers. The leader sends it, after `pliant.core.allocate`."""

    size: int
    why: str


@dataclass(frozen=True, slots=True)
class SetPrice:
    """Charge a job in a queue another price for a slot and hour. The leader sends it, from the prices of the pool."""

    price: float


@dataclass(frozen=True, slots=True)
class Advise:
    """Advise another size to a job with `--autoscale`. The leader sends it, after `pliant.core.autoscale`."""

    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Let a member leave at the next boundary, within `grace_s`: on request, after SIGTERM, or after a spot notice."""

    member: MemberId
    grace_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End the job on request. `failed`: an agent found that it cannot start."""

    why: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Join:
    """A worker has built its model and is ready to become a member. It always comes without state.

    `address` is where its peers reach it, as "host:port"; empty: nowhere. `fingerprint` names the software and hardware
    that its results depend on, such as ("torch", "2.13.0"); empty: it is not compared.
    """

    member: MemberId
    agent: AgentId
    terms: Terms
    weight: int = 1
    address: str = ""
    pid: int = 0
    fingerprint: Fingerprint = ()
    age_s: float = 0.0  # since its process started


@dataclass(frozen=True, slots=True)
class Report:
    """Committed steps of `generation`, in order (rules 1, 5, 17).

    `holders` names the members that hold the state, if that changed since this member's last report; None: it did not.
    `finished` is the reason why the job ends with the last of these steps; empty if it does not end early.
    """

    member: MemberId
    rank: int
    generation: int
    lines: tuple[LedgerLine, ...]
    holders: frozenset[MemberId] | None = None
    pauses: tuple[Pause, ...] = ()
    finished: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A member broke its group and applies nothing more in that generation (rule 10).

    `stateless`: the comparison found no member whose state the history can continue from (rule 12). `diverged`: members
    with one history hold different states; `suspects` are those that a majority outvoted. `disputes` concern the step
    in flight.
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
    """The group of a generation could not be built; `peer` is the member that this one could not reach."""

    member: MemberId
    generation: int
    peer: MemberId | None


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised on one of some slots (rule 20). The member stops."""

    failing_slots: FailingSlots


@dataclass(frozen=True, slots=True)
class Leave:
    """A member leaves. `released` is the generation whose first collective let it go; 0: none did."""

    member: MemberId
    released: int
    why: str


@dataclass(frozen=True, slots=True)
class Exited:
    """An agent reports a worker's end: its exit status, negative for a signal (rule 19), and its last error.

    `early`: a launched worker ended soon after its launch, so that it has hardly trained.
    """

    member: MemberId
    code: int
    error: str = ""
    early: bool = False


@dataclass(frozen=True, slots=True)
class Expire:
    """A member's lease expired (rule 19)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class Suspect:
    """A member's watch closed, it did not leave, and no new watch came in time (rule 19)."""

    member: MemberId


@dataclass(frozen=True, slots=True)
class WaitOver:
    """The job waited for members longer than its limit."""


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """An agent offers room for workers; the fields are those of `Agent`.

    For a job in a queue, `started` counts the workers that it started in this run, and `workers` are those that run.
    """

    agent: AgentId
    capacity: int
    address: str = ""
    install_id: str = ""
    run_id: str = ""
    role: str = ""
    started: int = 0
    workers: tuple[MemberId, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentReady:
    """None of the agent's workers runs any more, of launch `generation` or an earlier one. `ports` are free on it."""

    agent: AgentId
    generation: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DrainAgent:
    """Let all members on an agent leave. `immediate`: they need not train until the last moment.

    `leave`: the agent goes too, and starts nothing more. Without it, the agent of a live job replaces its members.
    """

    agent: AgentId
    grace_s: float
    why: str
    immediate: bool = False
    leave: bool = False


@dataclass(frozen=True, slots=True)
class AgentLeave:
    """An agent leaves: its workers have ended or are ending."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class AgentExpire:
    """An agent's lease expired. Its workers have leases of their own."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class AgentSuspect:
    """An agent's watch closed, it did not leave, and no new watch came in time. The workers it launched are gone."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class Publish:
    """A member's part of a checkpoint is written. The last part makes its manifest the newest (rule 17).

    `lines` are the steps up to the checkpoint that are not durable yet, from a member whose time is short while no
    world works. The coordinator commits them with the checkpoint (rule 16).
    """

    member: MemberId
    generation: int
    checkpoint: Checkpoint  # with the pieces of this part only
    part: int = 0
    count: int = 1
    lines: tuple[LedgerLine, ...] = ()


@dataclass(frozen=True, slots=True)
class PartNotWritten:
    """A member's part of a checkpoint will never be written, for instance because its disk is full.

    `split_storage`: all parts were written, but not all to this member's storage, though the locations looked the same.
    """

    member: MemberId
    generation: int
    name: str
    why: str
    split_storage: bool = False


@dataclass(frozen=True, slots=True)
class NotReadable:
    """The member that was to restore the newest checkpoint cannot: it is damaged, or not reachable from there."""

    member: MemberId
    generation: int
    name: str
    why: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Save a checkpoint, on request or because it is due."""

    why: str


Command = (
    Create
    | Resize
    | GrantWorkers
    | SetPrice
    | Advise
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
    | PartNotWritten
    | NotReadable
    | RequestCheckpoint
    | Leave
    | Exited
    | Expire
    | AgentExpire
    | AgentSuspect
    | Suspect
    | WaitOver
    | TaskCommand
    | ServerCommand
)
