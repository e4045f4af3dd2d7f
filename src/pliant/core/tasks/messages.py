"""Commands and events of the task queue."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model.names import AgentId, MemberId
from pliant.core.tasks.model import HeldShard, ShardKind, TaskTerms
from pliant.core.tasks.partitions import OffsetRange

Sums = tuple[tuple[str, float], ...]

# ------------------------------------------------------------------------------------------------ commands


@dataclass(frozen=True, slots=True)
class JoinTasks:
    """A worker is ready to take shards; the fields are those of `Join`."""

    member: MemberId
    agent: AgentId
    terms: TaskTerms
    pid: int = 0
    age_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class TakeShards:
    """A member wants to hold `count` shards. The answer has all shards that it holds then."""

    member: MemberId
    count: int


@dataclass(frozen=True, slots=True)
class AdvanceShard:
    """A member processed the records of its shard up to `upto`. `digest` covers all that this attempt has read."""

    member: MemberId
    attempt: int
    upto: int
    digest: int


@dataclass(frozen=True, slots=True)
class CompleteShard:
    """A member processed all records of its shard: `records` of them in this attempt.

    `sums` are totals over these records by name, for instance of a loss, in an evaluation.
    """

    member: MemberId
    attempt: int
    records: int
    digest: int
    sums: Sums = ()


@dataclass(frozen=True, slots=True)
class FailShard:
    """User code raised on a shard, after the records before `upto` were processed."""

    member: MemberId
    attempt: int
    upto: int
    digest: int
    error: str


@dataclass(frozen=True, slots=True)
class ShardOverdue:
    """A shard made no progress within its deadline. `upto` is where it was when the time began."""

    attempt: int
    upto: int


@dataclass(frozen=True, slots=True)
class GrowData:
    """A member sees so many records of growing data, all of them if it is `complete`. `error`: they cannot be used.

    Of a queue, the member reports the offsets that each partition has, and no number of records.
    """

    member: MemberId
    records: int
    complete: bool = False
    error: str = ""
    partitions: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class SaveModel:
    """A member saved the mean of models under a name. It has the effect of all records of `attempts`.

    `number` counts saves. It is refused if another save has that number: this mean may lack what that one has.
    """

    member: MemberId
    number: int
    name: str
    attempts: tuple[int, ...]


TaskCommand = JoinTasks | TakeShards | AdvanceShard | CompleteShard | FailShard | ShardOverdue | GrowData | SaveModel

# -------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class TaskMemberJoined:
    """A member joined a task queue. The first one fixes its terms."""

    at: float
    member: MemberId
    agent: AgentId
    number: int
    pid: int
    terms: TaskTerms
    age_s: float = 0.0
    address: str = ""


@dataclass(frozen=True, slots=True)
class ShardsGiven:
    at: float
    shards: tuple[HeldShard, ...]


@dataclass(frozen=True, slots=True)
class ShardAdvanced:
    """Records of a shard are processed. The digest covers those that this attempt has read, up to `upto`."""

    at: float
    attempt: int
    upto: int
    digest: int


@dataclass(frozen=True, slots=True)
class ShardDone:
    """All records of a shard are processed, from `start` on by this attempt."""

    at: float
    member: MemberId
    kind: ShardKind
    number: int
    attempt: int
    start: int
    digest: int
    sums: Sums = ()


@dataclass(frozen=True, slots=True)
class ShardReturned:
    """A shard was taken from its member. The end of a member returns its shards without such an event."""

    at: float
    attempt: int
    why: str


@dataclass(frozen=True, slots=True)
class ShardRaised:
    """User code raised on a shard, which was returned. The digest covers what this attempt has read, up to `upto`."""

    at: float
    member: MemberId
    attempt: int
    upto: int
    digest: int
    error: str


@dataclass(frozen=True, slots=True)
class EvaluationBegun:
    at: float
    number: int
    after_shards: int


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """All shards of an evaluation are done. `sums` are the totals over its records."""

    at: float
    number: int
    after_shards: int
    records: int
    sums: Sums


@dataclass(frozen=True, slots=True)
class DataGrown:
    """Growing data has so many records by now. `complete`: there will be no more.

    `added` are the offsets of the new records of a queue, in the order of their numbers.
    """

    at: float
    records: int
    complete: bool
    added: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSaved:
    """The mean of models is saved, and the shards of these attempts are done. The members load it."""

    at: float
    member: MemberId
    number: int
    name: str
    attempts: tuple[int, ...]


ShardProgress = ShardsGiven | ShardAdvanced | ShardDone | EvaluationBegun | EvaluationDone | DataGrown
"""Events that change no membership: they are frequent, and must stay cheap."""

TaskEvent = (
    TaskMemberJoined
    | ShardsGiven
    | ShardAdvanced
    | ShardDone
    | ShardReturned
    | ShardRaised
    | EvaluationBegun
    | EvaluationDone
    | DataGrown
    | ModelSaved
)
