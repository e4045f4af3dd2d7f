"""The state of a task queue: frozen values, without decisions.

Shards are ranges of a canonical order, so none is listed. The state has the number of shards given out so far, and the
few that are held or were returned. All others below that number are done. New shards are given only while none is
returned, so the state is as large as the number of members.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from pliant.core.data.ledger import mix
from pliant.core.data.sample_order import MASK_64, SAMPLES_MAX, Order
from pliant.core.model.names import MemberId
from pliant.core.tasks.partitions import KnownOffsets, OffsetRange

SHUFFLED_CACHED = 4096
HELD_MAX = 8  # shards of one member
UNSAVED_MAX = 64  # the same with pair averaging, with those that wait for a save


class ShardKind(StrEnum):
    """The purpose of a shard. Shards for evaluation are given before all others."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    PREDICT = "predict"


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """Settings that every member of a task queue must have equal before it may join.

    Without `records` the job is one evaluation. `extra` has the user's own settings, as (name, value) pairs.

    `growing`: records are added while the job runs. Members join with 0 records. The terms of a queue have those that
    are known so far, and `complete` once there will be no more.
    """

    records: int
    records_per_shard: int
    epochs: int = 1
    seed: int = 0
    shuffled: bool = True  # the shards; the records of a shard are read in sequence
    predicts: bool = False  # one pass in which nothing is trained
    evaluation_records: int = 0
    evaluate_every: int = 0  # training shards between two evaluations; 0: after each epoch
    deadline_s: float = 300.0  # a shard without progress for so long is given to another member
    extra: tuple[tuple[str, str], ...] = ()
    growing: bool = False
    complete: bool = False
    averages: bool = False  # pair averaging: each member has a model, and a shard is done once a saved mean has it

    @property
    def kind(self) -> ShardKind:
        """The kind of the shards that are not for evaluation."""
        return ShardKind.PREDICT if self.predicts else ShardKind.TRAIN

    @property
    def only_evaluates(self) -> bool:
        return not self.records and not self.growing

    @property
    def awaits_records(self) -> bool:
        """True while records may be added."""
        return self.growing and not self.complete

    @property
    def wanted(self) -> tuple[ShardKind, int]:
        """The kind of the shards that the job is for, and their number."""
        if self.only_evaluates:
            return ShardKind.EVALUATE, self.shards_per_evaluation
        return self.kind, self.total_shards

    @property
    def shards_per_epoch(self) -> int:
        """The number of shards of an epoch. While records may be added, the last one is not begun before it is full."""
        return self.records // self.records_per_shard + (not self.awaits_records and self._has_short_shard)

    @property
    def _has_short_shard(self) -> bool:
        return self.records % self.records_per_shard > 0

    @property
    def total_shards(self) -> int:
        return self.shards_per_epoch * self.epochs

    @property
    def shards_per_evaluation(self) -> int:
        return -(-self.evaluation_records // self.records_per_shard)

    @property
    def evaluation_interval(self) -> int:
        """The number of training shards between two evaluations."""
        if self.awaits_records and not self.evaluate_every:
            return SAMPLES_MAX  # the only one is at the end
        return self.evaluate_every or self.shards_per_epoch or 1

    def can_continue(self, before: TaskTerms) -> bool:
        """Return whether a queue that began with `before` can go on with these terms, once no member is left."""
        return before == replace(
            self,
            epochs=before.epochs,
            evaluate_every=before.evaluate_every,
            deadline_s=before.deadline_s,
        ).after(before)

    def after(self, before: TaskTerms) -> TaskTerms:
        """Return the terms of a queue that has `before`, with what is known of growing data."""
        if not (self.growing and before.growing):
            return self
        return replace(self, records=before.records, complete=before.complete)

    def range_of(self, kind: ShardKind, number: int) -> ShardRange:
        """Return the records of a shard."""
        if kind is ShardKind.EVALUATE:
            epoch, index = divmod(number, self.shards_per_evaluation)
            records = self.evaluation_records
        elif self.growing:
            epoch, index = 0, number
            records = self.records if self.complete else SAMPLES_MAX
        else:
            epoch, place = divmod(number, self.shards_per_epoch)
            index = _shuffled(self.seed, self.shards_per_epoch, epoch, place) if self.shuffled else place
            records = self.records
        start = index * self.records_per_shard
        return ShardRange(epoch, start, min(start + self.records_per_shard, records))


@lru_cache(maxsize=SHUFFLED_CACHED)
def _shuffled(seed: int, shards: int, epoch: int, place: int) -> int:
    """Return the shard at a place of an epoch's order. Every change of a queue asks for those of all held shards."""
    return Order(seed, shards).at(epoch, place)


class ShardRange(NamedTuple):
    """The records `start` to `stop` of an epoch, or of an evaluation counted from 0."""

    epoch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RaisedOn:
    """User code raised on a shard, on that member."""

    member: MemberId
    attempt: int


@dataclass(frozen=True, slots=True)
class HeldShard:
    """A shard in a member's hands. Its records before `upto` are processed, as far as the member reported.

    `number` counts the shards of its kind in the order in which they are given out. This attempt began at `start`.
    `losses` counts the members in a row that were lost with this shard and had reported no progress. `offsets` are
    those of the records of this attempt, if the data is a queue with partitions.
    """

    kind: ShardKind
    number: int
    attempt: int
    member: MemberId
    start: int
    upto: int
    losses: int = 0
    raised: tuple[RaisedOn, ...] = ()
    offsets: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ReturnedShard:
    """A shard that is to be given out again, from `upto` on."""

    kind: ShardKind
    number: int
    upto: int
    losses: int = 0
    raised: tuple[RaisedOn, ...] = ()


@dataclass(frozen=True, slots=True)
class LastDone:
    """The attempt that a member completed last: its report may be repeated."""

    member: MemberId
    attempt: int


@dataclass(frozen=True, slots=True)
class ModelPeers:
    """The members of a queue with pair averaging that do not leave, oldest first, and the mean saved last.

    A list that has another member than the one before has another number, and a key of its own.
    """

    number: int
    members: tuple[MemberId, ...]
    addresses: tuple[str, ...]
    saves: int
    saved: str


@dataclass(frozen=True, slots=True)
class RunningEvaluation:
    """An evaluation that is going on. `sums` are of the shards that are done, by name."""

    number: int
    after_shards: int  # training shards that were done when it began
    records: int = 0
    sums: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class TaskState:
    """The queue of a job. It has no slots, so that `change` copies it."""

    terms: TaskTerms
    given: int = 0  # shards of the job's own kind that were ever given out
    given_evaluation: int = 0  # evaluation shards, over all evaluations
    attempts: int = 0  # the number of the newest attempt; never reused
    held: tuple[HeldShard, ...] = ()
    returned: tuple[ReturnedShard, ...] = ()
    last_done: tuple[LastDone, ...] = ()  # of live members
    evaluations: int = 0  # begun so far
    evaluated_after: int = 0  # training shards that were done when the newest evaluation began
    evaluation: RunningEvaluation | None = None
    offsets: KnownOffsets | None = None  # of records from a queue with partitions
    saves: int = 0  # means of all models that were saved, with pair averaging
    saved: str = ""  # the name of the newest

    @property
    def open_shards(self) -> tuple[HeldShard | ReturnedShard, ...]:
        """The shards that were given out and are not done."""
        return (*self.held, *self.returned)

    @property
    def done(self) -> int:
        """The number of shards of the job's own kind that are done."""
        kind = self.terms.kind
        return self.given - sum(shard.kind is kind for shard in self.open_shards)

    @property
    def wanted_done(self) -> int:
        """The number of shards that are done, of those that the job is for."""
        kind, wanted = self.terms.wanted
        return wanted - self.open_evaluation_shards if kind is ShardKind.EVALUATE else self.done

    @property
    def open_evaluation_shards(self) -> int:
        """The number of shards of the current evaluation that are not done."""
        if self.evaluation is None:
            return 0
        waiting = (self.evaluation.number + 1) * self.terms.shards_per_evaluation - self.given_evaluation
        return waiting + sum(shard.kind is ShardKind.EVALUATE for shard in self.open_shards)

    @property
    def first_waiting(self) -> int:
        """The number of the first record of the job's own kind that is not known to be processed."""
        kind = self.terms.kind
        begun = [shard.upto for shard in self.open_shards if shard.kind is kind]
        return min((*begun, self.given * self.terms.records_per_shard))

    def offsets_of(self, kind: ShardKind, number: int, start: int) -> tuple[OffsetRange, ...]:
        """Return the offsets of a shard's records from `start` on; none if the data has no partitions."""
        if self.offsets is None or kind is ShardKind.EVALUATE:
            return ()
        return self.offsets.between(start, self.terms.range_of(kind, number).stop)

    def held_by(self, member: MemberId) -> tuple[HeldShard, ...]:
        return tuple(shard for shard in self.held if shard.member == member)

    def awaits_save(self, shard: HeldShard) -> bool:
        """Return whether all records of a shard are processed, and no saved mean has their effect yet."""
        return self.terms.averages and shard.upto == self.terms.range_of(shard.kind, shard.number).stop

    @property
    def held_max(self) -> int:
        """The number of shards that a member can hold."""
        return UNSAVED_MAX if self.terms.averages else HELD_MAX

    def begins_again(self, kind: ShardKind) -> bool:
        """Return whether a returned shard begins with its first record.

        The sums of an evaluation must be of all records. With pair averaging the effect of the processed records may be
        lost with the model of their member.
        """
        return kind is ShardKind.EVALUATE or self.terms.averages

    def find(self, attempt: int) -> HeldShard | None:
        """Return the shard that is held under this attempt."""
        return next((shard for shard in self.held if shard.attempt == attempt), None)


def digest_key(kind: ShardKind, epoch: int) -> int:
    """Return the number that the digests of all records of an epoch are mixed with."""
    return mix(_SALT[kind] + epoch)


def range_digest(kind: ShardKind, epoch: int, start: int, stop: int) -> int:
    """Return the digest of the records `start` to `stop`. Digests of adjoining ranges add up, modulo 2**64."""
    return sum(record_digest(kind, epoch, record) for record in range(start, stop)) & MASK_64


def record_digest(kind: ShardKind, epoch: int, record: int) -> int:
    """Return the digest of one record that was read. Members add them up where they read."""
    return mix(digest_key(kind, epoch) ^ mix(record))


_SALT = {ShardKind.TRAIN: 0, ShardKind.EVALUATE: 1 << 62, ShardKind.PREDICT: 1 << 61}
