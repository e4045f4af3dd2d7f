"""The state of a job: values, and properties that read them.

`Job` is everything the coordinator decides on. It is small and frozen, only `pliant.core.job.evolve` changes it, and
the event log rebuilds all of it. Leases and timeouts are not part of it: they live in the coordinator's memory and
start again after a restart (rule 19), so none of their times is stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from pliant.core.data.grid import Changes, Grid
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.model.checkpoint import NO_POLICY, Checkpoint, CheckpointPolicy, UnfinishedCheckpoint
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World
from pliant.core.policy.schedule import Schedule, scheduled_size
from pliant.core.ps.model import SERVERS_MAX, ServerTable
from pliant.core.tasks.model import TaskState

HOUR_S = 3600.0


class JobState(StrEnum):
    """The state of a job; the last three are final. A stopping job saves its state, and then is failed or cancelled."""

    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})


class Mode(StrEnum):
    """The effect of a membership change on workers.

    `live`: they go on. `tasks`: they go on, each at its own pace, with shards of a task queue. `relaunch`: all of them
    are started again. `auto`: as `relaunch`, until a worker joins by itself; from then on as `live` or `tasks`.
    """

    AUTO = "auto"
    LIVE = "live"
    RELAUNCH = "relaunch"
    TASKS = "tasks"


class Autoscale(StrEnum):
    """The use of advice about the size of a job: none is given, it is only recorded, or it changes the target."""

    OFF = "off"
    ADVISE = "advise"
    ON = "on"


@dataclass(frozen=True, slots=True)
class Target:
    """The number of workers wanted, or an exact count for each agent.

    `placement` is a tuple of (agent, count) pairs, and `size` their sum. It is empty when only the number matters.
    """

    size: int
    placement: tuple[tuple[AgentId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The settings of a job, as its owner chose them.

    `Job.target` holds the current target, which a resize changes.
    """

    size_min: int
    size_max: int
    target: Target | None = None  # at the start; None: size_max
    wait_limit_s: float | None = None  # the job fails after waiting this long for members; None: never
    max_restarts: int = 3  # the job fails when more workers than this fail by themselves
    mode: Mode = Mode.LIVE
    spares: int = 0  # live workers beyond the target, kept warm
    roles: tuple[tuple[str, int], ...] = ()  # (role, count) of the seats of a launch that are not plain workers
    checkpoints: CheckpointPolicy = NO_POLICY
    chaos_allowed: bool = False  # `pliant chaos` may inject faults
    queue: str = ""  # the queue of the pool that grants its workers; empty: none, and it takes what its agents have
    priority: int = 0  # among the jobs of the pool, higher first
    schedule: Schedule = ()  # the target from a step on, as (step, size); empty: the target stays
    autoscale: Autoscale = Autoscale.OFF
    at_most_cost: float | None = None  # in the currency of the pool's prices; None: no limit
    deadline: float | None = None  # the time by which it should end; None: it has none
    suspended: bool = False  # in a queue: it wants no worker, and those that it has leave
    sizes: tuple[int, ...] = ()  # in a queue: the only numbers of workers that it uses; empty: all
    unit: int = 1  # in a queue: the number of workers that come and go together, as in one pod
    script: tuple[str, ...] = ()  # the script that lent machines run for it, and its arguments; empty: none do

    @property
    def initial_target(self) -> Target:
        return self.target_at(0)

    def target_at(self, step: int) -> Target:
        """Return the target that the settings name for a job whose history reached `step`."""
        size = scheduled_size(self.schedule, step)
        return self.target or Target(self.size_max) if size is None else Target(size)


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings that every member of a job must have equal before it may join.

    `extra` has the user's own settings, as (name, value) pairs such as ("order", "shuffled").
    """

    grid: Grid
    seed: int
    checkpoint_every: int = 0  # steps between checkpoints; 0: only when the protocol needs one
    extra: tuple[tuple[str, str], ...] = ()
    verify: int = 0  # steps between comparisons of the members' state hashes; 0: never
    encrypted: bool | None = None  # members encrypt what they send one another; None: not known, and not compared

    def can_continue(self, before: Terms) -> bool:
        """Return whether a history that began with `before` can go on with these terms, once no member is left.

        The length of the job and the intervals may change. Everything that the computed steps depend on may not.
        """
        grid = replace(self.grid, epochs=before.grid.epochs, max_steps=before.grid.max_steps)
        same = (replace(grid, changes=before.grid.changes), self.seed) == (before.grid, before.seed)
        return same and dict(self.extra) == dict(before.extra)

    def with_changes(self, changes: Changes) -> Terms:
        """Return the terms of a history with these changes of the batch. Members join without any."""
        return self if self.grid.changes == changes else replace(self, grid=replace(self.grid, changes=changes))


@dataclass(frozen=True, slots=True)
class StateDivergence:
    """Members of `generation` held different states after `step`."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True)
