"""A store in the memory of this process, for the simulator, for tests, and for jobs that need not outlive it.

Its contents are lost when the process ends. Otherwise it fulfils the contract in `pliant.stores.base`. All callers are
in one process and share its clock, by which holds end. It raises no `StoreError` except `HoldLost`; the simulator wraps
it to produce others.

Threads may share it; their calls run one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from pliant.errors import BadInput, EventsTrimmed
from pliant.stores.base import (
    Busy,
    Conflict,
    Entry,
    Hold,
    Outcome,
    Segment,
    Stored,
    Write,
    Written,
    check_after,
    check_batch,
    check_expected,
    check_hold,
    check_limit,
    check_now,
    hold_lost,
)

__all__ = ["MemoryStore"]

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate["MemoryStore", P], R]


def _locked(method: Method[P, R]) -> Method[P, R]:
    """Run one call at a time."""

    @wraps(method)
    def call(store: MemoryStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with store._lock:
            return method(store, *args, **kwargs)

    return call


@dataclass(slots=True)
class _Job:
    record: bytes
    record_revision: int
    base: int  # the revision before its first event
    live: bool = True
    events: list[bytes] = field(default_factory=list)  # from `first` on
    segments: list[Segment] = field(default_factory=list)

    @property
    def first(self) -> int:
        return (self.segments[-1].last if self.segments else self.base) + 1

    @property
    def revision(self) -> int:
        return self.first - 1 + len(self.events)

    def stored(self) -> Stored:
        tail = self.events[self.record_revision + 1 - self.first :]
        return Stored(self.revision, self.record, self.record_revision, tuple(tail))


class MemoryStore:
    """An in-memory store. Give each one its own identity: clients take two with the same identity for one store."""

    __slots__ = ("_floor", "_holds", "_jobs", "_lock", "_terms", "identity")

    def __init__(self, identity: str) -> None:
        if not identity:
            raise BadInput("A store needs an identity.")
        self.identity = identity
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._floor = 0  # the highest revision of a deleted job
        self._holds: dict[str, Hold] = {}
        self._terms: dict[str, int] = {}  # the highest term ever given, also after its hold ended

    @_locked
    def read(self, job: str) -> Stored | None:
        kept = self._jobs.get(job)
        return None if kept is None else kept.stored()

    @_locked
    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        check_limit(limit)
        names = sorted(name for name, kept in self._jobs.items() if kept.live and name > after)
        return tuple([(name, self._jobs[name].stored()) for name in names[:limit]])

    @_locked
    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        check_batch(writes)
        if writes:
            self._check_held(under)
        return tuple([self._apply(write) for write in writes])

    def _apply(self, write: Write) -> Outcome:
        kept = self._jobs.get(write.job)
        revision = 0 if kept is None else kept.revision
        if revision != write.expected:
            return Conflict(revision)
        if kept is None:
            assert write.record is not None  # `Write` requires one when `expected` is 0
            kept = self._jobs[write.job] = _Job(write.record, 0, self._floor)
        kept.live = write.live
        kept.events.extend(write.events)
        if write.record is not None:
            kept.record = write.record
            kept.record_revision = kept.revision
        return Written(kept.revision)

    @_locked
    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        check_after(after)
        check_limit(limit)
        kept = self._jobs.get(job)
        if kept is None:
            return ()
        after, trimmed = max(after, kept.base), kept.first - 1
        if after < trimmed:
            raise EventsTrimmed(f"The events of job {job!r} up to revision {trimmed} are archived.", trimmed)
        found = kept.events[after - trimmed : after - trimmed + limit]
        return tuple([Entry(i, data) for i, data in enumerate(found, after + 1)])

    @_locked
    def segments(self, job: str) -> tuple[Segment, ...]:
        kept = self._jobs.get(job)
        return () if kept is None else tuple(kept.segments)

    @_locked
    def trim(self, job: str, segment: Segment, under: Hold | None = None) -> bool:
        self._check_held(under)
        kept = self._jobs.get(job)
        if kept is None or segment.first != kept.first or segment.last > min(kept.record_revision, kept.revision - 1):
            return False
        del kept.events[: segment.last + 1 - kept.first]
        kept.segments.append(segment)
        return True

    @_locked
    def delete(self, job: str, expected: int, under: Hold | None = None) -> Conflict | None:
        check_expected(expected)
        self._check_held(under)
        kept = self._jobs.get(job)
        revision = 0 if kept is None else kept.revision
        if revision != expected:
            return Conflict(revision)
        self._floor = max(self._floor, revision)
        del self._jobs[job]
        return None

    @_locked
    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(self._jobs))

    @_locked
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

    @_locked
    def holder(self, name: str, now: float) -> Hold | None:
        check_now(now)
        held = self._holds.get(name)
        return held if held is not None and now < held.until_s else None

    @_locked
    def release(self, hold: Hold) -> None:
        if self._is_held(hold):
            del self._holds[hold.name]

    def _check_held(self, under: Hold | None) -> None:
        if under is not None and not self._is_held(under):
            raise hold_lost(under)

    def _is_held(self, hold: Hold) -> bool:
        held = self._holds.get(hold.name)
        # Compare the term and not the time: a renewed hold is the same hold, a later one of the same owner is not.
        return held is not None and (held.owner, held.term) == (hold.owner, hold.term)
