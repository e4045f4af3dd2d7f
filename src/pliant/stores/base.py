"""The contract between whoever decides and wherever decisions are kept.

**What is kept.** For each job one stream of events and one record. An event's revision is its place in the
stream: 1, 2, 3, without a gap. A job's revision is that of its newest event, which is also the number of
events ever written to it; 0 means that there is no such job. The record is the job's state as the writer saw
it after the event with the revision `record_revision`; the events since then are the tail. So the state is
the record evolved over the tail, always. A write may leave the record out: a progress report then costs its
own bytes and not the size of the job. How long a tail may grow is the writer's choice. Nothing is ever
changed in place or removed; a job's name is taken for as long as the store lives.

**Writing.** `write` takes a batch of writes, at most one to a job. Each is a compare-and-swap of its own: it
is applied whole, events and record together, if the job's revision is `expected` at that moment, and not at
all otherwise. The writes are independent: a conflict in one does nothing to the others. When `write`
returns, every write answered `Written` is as durable as this store ever makes anything, paid for once for
the whole batch. Nobody sees a write before it is durable: no read, no watch. From then on every read through
any handle sees it.

**A lost race.** `Conflict` is an ordinary answer and carries the revision found. Nothing was written to that
job. Read, decide again on what is there now, write again; never send the old events against the new revision,
for they were decided on another state. A revision found *below* `expected` cannot come from a race: the store
was set back, by a restored backup for instance. Whoever meets that stops and says so, because what it has
acknowledged is gone.

**Errors.** They say what is known about the whole batch.

  `BadInput`          The arguments break the contract, whatever the store holds. Nothing was done.
  `StoreUnavailable`  Nothing was written and nothing will be. The same batch may be sent again as it is.
  `StoreTimeout`      Not known. Each write of the batch, independently, may have been applied, may be applied
                      later, or never. It cannot be applied once another write to that job has succeeded, for
                      then its `expected` is past.
  `StoreError` itself Nothing was written, and trying again will not help until somebody has seen to it: the
                      disk is full, the file is not ours, a page is damaged.

**After a timeout.** Acknowledge nothing. Read the job's events after `expected`: if they begin with exactly
the bytes that were sent, the write was applied (should another writer have written the very same bytes
there, the outcome is the same to the bit, so it does not matter whose they are). If the revision is still
`expected`, the write may yet arrive; decide again and write at that revision: one of the two wins, the other
conflicts. To send the same write again is safe too, since it cannot be applied twice, but the `Conflict` it
may get can be one's own earlier success.

**Reading.** `read` and `events` have no effect, and each answers from one moment: never half of a write. A
reader may see a job at a newer revision than another that it read just before; across jobs nothing is
promised.

**Watching.** `watch(job, after, callback)` calls `callback(job, revision)` when the job's revision is beyond
`after`: inside the call itself if it already is, and again when it has grown further, whoever wrote. The
call is a hint with a number, not a delivery. Several writes may be told as one; to one callback the
revisions only grow; the newest is always told in the end, also across a connection that the store lost and
made again. Whoever was told asks `events` for what it has not seen. Why this shape, the smallest we found:

  - It serves all callers alike. The simulator schedules a message, a thread sets its `Event`, an asyncio
    service uses `call_soon_threadsafe`; an iterator, a future or a queue would have chosen one of them for
    everybody.
  - Nothing can fall between asking and waiting, because `after` is part of the question. A long poll with a
    revision is one `watch`; an event stream that resumes where the last connection broke is `events`
    repeated.
  - There is no buffer to bound: a slow reader is told less often and reads more each time.
  - Every store can keep it: SQLite calls after its commit, etcd from one watch on the prefix of all jobs.

A callback runs wherever the store happens to be, perhaps on its writer's thread: it sets a flag or wakes a
task and returns. It may stop watches, its own too; it calls nothing else of the store. Should it raise, that
is logged and nobody else is affected: the write it was told of stands. `watch` returns a function that stops
it, which may be called any number of times. After that the callback is not called, but for a call already
under way on another thread. A job need not exist to be watched.

**Holding.** `hold` lets one of several coordinators do the work. It gives liveness and never safety: a
holder that was paused, or whose clock is off, goes on believing while another one holds, and both write.
What keeps them apart is the compare-and-swap above, on every single write. A hold is in force while `now <
until_s`. While it is, its owner's `hold` renews it and anybody else's is answered `Busy`; otherwise whoever
asks first gets it. Every hold gained, also by the owner that had it before, has a higher `term` than all
before it under that name; renewing keeps the term; `release` and expiry never lower it. `now` is the
caller's clock: clocks that disagree move the change of holder to an earlier or a later moment, and that is
all they do. A store with leases of its own may measure the time to live by its own clock instead, and one that
can tell that the holder's process is dead may end its hold at once. An owner's name belongs to one life of one
process. After an error from `hold`, believe that you do not hold.

**Identity.** `identity` is given when a store is made and stays with its contents for life. Revisions compare
only within one identity: a client that sees another one throws away what it remembers and reads afresh. A store
that finds itself set back to an older state (a backup was restored) gives itself a new identity when it is
opened, if it can tell. A handle whose store gets another identity while it is open refuses to write.

**Names** are text that has a form in UTF-8; others are `BadInput` where a store cannot keep them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from pliant.errors import BadInput

__all__ = [
    "Busy",
    "Conflict",
    "Entry",
    "Hold",
    "Outcome",
    "Store",
    "Stored",
    "Told",
    "Write",
    "Written",
    "check_after",
    "check_batch",
    "check_hold",
    "check_limit",
]

Told: TypeAlias = Callable[[str, int], None]
"""What a watch calls: with the job and a revision that it has reached."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A job as it is kept. `revision == record_revision + len(tail)`, always."""

    revision: int
    record: bytes
    record_revision: int
    tail: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One event and its place in the job's stream."""

    revision: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Write:
    """A wish to append `events` to a job that is at revision `expected`.

    `record`, if given, is the state after these events and becomes the newest record. A job's first write,
    expecting 0, must bring one.
    """

    job: str
    expected: int
    events: tuple[bytes, ...]
    record: bytes | None = None

    def __post_init__(self) -> None:
        if not self.job:
            raise BadInput("A write needs the name of a job.")
        if self.expected < 0:
            raise BadInput(f"A write to job {self.job!r} expects revision {self.expected}; the lowest is 0.")
        if not self.events:
            raise BadInput(f"A write to job {self.job!r} brings no event; a revision counts events.")
        if self.expected == 0 and self.record is None:
            raise BadInput(f"The first write to job {self.job!r} brings no record; there is none to fall back on.")