class Dispute:
    """Two members computed the same slot of a step from the same state, and their gradients differ."""

    slot: int
    a: MemberId
    b: MemberId


@dataclass(frozen=True, slots=True)
class Disputed:
    """A recorded dispute. The coordinator records one slot for each pair of members and generation."""

    generation: int
    step: int
    dispute: Dispute


@dataclass(frozen=True, slots=True)
class Agent:
    """One machine's supervisor, with room for `capacity` workers.

    `install_id` distinguishes it from another machine's agent of the same name, `run_id` one start of it from the next.
    `ports` are free on it, one for each worker. While it has none, its workers may still run. `role` is the only role
    that its launched workers take; empty: any. `permitted` counts the workers that it may have started in this run, for
    a live job in a queue.
    """

    id: AgentId
    capacity: int
    address: str = ""  # for other machines, without a port
    install_id: str = ""
    run_id: str = ""
    draining: bool = False
    ports: tuple[int, ...] = ()
    grace_s: float = 0.0  # the time it has to leave, once it is draining
    role: str = ""
    permitted: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """One life of a worker in a job. `number` counts joins: the member with the smaller number is older."""

    id: MemberId
    number: int
    agent: AgentId
    weight: int = 1
    draining: bool = False
    grace_s: float = 0.0
    immediate: bool = False  # without another holder, save at the next boundary, not at the end of the grace period
    why: str = ""
    address: str = ""  # for its peers, as host:port; empty: none
    pid: int = 0
    fingerprint: Fingerprint = ()  # empty: it is not compared
    is_server: bool = False  # a parameter server, not a worker


