"""The contract between the coordinator and the store that keeps its decisions.

**Contents.** A store keeps one stream of events and one record for each job. An event's revision is its position in
the stream: 1, 2, 3, without a gap. A job's revision is that of its newest event. Revision 0 means that the job does not
exist. The record is the job's state after the event with
revision `record_revision`. The events after it are the tail. The state is always the record evolved over the tail. A
write may omit the record, so that a progress report costs its own bytes and not the size of the job. The writer chooses
how long a tail may grow. Nothing is ever changed in place. Nothing is removed except by `trim` and `delete`.

**Writing.** `write` takes a batch of writes, at most one for each job. Each write is its own compare-and-swap: events
and record are applied together if the job's revision equals `expected` at that moment, and not at all otherwise. The
writes are independent: a conflict in one does not affect the others. When `write` returns, every write answered
`Written` is as durable as this store makes anything, and the batch paid for that once. No read returns a write before
it is durable. Afterwards every read through any handle returns it.

**A lost race.** `Conflict` is an ordinary answer and carries the revision found. Nothing was written to that job. Read,
decide again on the current state and write again. Never send the old events against the new revision: they were decided
on another state. A revision found *below* `expected` cannot come from a race. The store was set back, by a restored
backup for instance. The writer must stop and report it, because decisions that it has acknowledged are gone.

**Errors.** An error describes the whole batch.

  `BadInput`          The arguments break the contract, whatever the store holds. Nothing was done.
  `StoreUnavailable`  Nothing was written and nothing will be. The same batch may be sent again unchanged.
  `StoreTimeout`      The outcome is unknown. Each write of the batch, independently, may have been applied, may be
                      applied later, or never. It cannot be applied after another write to that job has succeeded,
                      because its `expected` is then in the past.
  `StoreError` itself Nothing was written, and a retry will not help before an operator acts: the disk is full, the file
                      belongs to another program, a page is damaged.
  `HoldLost`          The hold named by `under` is over. Nothing was written, and nothing will be under that hold.

**After a timeout.** Acknowledge nothing. Read the job's events after `expected`. If they begin with exactly the bytes
that were sent, the write was applied. (If another writer wrote the very same bytes there, the outcome is identical, so
it does not matter which one it was.) If the revision is still `expected`, the write may still arrive. Decide again and
write at that revision: one of the two writes wins and the other conflicts. Sending the same write again is safe too,
since it cannot be applied twice, but the `Conflict` it may get can be the writer's own earlier success.

**Reading.** `read` and `events` have no effect. Each answers from one moment and never returns half of a write. A
reader may see a newer revision of one job than of another that it read just before. The contract promises no order
across jobs.

**Old events.** `trim` replaces the oldest events of a job by the name of a segment, in one step. The caller has
written them to that segment of an archive before, durably. Only events that the record covers can be trimmed, never the
newest one, and segments follow one another without a gap. `segments` returns them in order. `events` raises
`EventsTrimmed` if it would have to begin inside a segment: read on from the archive. A segment that was written and not
named in the store, because its writer was killed in between, does not count.

**Deleting.** `delete` removes a job whole: record, events and the names of its segments, whose files the caller removes
afterwards. It is a compare-and-swap like a write. No revision is ever used a second time in a store: the first event of
a job that is created later has a higher revision than every deleted job had. So a client that remembers a revision of
the deleted job never takes an event of the new one for the next. For a new job, `events` after 0, or after any revision
below its first, begins with its first event.

**Live jobs.** A write tells whether its job goes on (`live`) or has ended. `read_page` returns live jobs only, in
pages, so that a coordinator that takes over pays for the jobs that go on and not for all that ever were. An ended job
is read by its name.

**Holding.** `hold` lets one of several coordinators do the work. While a hold is in force, its owner's `hold` renews it
and every other owner gets `Busy`. Otherwise the first caller gets it. Every hold gained, also by the previous owner,
has a higher `term` than all before it under that name. Renewing keeps the term. `release` and expiry never lower it.
`url` is the address under which the holder wants to be reached, for those that get `Busy`. An owner's name belongs to
one run of one process. After an error from `hold`, assume that you do not hold. The leader does not watch the store for
changes: it is the only writer while it holds. Standbys poll `hold`, and read the live jobs when they gain it.

**The end of a hold.** `now` is the caller's own clock, and clocks of two callers are never compared, because each
machine counts from its own start. The store measures the time to live by its own clock, or the caller that wants the
hold measures it: a hold is over for a caller that has seen no renewal for as long as the holder asked for. So `until_s`
is always a time on the clock of the caller that gets it. For a holder it is not later than the end in the store. A
store that can detect the death of the holder's process may end its hold at once.

**Writing under a hold.** A holder that was paused, or whose clock is wrong, still believes that it holds while another
one does. The compare-and-swap on every write keeps the two from undoing each other's decisions. With `under`, a write
is also refused, as a whole and with `HoldLost`, if that hold was released or another one was gained under its name. So
a coordinator that was replaced changes nothing at all, not even a job that its successor has not written yet. A hold
that is past its end and was not replaced may be refused or not.

**Identity.** `identity` is assigned when a store is created and stays with its contents for life. Revisions compare
only within one identity. A client that sees another identity discards what it remembers and reads again. A store that
finds itself set back to an older state (a restored backup) assigns itself a new identity when it is opened, if it can
detect that. A handle whose store gets another identity while it is open refuses to write.

**Names** are text that can be encoded in UTF-8. Others are `BadInput` where a store cannot keep them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pliant.errors import BadInput, HoldLost

__all__ = [
    "Busy",
    "Conflict",
    "Entry",
    "Hold",
    "Outcome",
    "Segment",
    "Store",
    "Stored",
    "Write",
    "Written",
    "check_after",
    "check_batch",
    "check_expected",
    "check_hold",
    "check_limit",
    "check_now",
    "check_text",
    "hold_lost",
]


@dataclass(frozen=True, slots=True)
class Stored:
    """A job's record and tail. `revision == record_revision + len(tail)`, always."""

    revision: int
    record: bytes
    record_revision: int
    tail: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and its revision."""

    revision: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a job's events in an archive: its first and its last revision, and its name there."""

    first: int
    last: int
    name: str

    def __post_init__(self) -> None:
        if not (1 <= self.first <= self.last and self.name):
            raise BadInput(f"A segment needs a name and revisions from 1 on, got {self.first} to {self.last}.")


