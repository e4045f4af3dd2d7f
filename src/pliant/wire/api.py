"""Messages between a client and a coordinator, besides the core's own commands and events.

A command of the core is sent as it is: its class is the body of its route. This module has the rest: renewals, tokens,
and all answers. They are frozen dataclasses that `pliant.wire.codec` encodes and `openapi` describes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import get_args

import msgspec

from pliant.core.allocate import Pool
from pliant.core.allocate.machines import LentMachine
from pliant.core.data.ledger import Lineage
from pliant.core.messages import Event
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.job import JobSpec, JobState, Target
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import MemberState
from pliant.core.submissions import Submission, SubmissionState
from pliant.core.tasks.model import HeldShard
from pliant.wire.codec import Codec
from pliant.wire.protocol import VERSION

PROTOCOL = str(VERSION)
PROTOCOL_HEADER = "pliant-protocol"
"""Sent with every request and answer. A client that receives none is not connected to a coordinator."""

STORE_HEADER = "pliant-store"
LEADER_HEADER = "pliant-leader"  # of an answer with status 503: the URL of the coordinator that leads
CHALLENGE_HEADER = "pliant-challenge"  # of a request to /healthz: the id of a token and a nonce, separated by a space
PROOF_HEADER = "pliant-proof"  # of its answer: `pliant.credentials.proof`, or UNKNOWN_TOKEN
UNKNOWN_TOKEN = "unknown"
"""The store's identity. A client sends it back, since revisions compare only within one store."""

IN_DOUBT = "in-doubt"
"""The code of a problem after which the command may or may not be done: read before sending it again."""

EVENTS: Codec[Event] = Codec(get_args(Event))


class Scope(StrEnum):
    """The permission of a credential. `public` is for routes only: no credential has it."""

    PUBLIC = "public"
    READ = "read"
    JOIN = "join"
    SUBMIT = "submit"
    ADMIN = "admin"

    def covers(self, wanted: Scope) -> bool:
        """Return whether a credential of this scope may use a route that requires `wanted`."""
        return wanted in _COVERS[self]


_COVERS = {
    Scope.PUBLIC: frozenset({Scope.PUBLIC}),
    Scope.READ: frozenset({Scope.PUBLIC, Scope.READ}),
    Scope.JOIN: frozenset({Scope.PUBLIC, Scope.READ, Scope.JOIN}),
    Scope.SUBMIT: frozenset({Scope.PUBLIC, Scope.READ, Scope.SUBMIT}),
    Scope.ADMIN: frozenset(Scope),
}

# ------------------------------------------------------------------------------------------------ requests