@dataclass(frozen=True, slots=True)
class Accusation:
    """Failed wirings that named the same pair of members, by generation (rule 11). `a` is the older member."""

    a: MemberId
    b: MemberId
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailingSlots:
    """Slots, one of which raised in user code on `member` (rule 20). `samples` has the samples of each slot."""

    step: int
    slots: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    member: MemberId
    error: str


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A worker failed by itself, when the job had got as far as `step`."""

    at: float
    step: int


@dataclass(frozen=True)
class Job:
    """Everything the coordinator records about one job; see the module's docstring."""

    name: str
    spec: JobSpec
    target: Target
    attempt: int = 1
    created_at: float = 0.0  # the time of its first attempt; distinguishes it from another store's job of this name
    generation_before: int = 0  # the last generation of earlier attempts
    history_from_generation: int = 0  # the last generation of the attempts that this one does not continue
    launch: Launch | None = None  # the newest; None: none yet
    terms: Terms | None = None  # fixed by the first member that joins, and by each that finds no other; with changes
    state: JobState = JobState.STARTING
    state_since: float = 0.0  # the time at which it entered this state
    why: str = ""
    ends_as: JobState | None = None  # the final state of a job that is stopping
    agents: tuple[Agent, ...] = ()
    members: dict[MemberId, Member] = field(default_factory=dict)
    joined: int = 0  # members that ever joined
    gone: tuple[MemberId, ...] = ()  # departed for good, oldest first; bounded by `member_limit`
    generation: int = 0  # highest number ever used; never reused
    current: int = 0  # the generation that reported last; 0: none yet
    rollback_generation: int = 0  # last rollback; lower generations' steps after its base are off the history (rule 18)
    sealed: int = 0  # nothing labelled with this number or a lower one is accepted (P6)
    worlds: tuple[World, ...] = ()  # the open generations, ascending
    broken: str = ""  # why the current world cannot go on; empty: it can
    stateless: bool = False  # no member of the broken world holds a state to continue from
    untrusted_after_step: int | None = None  # the broken world's states cannot be trusted after it; None: they can
    disputes: tuple[Disputed, ...] = ()  # recent ones, among live members
    state_divergences: tuple[StateDivergence, ...] = ()  # since the history last passed the first of them
    unenterable_generations: frozenset[int] = frozenset()  # open planned ones that some member can never enter
    gone_in_open_worlds: frozenset[MemberId] = frozenset()  # members of open worlds that are gone for good
    holders: frozenset[MemberId] = frozenset()  # members that hold the state, by the latest report
    durable: Lineage = GENESIS
    checkpoint: Checkpoint | None = None  # the newest
    older_checkpoints: tuple[Checkpoint, ...] = ()  # kept ones before it, oldest first
    damaged: tuple[str, ...] = ()  # names of the checkpoints skipped recently
    unfinished_checkpoints: tuple[UnfinishedCheckpoint, ...] = ()  # newest last
    checkpoint_wanted_at_step: int | None = None  # a checkpoint of this step or a later one is wanted
    split_storage: bool = False  # members save to different storage locations
    cannot_read: frozenset[MemberId] = frozenset()  # members that could not read the newest checkpoint
    fingerprint: Fingerprint = ()  # of the first world in which a member had one
    accusations: tuple[Accusation, ...] = ()
    failing_slots: tuple[FailingSlots, ...] = ()
    failures: tuple[WorkerFailure, ...] = ()  # recent ones, oldest first
    furthest_step: int = 0  # the highest step that was ever durable; a rollback does not lower it
    losses_without_progress: int = 0  # members lost since that step
    granted: int = 0  # the workers that the pool grants; only for a job in a queue
    granted_why: str = ""
    advised: int = 0  # the size that was advised last, unless the target changed since; 0: none
    advised_why: str = ""
    permits: dict[MemberId, AgentId] = field(default_factory=dict)  # in a queue: started or not, they have not ended
    price: float = 0.0  # of one slot of the pool for an hour
    spent: float = 0.0  # for the slots that its workers occupied until `spent_at`, in all attempts of its history
    spent_at: float = 0.0
    tasks: TaskState | None = None  # of a task queue, since its first member joined
    ps: ServerTable | None = None  # its parameter servers, since the first one joined

    def world(self, number: int) -> World | None:
        """Return the open world with that number, or None."""
        for world in self.worlds:
            if world.number == number:
                return world
        return None

    @property
    def newest(self) -> World | None:
        return self.worlds[-1] if self.worlds else None

    @property
    def workers(self) -> dict[MemberId, Member]:
        """The members that are not parameter servers."""
        if self.ps is None:
            return self.members
        return {name: member for name, member in self.members.items() if not member.is_server}

    @property
    def is_live(self) -> bool:
        """True once workers are members themselves. From then on no change stops them."""
        return self.spec.mode in (Mode.LIVE, Mode.TASKS) or self.terms is not None or self.tasks is not None

    @property
    def slots(self) -> int:
        """The number of members that can have work; a member beyond the number of slots is a spare."""
        return self.terms.grid.slots if self.terms else self.spec.size_max

    @property
    def wanted_size(self) -> int:
        """The number of members that should train: the target, within the sizes, the slots and the grant."""
        return self.within_grant(min(self.target.size, self.spec.size_max, self.slots))

    def within_grant(self, size: int) -> int:
        """Return `size`, or less if the job is in a queue and was granted less."""
        return min(size, self.granted) if self.spec.queue else size

    @property
    def occupants(self) -> dict[MemberId, AgentId]:
        """The workers that may run, with their agents. Each occupies a slot until its process has ended.

        An agent with ports has reported that none of its launched workers runs.
        """
        if self.is_live:
            return self.permits | {member.id: member.agent for member in self.members.values()}
        if self.launch is None:
            return {}
        busy, done = {agent.id for agent in self.agents if not agent.ports}, self.launch.done
        return {seat.member: seat.agent for seat in self.launch.seats if seat.agent in busy and seat.member not in done}

    def spent_by(self, at: float) -> float:
        """Return what its slots have cost until a time. The record of an ended job changes no more."""
        if not self.price or self.state.ended:
            return self.spent
        return self.spent + len(self.occupants) * self.price * max(0.0, at - self.spent_at) / HOUR_S

    @property
    def grant_missing(self) -> str:
        """The reason why the pool grants less than the minimum; empty if it does not, or for a job in no queue."""
        if not self.spec.queue or self.granted >= self.spec.size_min:
            return ""
        return self.granted_why or "no grant yet; if there is no pool, set one with `pliant queue set --slots N`"

    def is_open(self, number: int) -> bool:
        return number > self.sealed and self.world(number) is not None


def member_limit(job: Job) -> int:
    """Return how many members, agents and ids of departed members a job keeps.

    That is enough for old and new workers and servers side by side, and to refuse late duplicates of departed ones.
    """
    servers = 2 * SERVERS_MAX if job.spec.mode is Mode.TASKS or job.ps is not None else 0
    return 64 + 4 * job.spec.size_max + servers
