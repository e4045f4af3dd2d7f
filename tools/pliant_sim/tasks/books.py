"""The simulator's own accounting of a task queue, from its events alone and apart from the code under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.model import HeldShard, ShardKind, TaskTerms, range_digest

Shard = tuple[ShardKind, int]
Record = tuple[ShardKind, int, int]  # kind, epoch or evaluation, number


@dataclass(slots=True)
class OpenAttempt:
    """A shard in a member's hands."""

    shard: Shard
    member: MemberId
    start: int
    upto: int
    digest: int
    moved_at: float  # when it was given out, or its position moved


@dataclass
class Books:
    """Every record, every attempt and every report. `complain` is called with each thing that is wrong."""

    complain: Callable[[str], None]
    terms: TaskTerms
    attempts: int = 0
    returned: int = 0
    held: dict[int, OpenAttempt] = field(default_factory=dict)  # by attempt
    waiting: dict[Shard, float] = field(default_factory=dict)  # returned shards, since when
    next_start: dict[Shard, int] = field(default_factory=dict)  # of shards that were given out and are not done
    done: set[Shard] = field(default_factory=set)
    processed: set[int] = field(default_factory=set)  # attempts that were at the end of their shard, and not done yet
    done_by: dict[int, MemberId] = field(default_factory=dict)  # by attempt
    raised_by: dict[int, MemberId] = field(default_factory=dict)
    positions: dict[tuple[MemberId, int], int] = field(default_factory=dict)  # the last one of every attempt
    raised_on: dict[Shard, set[MemberId]] = field(default_factory=dict)
    accounted: Counter[Record] = field(default_factory=Counter)
    losses: dict[Shard, int] = field(default_factory=dict)  # members in a row that were lost with it

    def given(self, shard: HeldShard, now: float) -> None:
        key = (shard.kind, shard.number)
        name = f"{shard.kind.value} shard {shard.number}"
        if shard.attempt != self.attempts + 1:
            self.complain(f"attempt {shard.attempt} follows attempt {self.attempts}")
        self.attempts = shard.attempt
        if key in self.done:
            self.complain(f"{name} was given out after it was done")
        if any(each.shard == key for each in self.held.values()):
            self.complain(f"{name} is given to two members at once")
        first = self.terms.range_of(*key).start
        if shard.start != self.next_start.get(key, first):
            self.complain(f"{name} is continued at {shard.start}, not at {self.next_start.get(key, first)}")
        self.waiting.pop(key, None)
        self.next_start[key] = shard.start
        self.positions[shard.member, shard.attempt] = shard.start
        self.held[shard.attempt] = OpenAttempt(key, shard.member, shard.start, shard.start, 0, now)

    def advanced(self, event: t.ShardAdvanced, now: float) -> None:
        held = self._current(event.attempt, "a position")
        if held is None:
            return
        stop = self.terms.range_of(*held.shard).stop
        if not held.upto < event.upto <= stop:
            self.complain(f"attempt {event.attempt} went from record {held.upto} to {event.upto} of {stop}")
        held.upto, held.digest, held.moved_at = event.upto, event.digest, now
        self.positions[held.member, event.attempt] = event.upto
        if event.upto == stop:
            self.processed.add(event.attempt)
        self.losses.pop(held.shard, None)

    def completed(self, event: t.ShardDone) -> None:
        held = self._current(event.attempt, "its end")
        if held is None:
            return
        if (event.member, (event.kind, event.number)) != (held.member, held.shard):
            self.complain(f"{event.member} completed attempt {event.attempt}, which {held.member} holds")
        held.upto, held.digest = self.terms.range_of(*held.shard).stop, event.digest
        self._done(event.attempt, held)

    def saved(self, event: t.ModelSaved) -> None:
        """Complete the shards that a saved mean has."""
        for attempt in event.attempts:
            held = self._current(attempt, "its save")
            if held is None:
                continue
            if held.upto != self.terms.range_of(*held.shard).stop:
                self.complain(f"attempt {attempt} was saved, and was at {held.upto}")
            self._done(attempt, held)

    def _done(self, attempt: int, held: OpenAttempt) -> None:
        self.positions[held.member, attempt] = held.upto
        del self.held[attempt]
        self._account(held)
        self.next_start.pop(held.shard, None)
        self.done.add(held.shard)
        self.done_by[attempt] = held.member

    def raised(self, event: t.ShardRaised, now: float) -> None:
        held = self._current(event.attempt, "an exception")
        if held is None:
            return
        if event.upto < held.upto:
            self.complain(f"attempt {event.attempt} raised at {event.upto}, after it was at {held.upto}")
        held.upto, held.digest = event.upto, event.digest
        self.raised_by[event.attempt] = event.member
        self.raised_on.setdefault(held.shard, set()).add(event.member)
        self.give_back(event.attempt, now)

    def late(self, attempt: int, now: float) -> None:
        """A shard was taken from its member because it made no progress."""
        held = self._current(attempt, "its return")
        if held is not None:
            self.give_back(attempt, now)

    def gone(self, member: MemberId, now: float, *, lost: bool) -> None:
        """All shards of a member are returned with its end."""
        for attempt, held in list(self.held.items()):
            if held.member == member:
                if lost and held.upto == held.start:
                    self.losses[held.shard] = self.losses.get(held.shard, 0) + 1
                self.give_back(attempt, now)

    def next_attempt(self, now: float) -> None:
        """Another attempt of the job continues the queue."""
        for attempt in list(self.held):
            self.give_back(attempt, now)

    def give_back(self, attempt: int, now: float) -> None:
        held = self.held.pop(attempt)
        self.returned += 1
        self.waiting[held.shard] = now
        if self.terms.averages:  # the effect may be lost with the model of the member
            self.next_start[held.shard] = self.terms.range_of(*held.shard).start
        elif held.shard[0] is not ShardKind.EVALUATE:  # an evaluation begins its shard again: its sums are lost
            self._account(held)
            self.next_start[held.shard] = held.upto

    def _current(self, attempt: int, what: str) -> OpenAttempt | None:
        held = self.held.get(attempt)
        if held is None:
            self.complain(f"fencing: {what} of attempt {attempt} was accepted after it was over")
        return held

    def _account(self, held: OpenAttempt) -> None:
        """Count the records that this attempt reported, and compare their digest."""
        kind, number = held.shard
        epoch = self.terms.range_of(kind, number).epoch
        for record in range(held.start, held.upto):
            self.accounted[kind, epoch, record] += 1
            if self.accounted[kind, epoch, record] > 1:
                self.complain(f"{kind.value} record {record} of epoch {epoch} is accounted for twice")
        if held.digest != range_digest(kind, epoch, held.start, held.upto):
            self.complain(f"{held.member} read other records than {held.start} to {held.upto} of {kind.value} {number}")

    def missing(self) -> list[Record]:
        """Return the records that the job is for and that no attempt reported."""
        terms, kind = self.terms, self.terms.wanted[0]
        records = terms.evaluation_records if kind is ShardKind.EVALUATE else terms.records
        every = ((kind, epoch, record) for epoch in range(terms.epochs) for record in range(records))
        return [record for record in every if not self.accounted[record]]