@dataclass(frozen=True, slots=True)
class Renew:
    """A member renews its lease. It has the job up to `revision`; the answer contains only newer news."""

    member: MemberId
    revision: int = -1


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """Resources that a worker and its child processes use: cores, and bytes of memory."""

    member: MemberId
    pid: int
    cpu: float
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class RenewAgent:
    """An agent renews its lease. It has the job up to `revision`.

    `usage` has every worker process that runs. It is for people and for the pool, and kept in memory only.
    """

    agent: AgentId
    revision: int = -1
    usage: tuple[WorkerUsage, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """Create a token: its scope, its job (None: all jobs), and its time to live (None: until it is revoked).

    With `until_job_ends` it is valid while its job goes on, and an hour longer, so that workers can save and leave.
    With `cert` it is accepted only beside a client certificate of that name.
    """

    scope: Scope
    job: str | None = None
    ttl_s: float | None = None
    label: str = ""
    until_job_ends: bool = False
    cert: str | None = None


@dataclass(frozen=True, slots=True)
class TokenRevocation:
    """Revoke a token in `after_s` seconds; 0: now. It never extends a token's life."""

    id: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SubmissionStop:
    """A request to stop the job of a submission and to delete it. Its workers save and leave; checkpoints stay."""

    why: str = "the client asked to stop it"


@dataclass(frozen=True, slots=True)
class SubmissionReport:
    """The operator's report about a submission: its state, the reason, its job, and one line about that job."""

    number: int
    state: SubmissionState
    why: str = ""
    job: str = ""
    status: str = ""


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """The operator's metrics in Prometheus' text format. All names begin with `pliant_operator_`."""

    text: str


# ------------------------------------------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True)
class Done:
    """Accepted and durable, or nothing to do: the job is at this revision.

    `durable` is the end of the durable history, in answers to a member's report or renewal. `shards` are all that the
    sender holds, in answers to a member of a task queue.
    """

    revision: int
    durable: Lineage | None = None
    shards: tuple[HeldShard, ...] | None = None


@dataclass(frozen=True, slots=True)
class JobDeletion:
    """A request to delete an ended job; if `ended_before` is given, only if it ended before that time."""

    ended_before: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """Not done. `code` is for programs, `why` for people; `revision` is what a refusal is based on, 0 for none."""

    code: str
    why: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Health:
    """The answer of the public routes: `ok` if this coordinator leads, or also if it stands by, and nothing else."""

    ok: bool


@dataclass(frozen=True, slots=True)
class About:
    """This coordinator, and the scope and job of the caller's credential.

    `leads`: this coordinator decides; if it does not, `why` is the reason.
    """

    version: str
    protocol: str
    store: str
    leads: bool
    why: str
    lease_ttl_s: float
    scope: Scope
    job: str | None
    now: float = 0.0  # its wall clock, to detect clock differences; no decision uses it
    leader: str = ""  # URL of the coordinator that leads, if that is another one and its URL is known


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
    epoch: int  # of the next step to commit, from 0; after the last step, of that one
    revision: int
    since: float = 0.0  # the time at which it entered this state; 0: unknown
    warning: str = ""  # why the state may be out of date; empty: it is not


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs by name. `next` begins the next page; it is empty after the last job."""

    jobs: tuple[JobLine, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class MemberLine:
    """One member; `rank` is None outside the current world, `pid` None if unknown, `number` 0 if unknown.

    `cpu` (cores) and `rss_bytes` are the usage of its process and its children, as its agent last reported; None:
    unknown.
    """

    id: MemberId
    state: MemberState
    rank: int | None
    agent: AgentId
    number: int
    pid: int | None
    why: str
    cpu: float | None = None
    rss_bytes: int | None = None
    holds: bool = False  # the state of the training, by the latest report


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One agent: its capacity, the workers it should run, the members on it, its address, and its only role if any."""

    id: AgentId
    capacity: int
    wanted: int
    members: int
    address: str = ""
    draining: bool = False
    role: str = ""
    grace_s: float = 0.0  # the time it has to leave, once it is draining


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a task queue, in shards."""

    done: int
    total: int
    held: int
    returned: int
    attempts: int
    evaluations: int
    epoch: int
    awaits_records: bool = False  # the data may still grow


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The status of a job, for people."""

    job: JobLine
    spec: JobSpec
    target: Target  # the current one; `spec.target` is the initial one
    failures: int
    broken: str
    members: tuple[MemberLine, ...]
    agents: tuple[AgentLine, ...]
    durable: Lineage
    checkpoint: Checkpoint | None
    live: bool = True  # its workers are members themselves
    attempt: int = 1
    older_checkpoints: tuple[Checkpoint, ...] = ()  # kept ones before the newest
    checkpoint_wanted: bool = False  # a checkpoint is wanted and not written yet
    created_at: float = 0.0  # the time of its first attempt
    granted: int | None = None  # the workers that the pool grants; None: the job is in no queue
    granted_why: str = ""
    advised: int = 0  # the size that autoscaling advised last; 0: none, or the target changed since
    advised_why: str = ""
    tasks: TaskProgress | None = None  # None: it is no task queue
    price: float = 0.0  # that it pays for a slot of the pool and hour
    tables_whole: bool = True  # every row of parameter servers has its copies, and none moves
    spent: float = 0.0  # so far, in all attempts of its history


@dataclass(frozen=True, slots=True)
class SubmissionLine:
    """A submission without its contents. `job` is the name of its job here, `status` one line about that job.

    Both are empty until an operator has created the job.
    """

    number: int
    task: str
    state: SubmissionState
    why: str
    job: str
    status: str
    made_at: float


@dataclass(frozen=True, slots=True)
class OpenSubmission:
    """A submission for the operator. `wanted` is there until the operator has taken it up."""

    line: SubmissionLine
    wanted: Submission | None = None


@dataclass(frozen=True, slots=True)
class SubmissionList:
    """The submissions that are not over, oldest first."""

    submissions: tuple[OpenSubmission, ...]


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One job that shares the pool. `held` are the slots that its workers may occupy, `position` is 0 if it runs."""

    name: str
    queue: str
    priority: int
    size_min: int
    wanted: int
    granted: int
    held: int
    position: int
    reason: str
    why: str
    spent: float = 0.0
    at_most_cost: float | None = None
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The pool, None if none was set, the jobs that share it, those with workers first, and the lent machines."""

    pool: Pool | None
    jobs: tuple[QueueLine, ...]
    machines: tuple[LentMachine, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """The slots that the nodes of a Kubernetes cluster lend to the pool now."""

    slots: int


@dataclass(frozen=True, slots=True)
class SlotOrder:
    """The job whose agent should run in a slot of a lent machine, with its script; empty: none should."""

    job: str = ""
    script: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineOrders:
    """The answer to the report of a lent machine, for each of its slots."""

    slots: tuple[SlotOrder, ...]


@dataclass(frozen=True, slots=True)
class Orders:
    """The answer to an agent's watch: the number of workers to run, its members, and which of them drain.

    While the job is not `live`, the launch defines what to run. `ready` and `leaving` are this agent's own state.
    """

    revision: int
    state: JobState
    why: str
    workers: int
    members: frozenset[MemberId]
    draining: frozenset[MemberId]
    live: bool = True
    launch: Launch | None = None
    ready: tuple[int, ...] = ()  # its free ports; empty: it has not reported ready
    leaving: bool = False
    grace_s: float = 0.0  # the time it has to leave
    install_id: str = ""  # of the agent registered under this name, which may be another one
    run_id: str = ""
    permitted: int | None = None  # workers that it may start in this run in all; None: the job is in no queue


@dataclass(frozen=True, slots=True)
class TokenLine:
    """A token's properties, without its secret."""

    id: str
    scope: Scope
    job: str | None
    label: str
    made_at: float
    ends_at: float | None
    ended: bool
    until_job_ends: bool = False
    cert: str | None = None


@dataclass(frozen=True, slots=True)
class TokenList:
    """Tokens, oldest first."""

    tokens: tuple[TokenLine, ...]


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token. The secret is sent only here: the coordinator keeps a hash."""

    token: str = field(repr=False)
    line: TokenLine


class EventLine(msgspec.Struct, frozen=True):
    """One event of a job and its revision; decode `event` with `EVENTS`."""

    revision: int
    event: msgspec.Raw


class EventPage(msgspec.Struct, frozen=True):
    """Events in order, without a gap after the requested revision. Empty: no more yet."""

    events: tuple[EventLine, ...]
