"""Check the history of a task queue: every record in exactly one completed stretch, and how many may be repeated.

The accounting is exactly once: the stretches of a shard's attempts, up to the position that each reported, adjoin
one another and cover the shard. The effect is at least once: a member that was lost may have processed records after
the last position that it reported, and another member processed them again. The audit counts those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pliant.core import messages as m
from pliant.core.messages import Event
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard, ShardKind, TaskTerms, range_digest
from pliant.core.tasks.partitions import KnownOffsets, OffsetRange

WRONG_MAX = 20  # findings that are named

Digest = Callable[[ShardKind, int, int, int], int]


@dataclass
class TaskAudit:
    """Feed all events of a queue in order, then read the results. `digest` computes the digest of a range."""

    digest: Digest = range_digest
    terms: TaskTerms | None = None
    attempts: int = 0
    returned: int = 0  # attempts that did not complete their shard
    repeated_max: int = 0  # records that may have been processed more than once
    wrong: list[str] = field(default_factory=list)
    offsets: KnownOffsets | None = None  # of records from a queue with partitions
    _open: dict[int, HeldShard] = field(default_factory=dict)  # by attempt
    _read: dict[int, tuple[int, int]] = field(default_factory=dict)  # by attempt: the last position, and the digest
    _left_at: dict[tuple[ShardKind, int], int] = field(default_factory=dict)  # where the next attempt must begin
    _done: dict[ShardKind, set[int]] = field(default_factory=dict)

    def feed(self, event: t.TaskEvent) -> None:
        """Take the next event of the queue."""
        match event:
            case t.TaskMemberJoined():
                self.terms = event.terms if self.terms is None else event.terms.after(self.terms)
            case t.DataGrown():
                self._grow(event)
            case t.ShardsGiven():
                for shard in event.shards:
                    self._give(shard)
            case t.ShardAdvanced():
                self._advance(event.attempt, event.upto, event.digest)
            case t.ShardRaised():
                self._advance(event.attempt, event.upto, event.digest)
                self._return(event.attempt, unknown=False)
            case t.ShardReturned():
                self._return(event.attempt, unknown=True)
            case t.ShardDone():
                self._complete(event.attempt, event.digest)
            case t.ModelSaved():
                for attempt in event.attempts:
                    self._complete(attempt)
            case t.EvaluationBegun() | t.EvaluationDone():
                pass

    def member_gone(self, member: MemberId, *, left: bool) -> None:
        """A member ended. If it left, it had reported everything."""
        for attempt in [attempt for attempt, shard in self._open.items() if shard.member == member]:
            self._return(attempt, unknown=not left)

    def all_returned(self) -> None:
        """Another attempt of the job began: no member of the one before is left."""
        for attempt in list(self._open):
            self._return(attempt, unknown=True)

    def done(self, kind: ShardKind) -> int:
        """Return the number of shards of a kind that are done."""
        return len(self._done.get(kind, ()))

    def missing(self) -> int:
        """Return the number of shards that the job is for and that are not done."""
        if self.terms is None:
            return 0
        kind, wanted = self.terms.wanted
        return wanted - self.done(kind)

    def records_done(self) -> int:
        """Return the number of records that the job is for and that are done."""
        if self.terms is None:
            return 0
        kind, _ = self.terms.wanted
        found = (self.terms.range_of(kind, number) for number in self._done.get(kind, ()))
        return sum(each.stop - each.start for each in found)

    def _note(self, what: str) -> None:
        if len(self.wrong) < WRONG_MAX:
            self.wrong.append(what)

    def _grow(self, event: t.DataGrown) -> None:
        assert self.terms is not None  # a member joined before
        if event.records < self.terms.records or self.terms.complete:
            self._note(f"the data grew from {self.terms.records} to {event.records} records")
        if event.added:
            self._add_offsets(event)
        self.terms = replace(self.terms, records=event.records, complete=event.complete)

    def _add_offsets(self, event: t.DataGrown) -> None:
        """Check that each partition goes on where it ended, so that no offset is two records, and none is left out."""
        assert self.terms is not None  # as above
        known = self.offsets or KnownOffsets()
        stops = known.stops()
        for each in event.added:
            if each.start != stops.get(each.partition, each.start):
                self._note(f"{each} became records, and {each.partition} had ended at {stops[each.partition]}")
        if sum(map(len, event.added)) != event.records - self.terms.records:
            self._note(f"the data grew to {event.records} records, by another number of offsets")
        self.offsets = known.after(event.added)

    def _give(self, shard: HeldShard) -> None:
        assert self.terms is not None  # a member joined before
        self.attempts += 1
        key = (shard.kind, shard.number)
        found = self.terms.range_of(*key)
        if any((each.kind, each.number) == key for each in self._open.values()):
            self._note(f"{shard.kind.value} shard {shard.number} was held by two members")
        if shard.number in self._done.get(shard.kind, ()):
            self._note(f"{shard.kind.value} shard {shard.number} was given out after it was done")
        if shard.kind is not ShardKind.EVALUATE and shard.number >= self.terms.total_shards:
            self._note(f"{shard.kind.value} shard {shard.number} was given out, and its records were not there")
        if shard.start != self._left_at.get(key, found.start):
            self._note(f"{shard.kind.value} shard {shard.number} was continued at {shard.start}, not where it was left")
        if self.offsets is not None and shard.kind is not ShardKind.EVALUATE:
            self._check_offsets(shard, self.offsets.between(shard.start, found.stop))
        self._open[shard.attempt] = shard
        self._read[shard.attempt] = (shard.start, 0)

    def _check_offsets(self, shard: HeldShard, right: tuple[OffsetRange, ...]) -> None:
        if shard.offsets != right:
            given, wanted = (", ".join(map(str, each)) for each in (shard.offsets, right))
            self._note(f"attempt {shard.attempt} was given {given}, and its records are {wanted}")

    def _advance(self, attempt: int, upto: int, digest: int) -> None:
        if attempt not in self._open:
            self._note(f"attempt {attempt} reported records after it was over")
            return
        self._read[attempt] = (upto, digest)

    def _return(self, attempt: int, *, unknown: bool) -> None:
        shard = self._open.pop(attempt, None)
        if shard is None or self.terms is None:
            self._note(f"attempt {attempt} was returned after it was over")
            return
        upto, digest = self._read.pop(attempt)
        self._check(shard, upto, digest)
        if shard.kind is ShardKind.EVALUATE or self.terms.averages:
            self.repeated_max += upto - shard.start  # an evaluation begins its shard again
        else:
            self._left_at[shard.kind, shard.number] = upto
        self.returned += 1
        if unknown:
            self.repeated_max += self.terms.range_of(shard.kind, shard.number).stop - upto

    def _complete(self, attempt: int, digest: int | None = None) -> None:
        """Complete a shard, with its last report or, without a digest, with a save after all of them."""
        shard = self._open.pop(attempt, None)
        if shard is None or self.terms is None:
            self._note(f"attempt {attempt} was completed after it was over")
            return
        upto, reported = self._read.pop(attempt)
        stop = self.terms.range_of(shard.kind, shard.number).stop
        if self.terms.averages and (digest is not None or upto != stop):
            self._note(f"attempt {attempt} was completed, and no saved model has all of its records")
        self._check(shard, stop, reported if digest is None else digest)
        self._left_at.pop((shard.kind, shard.number), None)
        self._done.setdefault(shard.kind, set()).add(shard.number)

    def _check(self, shard: HeldShard, upto: int, digest: int) -> None:
        """Compare the digest of what was read with that of the records between start and position."""
        assert self.terms is not None  # as above
        epoch = self.terms.range_of(shard.kind, shard.number).epoch
        if digest != self.digest(shard.kind, epoch, shard.start, upto):
            self._note(f"attempt {shard.attempt} read other records than {shard.start} to {upto} of epoch {epoch}")


@dataclass
class TaskHistory:
    """The audit over all events of a job: of its newest attempt, and of those that it continues."""

    digest: Digest = range_digest
    finished: bool = False
    audit: TaskAudit = field(init=False)

    def __post_init__(self) -> None:
        self.audit = TaskAudit(self.digest)

    def take(self, event: Event) -> None:
        """Take the next event of the job."""
        match event:
            case m.JobCreated():
                self.audit.all_returned()
                self.finished = False
                if not event.resumes:
                    self.audit = TaskAudit(self.digest)
            case m.MemberGone():
                self.audit.member_gone(event.member, left=event.how == "left")
            case m.StateChanged():
                self.finished = event.state is JobState.FINISHED
            case _ if isinstance(event, t.TaskEvent):
                self.audit.feed(event)
            case _:
                pass