@dataclass(frozen=True, slots=True)
class Write:
    """A request to append `events` to a job that is at revision `expected`.

    `record`, if given, is the state after these events and becomes the newest record. The first write of a job
    (`expected` is 0) must have one. `live` is False if the job has ended with these events.
    """

    job: str
    expected: int
    events: tuple[bytes, ...]
    record: bytes | None = None
    live: bool = True

    def __post_init__(self) -> None:
        if not self.job:
            raise BadInput("A write needs the name of a job.")
        if self.expected < 0:
            raise BadInput(f"A write to job {self.job!r} expects revision {self.expected}; the lowest is 0.")
        if not self.events:
            raise BadInput(f"A write to job {self.job!r} has no events. Add at least one: a revision counts events.")
        if self.expected == 0 and self.record is None:
            raise BadInput(f"The first write to job {self.job!r} has no record. Add the state after its events.")


@dataclass(frozen=True, slots=True)
class Written:
    """The write was applied. `revision` is that of its last event."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write was not applied, because the job was at `revision` and not at `expected`."""

    revision: int


Outcome: TypeAlias = Written | Conflict


@dataclass(frozen=True, slots=True)
class Hold:
    """The right of `owner` to act under `name` until `until_s`. The hold with the higher `term` is newer.

    `url` is the address under which the owner wants to be reached; empty if it gave none.
    """

    name: str
    owner: str
    term: int
    until_s: float
    url: str = ""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another owner holds the name. `hold` has the owner and the latest time at which its hold ends unless renewed."""

    hold: Hold


class Store(Protocol):
    """The contract of the module's docstring. `tests/contract` runs against every store."""

    @property
    def identity(self) -> str:
        """Compare it with the remembered identity before relying on a remembered revision."""
        ...

    def read(self, job: str) -> Stored | None:
        """Return a job's record and tail; None if there is no such job."""
        ...

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        """Return up to `limit` live jobs in the order of their names, from the first name after `after` on."""
        ...

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        """Apply a batch of writes, if `under` is still in force. The outcomes are in the order of `writes`."""
        ...

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        """Return up to `limit` events from revision `after + 1` on."""
        ...

    def segments(self, job: str) -> tuple[Segment, ...]:
        """Return the segments of a job's trimmed events, oldest first."""
        ...

    def trim(self, job: str, segment: Segment, under: Hold | None = None) -> bool:
        """Replace events by the segment that has them. False if that is not possible, or was done before."""
        ...

    def delete(self, job: str, expected: int, under: Hold | None = None) -> Conflict | None:
        """Delete a job if it is at revision `expected`. None when it is gone."""
        ...

    def jobs(self) -> tuple[str, ...]:
        """Return the names of all jobs, sorted."""
        ...

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        """Gain the hold, or renew it. Call again well before `until_s`."""
        ...

    def holder(self, name: str, now: float) -> Hold | None:
        """Return the hold in force under a name without asking for it; None if there is none."""
        ...

    def release(self, hold: Hold) -> None:
        """End a hold, so that the next owner need not wait for its expiry. No effect if that hold is over."""
        ...


def hold_lost(hold: Hold) -> HoldLost:
    """Describe a write under a hold that is over."""
    return HoldLost(
        f"The hold {hold.name!r} of {hold.owner} (term {hold.term}) is over; nothing was written. Another coordinator "
        f"may lead by now."
    )


# Argument checks that all stores share.


def check_batch(writes: Sequence[Write]) -> None:
    """Raise BadInput if a batch has two writes to one job, whose order would be undefined."""
    seen: set[str] = set()
    for write in writes:
        if write.job in seen:
            raise BadInput(f"Job {write.job!r} is written twice in one batch. Send the writes one after the other.")
        seen.add(write.job)


def check_expected(expected: int) -> None:
    if expected < 1:
        raise BadInput(f"`expected` must be the revision of the job, 1 or more, got {expected}.")


def check_after(after: int) -> None:
    if after < 0:
        raise BadInput(f"`after` must be a revision of 0 or more, got {after}.")


def check_limit(limit: int) -> None:
    if limit < 1:
        raise BadInput(f"`limit` must be 1 or more, got {limit}.")


def check_hold(name: str, owner: str, ttl_s: float, now: float) -> None:
    """Raise BadInput for an empty name and for times that would make a hold never end or never begin."""
    if not name or not owner:
        raise BadInput("A hold needs a name and an owner.")
    if not (math.isfinite(ttl_s) and ttl_s > 0):
        raise BadInput(f"The time to live of a hold must be finite and above 0 s, got {ttl_s}.")
    check_now(now)


def check_now(now: float) -> None:
    if not math.isfinite(now):
        raise BadInput(f"`now` must be a finite number, got {now}.")


def check_text(*names: str) -> None:
    """Raise BadInput for a name that cannot be encoded in UTF-8."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadInput(f"The name {name!r} cannot be encoded in UTF-8: it has a lone surrogate.") from None
