"""What a job is: values only, no behaviour beyond reading them.

`Job` is the whole state the coordinator decides on. It is small, frozen and changed by `pliant.core.job.evolve`
alone; everything in it can be rebuilt from the event log. Leases and deadlines are not in it: they live in the
coordinator's memory and start afresh after a restart (rule 19), so no clock reading is ever stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.model.checkpoint import NO_POLICY, Checkpoint, CheckpointPolicy, UnfinishedCheckpoint
from pliant.core.model.fingerprint import Fingerprint
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World


class JobState(StrEnum):
    """Where a job stands; the last three are final."""

    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        return self in _ENDED


_ENDED = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELLED})


class Mode(StrEnum):
    """What a change of membership does to workers.

    `live`: nothing, they go on. `relaunch`: all are started again. `auto`: the latter until one calls `pliant.join()`.
    """

    AUTO = "auto"
    LIVE = "live"
    RELAUNCH = "relaunch"


@dataclass(frozen=True, slots=True)
class Target:
    """How many workers are wanted: a number, or an exact count for each agent.

    `placement` is a tuple of (agent, count) pairs, empty when only the number matters; `size` is its sum then.
    """

    size: int
    placement: tuple[tuple[AgentId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class JobSpec:
    """The settings of a job, as its owner chose them.

    A spec never changes while an attempt runs. `Job.target` holds the current target, which a resize changes.
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

    @property
    def initial_target(self) -> Target:
        return self.target or Target(self.size_max)


@dataclass(frozen=True, slots=True)
class Terms:
    """What every member of a job must agree on before it may join: the data's shape, the order's seed, and so on.

    `also` has whatever else must be equal, as (name, value) pairs in the user's words, such as ("order", "shuffled").
    """

    grid: Grid
    seed: int
    checkpoint_every: int = 0  # steps between checkpoints; 0: only when the protocol itself asks for one
    extra: tuple[tuple[str, str], ...] = ()
    verify: int = 0  # every how many steps the words carry a hash of the whole state; 0: never


@dataclass(frozen=True, slots=True)
class StateDivergence:
    """Members of that generation held different states after that step."""

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
    """A dispute that is remembered: one slot for each pair of members and generation."""

    generation: int
    step: int
    dispute: Dispute


@dataclass(frozen=True, slots=True)
class Agent:
    """One machine's supervisor, with room for `capacity` workers.

    `home` tells it from another machine's of the same name, `life` one run of it from the next. `ports` are free on it,
    one for each worker; while it has said none, workers of its may still run.
    """

    id: AgentId
    capacity: int
    address: str = ""  # where other machines reach it, without a port
    install_id: str = ""
    run_id: str = ""
    draining: bool = False
    ports: tuple[int, ...] = ()
    grace_s: float = 0.0  # how long it may take to leave, once it is draining


@dataclass(frozen=True, slots=True)
class Member:
    """One worker's one life in a job. `number` counts joins, so the smaller of two is the older."""

    id: MemberId
    number: int
    agent: AgentId
    weight: int = 1
    draining: bool = False
    grace_s: float = 0.0
    immediate: bool = False  # if nobody can take its state over, it is saved at the next boundary, not at the last one
    why: str = ""
    address: str = ""  # where its peers reach it; empty: nowhere
    pid: int = 0
    fingerprint: Fingerprint = ()  # what decides which bits it computes; empty: nobody compares them


@dataclass(frozen=True, slots=True)
class Accusation:
    """Failed wirings that named the same pair, by generation (rule 11). `a` is the older member."""

    a: MemberId
    b: MemberId
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailingSlots:
    """Slots one of which raised in user code, and on whom (rule 20). `samples` are those of each slot, by its place."""

    step: int
    slots: tuple[int, ...]
    samples: tuple[tuple[int, ...], ...]
    member: MemberId
    error: str


@dataclass(frozen=True)
class Job:
    """Everything the coordinator knows of one job; see the module's docstring."""

    name: str
    spec: JobSpec
    target: Target
    attempt: int = 1
    created_at: float = 0.0  # when its first attempt was created: what tells it from another store's job of this name
    generation_before: int = 0  # the last generation of the attempts before
    history_from_generation: int = 0  # the last generation of attempts that this one does not go on from
    launch: Launch | None = None  # the newest; None: there was none yet
    terms: Terms | None = None  # fixed by the first member that joins
    state: JobState = JobState.STARTING
    why: str = ""
    agents: tuple[Agent, ...] = ()
    members: dict[MemberId, Member] = field(default_factory=dict)
    joined: int = 0  # members that ever joined
    gone: tuple[MemberId, ...] = ()  # lately gone for good, oldest first; bounded by `member_limit`
    generation: int = 0  # highest number ever used; never reused
    current: int = 0  # the generation that reported last; 0: none yet
    rollback_generation: int = (
        0  # the last rollback world: steps applied below it are off the history from its base on (rule 18)
    )
    sealed: int = 0  # nothing labelled with this number or a lower one is accepted (P6)
    worlds: tuple[World, ...] = ()  # the open generations, ascending
    broken: str = ""  # why the current world cannot go on; empty: it can
    stateless: bool = False  # nobody in the broken world holds a state the history can go on from
    untrusted_after_step: int | None = (
        None  # the step after which no state of the broken world can be trusted; None: they can
    )
    disputes: tuple[Disputed, ...] = ()  # lately, among members that are still there
    state_divergences: tuple[StateDivergence, ...] = ()  # since the history last got beyond the first of them
    unenterable_generations: frozenset[int] = (
        frozenset()
    )  # open planned generations that can never be entered by everybody
    gone_in_open_worlds: frozenset[MemberId] = frozenset()  # members of open worlds that are gone for good
    holders: frozenset[MemberId] = frozenset()  # known to hold the state, by the latest report
    durable: Lineage = GENESIS
    checkpoint: Checkpoint | None = None  # the newest
    older_checkpoints: tuple[Checkpoint, ...] = ()  # those before it that are kept, the oldest first
    damaged: tuple[str, ...] = ()  # the names of those that were passed over, lately
    unfinished_checkpoints: tuple[UnfinishedCheckpoint, ...] = ()  # not whole yet, the newest last
    checkpoint_wanted_at_step: int | None = None  # a checkpoint of this step or a later one is wanted
    split_storage: bool = False  # members have no common place for checkpoints
    cannot_read: frozenset[MemberId] = frozenset()  # who could not reach the newest checkpoint
    fingerprint: Fingerprint = ()  # those of the first world in which anybody had any
    accusations: tuple[Accusation, ...] = ()
    failing_slots: tuple[FailingSlots, ...] = ()
    failures: int = 0  # workers that exited non-zero by themselves

    def world(self, number: int) -> World | None:
        """The open world with that number, if it is open."""
        for world in self.worlds:
            if world.number == number:
                return world
        return None

    @property
    def newest(self) -> World | None:
        return self.worlds[-1] if self.worlds else None

    @property
    def is_live(self) -> bool:
        """Whether workers are members themselves. Once they are, nothing ever stops them for a change."""
        return self.spec.mode is Mode.LIVE or self.terms is not None

    @property
    def slots(self) -> int:
        """Members beyond the number of slots would own nothing: they are spares."""
        return self.terms.grid.slots if self.terms else self.spec.size_max

    def is_open(self, number: int) -> bool:
        return number > self.sealed and self.world(number) is not None


def member_limit(job: Job) -> int:
    """How many departed ids are remembered: enough to refuse late duplicates, bounded by the job's own size."""
    return 64 + 4 * job.spec.size_max
