"""What travels between a client and a coordinator besides the core's own commands and events.

A command of the core is sent as it is: its class is the body of its route. Here is the rest: signs of life, tokens,
and every kind of answer. All of it is frozen dataclasses that `pliant.wire.codec` can carry, and `openapi` describe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import get_args

import msgspec

from pliant.core.data.ledger import Lineage
from pliant.core.messages import Event
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState
from pliant.wire.codec import Codec

PROTOCOL = "1"
"""Sent with every answer; a client that sees another one, or none, is not talking to us."""

PROTOCOL_HEADER = "pliant-protocol"
STORE_HEADER = "pliant-store"
"""The store's identity. A client sends back the one it knows: revisions compare only within one store."""

IN_DOUBT = "in-doubt"
"""The code of a problem after which nobody knows whether it was done: look before asking again."""

EVENTS: Codec[Event] = Codec(get_args(Event))


class Scope(StrEnum):
    """What a credential is good for. `public` is of routes alone: no credential has it."""

    PUBLIC = "public"
    READ = "read"
    JOIN = "join"
    ADMIN = "admin"

    def covers(self, wanted: Scope) -> bool:
        """Whether a credential of this scope opens a route that wants that one."""
        return wanted in _COVERS[self]


_COVERS = {
    Scope.PUBLIC: frozenset({Scope.PUBLIC}),
    Scope.READ: frozenset({Scope.PUBLIC, Scope.READ}),
    Scope.JOIN: frozenset({Scope.PUBLIC, Scope.READ, Scope.JOIN}),
    Scope.ADMIN: frozenset(Scope),
}

# -------------------------------------------------------------------------------------------- what is asked


@dataclass(frozen=True, slots=True)
class Renew:
    """A member is alive. It knows the job up to `revision`, and is told only what is newer."""

    member: MemberId
    revision: int = -1


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """What a worker and all it started take of its machine: cores, and bytes of memory."""

    member: MemberId
    pid: int
    cpu: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class RenewAgent:
    """An agent is alive. It knows the job up to `revision`; `uses` is for people, and kept in memory only."""

    agent: AgentId
    revision: int = -1
    usage: tuple[WorkerUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A new token: what for, for which job (none: all of them), and for how long (none: until it is revoked)."""

    scope: Scope
    job: str | None = None
    ttl_s: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class TokenRevocation:
    """A token is to end in `after_s`; 0 is now. Never later than it would have ended anyway."""

    id: str
    after_s: float = 0.0


# ------------------------------------------------------------------------------------------ what is answered


@dataclass(frozen=True, slots=True)
class Done:
    """Accepted and durable, or nothing to do: the job is at this revision.

    A member that reports or renews is told with it how much of the history is durable by now.
    """

    revision: int
    durable: Lineage | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Not done. `code` is for programs, `why` for people; `revision` is what a refusal rests on, 0 if on none."""

    code: str
    why: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether this coordinator decides. Said to everybody, so it says nothing else."""

    ok: bool


@dataclass(frozen=True, slots=True)
class About:
    """Who answers, and how it sees whoever asks: the scope of its credential, and the job that is bound to.

    `leads` says whether this coordinator decides, and `why` why it does not.
    """

    version: str
    protocol: str
    store: str
    leads: bool
    why: str
    lease_ttl_s: float
    scope: Scope
    job: str | None
    now: float = 0.0  # its wall clock, so that one that is off is noticed; nothing decides by it


@dataclass(frozen=True, slots=True)
class JobLine:
    """One job in a list."""

    name: str
    state: JobState
    why: str
    members: int
    size: int  # of the current world
    target: int
    size_min: int
    size_max: int
    generation: int
    step: int
    total_steps: int | None
    epoch: int  # of the next step to be committed, from 0 on; at the end the last one's
    revision: int


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs by name."""

    jobs: tuple[JobLine, ...]


@dataclass(frozen=True, slots=True)
class MemberLine:
    """One member; `rank` is None outside the current world, `pid` and `number` 0 where they are not known.

    `cpu` (cores) and `rss_bytes` are what its agent last saw of its process and all it started; None: it said nothing.
    """

    id: MemberId
    state: MemberState
    rank: int | None
    agent: AgentId
    number: int
    pid: int
    why: str
    cpu: float | None = None
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One agent: its room, how many workers it should run, how many members live on it, and where it is."""

    id: AgentId
    capacity: int
    wanted: int
    members: int
    address: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class JobStatus:
    """All a person wants to know of a job."""

    job: JobLine
    spec: JobSpec
    target: Target  # now; `spec.target` is the one it started with
    failures: int
    broken: str
    members: tuple[MemberLine, ...]
    agents: tuple[AgentLine, ...]
    durable: Lineage
    checkpoint: Checkpoint | None
    live: bool = True  # whether its workers are members themselves
    attempt: int = 1
    older_checkpoints: tuple[Checkpoint, ...] = ()  # kept ones before the newest
    checkpoint_wanted: bool = False  # a checkpoint is wanted and not written yet
    created_at: float = 0.0  # the time of its first attempt


@dataclass(frozen=True, slots=True)
class Orders:
    """The answer to an agent's watch: how many workers to run, whom the job counts on there, who drains.

    While the job is not `live` the launch says what to run. `ready` and `leaving` are how this agent stands with it.
    """

    revision: int
    state: JobState
    why: str
    workers: int
    members: frozenset[MemberId]
    draining: frozenset[MemberId]
    live: bool = True
    launch: Launch | None = None
    ready: tuple[int, ...] = ()  # the ports it said; none: it has not
    leaving: bool = False
    grace_s: float = 0.0  # how long that may take
    install_id: str = ""  # of the agent that is known by that name: another one may have taken it
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """What is known of a token; never the token."""

    id: str
    scope: Scope
    job: str | None
    label: str
    made_at: float
    ends_at: float | None
    ended: bool


@dataclass(frozen=True, slots=True)
class TokenList:
    """Tokens, oldest first."""

    tokens: tuple[TokenLine, ...]


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token. This is the only time it is told: the coordinator keeps a hash."""

    token: str = field(repr=False)
    line: TokenLine


class EventLine(msgspec.Struct, frozen=True):
    """One event of a job and its place in the job's stream; decode `event` with `EVENTS`."""

    revision: int
    event: msgspec.Raw


class EventPage(msgspec.Struct, frozen=True):
    """Events in order, without a gap after the revision asked for. Empty: there are no more yet."""

    events: tuple[EventLine, ...]
