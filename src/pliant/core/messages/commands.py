"""Commands: requests to the coordinator. Each may be refused with a `Rejection`."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.accounting.pauses import Pause
from pliant.core.data.ledger import LedgerLine, Lineage
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.job import Dispute, FailingSlots, JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId


@dataclass(frozen=True, slots=True)
class Create:
    """A user asks for a job. If it has ended, for another attempt: after a failure from where it stood."""

    name: str
    spec: JobSpec
    fresh: bool = False  # from the beginning, whatever an attempt before came to


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
    fingerprint: Fingerprint = ()
    age_s: float = 0.0  # of its process


@dataclass(frozen=True, slots=True)
class Report:
    """Committed steps of generation `generation`, in order (rules 1, 5, 17).

    `holders` names who holds the state there, when that changed since this member's last report; None: it did not.
    """

    member: MemberId
    rank: int
    generation: int
    lines: tuple[LedgerLine, ...]
    holders: frozenset[MemberId] | None = None
    pauses: tuple[Pause, ...] = ()


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

    failing_slots: FailingSlots


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


@dataclass(frozen=True, slots=True)
class AgentJoin:
    """An agent offers room for workers; the rest is as in `Agent`."""

    agent: AgentId
    capacity: int
    address: str = ""
    install_id: str = ""
    run_id: str = ""


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
    immediate: bool = False


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


@dataclass(frozen=True, slots=True)
class Publish:
    """A member's part of a checkpoint is written. With the last part its manifest becomes the newest (rule 17)."""

    member: MemberId
    generation: int
    checkpoint: Checkpoint  # with the pieces of this part alone
    part: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class PartNotWritten:
    """A member's part of a checkpoint will never come: its disk is full, say.

    `apart`: all parts were written, and they are not all in that member's place. It looks like another one's.
    """

    member: MemberId
    generation: int
    name: str
    why: str
    split_storage: bool = False


@dataclass(frozen=True, slots=True)
class NotReadable:
    """The member that was to bring the newest checkpoint back cannot: it is damaged, or out of its reach."""

    member: MemberId
    generation: int
    name: str
    why: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """A checkpoint is wanted, by a person or because it is time."""

    why: str


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
)