@dataclass(frozen=True, slots=True)
class Written:
    """The write was applied; the job is at `revision` now, which is `expected` plus the number of events."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The write was not applied: the job was at `revision`, not where the writer expected it."""

    revision: int


Outcome: TypeAlias = Written | Conflict


@dataclass(frozen=True, slots=True)
class Hold:
    """`owner` holds `name` until `until_s`. `term` grows with every hold gained: the higher is the newer."""

    name: str
    owner: str
    term: int
    until_s: float


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else holds it: `hold` says who, and until when unless it is renewed."""

    hold: Hold


class Store(Protocol):
    """See the module's docstring, which is the contract; `tests/contract` holds every store to it."""

    @property
    def identity(self) -> str:
        """Compare with what you remember before trusting a remembered revision."""
        ...

    def read(self, job: str) -> Stored | None:
        """Call to learn a job's state before deciding; None if there is no such job."""
        ...

    def write(self, writes: Sequence[Write]) -> tuple[Outcome, ...]:
        """Call once for everything decided in one go; the answers are in the order of `writes`."""
        ...

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        """Call to follow a job: up to `limit` events from revision `after + 1` on, none if there are none."""
        ...

    def watch(self, job: str, after: int, callback: Told) -> Callable[[], None]:
        """Call when `events` has nothing more, to be told when it has; returns what stops it."""
        ...

    def jobs(self) -> tuple[str, ...]:
        """Call at the start, to learn which jobs there are; sorted by name."""
        ...

    def hold(self, name: str, owner: str, ttl_s: float, now: float) -> Hold | Busy:
        """Call to gain the hold, and well before `until_s` again to keep it."""
        ...

    def release(self, hold: Hold) -> None:
        """Call on a clean exit, so that the next one need not wait; no effect if that hold is over."""
        ...


# What follows is for stores: the checks that do not depend on where the bytes are kept.


def check_batch(writes: Sequence[Write]) -> None:
    """Call at the top of `write`: two writes to one job in a batch have no order that one could rely on."""
    seen: set[str] = set()
    for write in writes:
        if write.job in seen:
            raise BadInput(f"Job {write.job!r} is written twice in one batch.")
        seen.add(write.job)


def check_after(after: int) -> None:
    """Call at the top of `events` and `watch`."""
    if after < 0:
        raise BadInput(f"There are no events after revision {after}; the lowest is 0.")


def check_limit(limit: int) -> None:
    """Call at the top of `events`."""
    if limit < 1:
        raise BadInput(f"A limit of {limit} events asks for nothing; the lowest is 1.")


def check_hold(name: str, owner: str, ttl_s: float, now: float) -> None:
    """Call at the top of `hold`: a time that is no number would make a hold that never ends, or never was."""
    if not name or not owner:
        raise BadInput("A hold needs a name and an owner.")
    if not (math.isfinite(ttl_s) and ttl_s > 0):
        raise BadInput(f"A hold for {ttl_s} s is none; the time to live must be above 0 and finite.")
    if not math.isfinite(now):
        raise BadInput(f"The time {now} is not a moment.")
