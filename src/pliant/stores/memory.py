"""A store in the memory of this process, for the simulator, for tests, and for jobs that need not outlive it.

Its contents are lost when the process ends. Otherwise it fulfils the contract in `pliant.stores.base`. All callers are
in one process and share its clock, by which holds end. It raises no `StoreError` except `HoldLost`; the simulator wraps
it to produce others.

Not thread-safe: use it from one thread, or under a lock around every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pliant.errors import BadInput
from pliant.stores.base import (
    Busy,
    Conflict,
    Entry,
    Hold,
    Outcome,
    Stored,
    Write,
    Written,
    check_after,
    check_batch,
    check_hold,
    check_limit,
    hold_lost,
)

__all__ = ["MemoryStore"]


@dataclass(slots=True)
class _Job:
    record: bytes
    record_revision: int
    events: list[bytes] = field(default_factory=list)
    live: bool = True

    def stored(self) -> Stored:
        return Stored(len(self.events), self.record, self.record_revision, tuple(self.events[self.record_revision :]))


class MemoryStore:
    """An in-memory store. Give each one its own identity: clients take two with the same identity for one store."""

    __slots__ = ("_holds", "_jobs", "_terms", "identity")

    def __init__(self, identity: str) -> None:
        if not identity:
            raise BadInput("A store needs an identity.")
        self.identity = identity
        self._jobs: dict[str, _Job] = {}
        self._holds: dict[str, Hold] = {}
        self._terms: dict[str, int] = {}  # the highest term ever given, also after its hold ended

    def read(self, job: str) -> Stored | None:
        kept = self._jobs.get(job)
        return None if kept is None else kept.stored()

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        check_limit(limit)
        names = sorted(name for name, kept in self._jobs.items() if kept.live and name > after)
        return tuple([(name, self._jobs[name].stored()) for name in names[:limit]])

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        check_batch(writes)
        if writes and under is not None and not self._is_held(under):
            raise hold_lost(under)
        return tuple([self._apply(write) for write in writes])

    def _apply(self, write: Write) -> Outcome:
        kept = self._jobs.get(write.job)
        revision = 0 if kept is None else len(kept.events)
        if revision != write.expected:
            return Conflict(revision)
        if kept is None:
            assert write.record is not None  # `Write` requires one when `expected` is 0
            kept = self._jobs[write.job] = _Job(write.record, 0)
        kept.live = write.live
        kept.events.extend(write.events)
        revision = len(kept.events)
        if write.record is not None:
            kept.record = write.record
            kept.record_revision = revision
        return Written(revision)

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        check_after(after)
        check_limit(limit)
        kept = self._jobs.get(job)
        if kept is None:
            return ()
        return tuple([Entry(i, data) for i, data in enumerate(kept.events[after : after + limit], after + 1)])

    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(self._jobs))

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        check_hold(name, owner, ttl_s, now)
        held = self._holds.get(name)
        if held is not None and now < held.until_s:
            if held.owner != owner:
                return Busy(held)
            term = held.term
        else:
            term = self._terms[name] = self._terms.get(name, 0) + 1
        mine = self._holds[name] = Hold(name, owner, term, now + ttl_s, url)
        return mine

    def release(self, hold: Hold) -> None:
        if self._is_held(hold):
            del self._holds[hold.name]

    def _is_held(self, hold: Hold) -> bool:
        held = self._holds.get(hold.name)
        # Compare the term and not the time: a renewed hold is the same hold, a later one of the same owner is not.
        return held is not None and (held.owner, held.term) == (hold.owner, hold.term)
