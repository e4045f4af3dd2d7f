"""A store in this process's memory: for the simulator, for tests, and for jobs that need not outlive it.

Everything is gone when the process ends, and that is the only way in which it keeps less than the contract in
`pliant.stores.base`. It raises no `StoreError`; whoever wants to see those wraps it (the simulator does).

Not thread-safe: use it from one thread, or under a lock of your own around every call. Callbacks of `watch`
run on the thread that writes, after the whole batch has been applied and before `write` returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pliant.errors import BadInput
from pliant.stores.base import (
    Busy,
    Conflict,
    Entry,
    Hold,
    Outcome,
    Stored,
    Told,
    Write,
    Written,
    check_after,
    check_batch,
    check_hold,
    check_limit,
)

__all__ = ["MemoryStore"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    record: bytes
    record_revision: int
    events: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Watch:
    callback: Told
    after: int
    stopped: bool = False


class MemoryStore:
    """Give each store an identity of its own: two with the same one look like one store to a client."""

    __slots__ = ("_holds", "_jobs", "_terms", "_watches", "identity")

    def __init__(self, identity: str) -> None:
        if not identity:
            raise BadInput("A store needs an identity.")
        self.identity = identity
        self._jobs: dict[str, _Job] = {}
        self._watches: dict[str, list[_Watch]] = {}
        self._holds: dict[str, Hold] = {}
        self._terms: dict[str, int] = {}  # the highest ever given, kept when the hold is not

    def read(self, job: str) -> Stored | None:
        kept = self._jobs.get(job)
        if kept is None:
            return None
        return Stored(len(kept.events), kept.record, kept.record_revision, tuple(kept.events[kept.record_revision :]))

    def write(self, writes: Sequence[Write]) -> tuple[Outcome, ...]:
        check_batch(writes)
        outcomes = tuple([self._apply(write) for write in writes])
        if self._watches:
            # Only now: whoever is told of one write of the batch may look at all of it.
            for write, outcome in zip(writes, outcomes, strict=True):
                if isinstance(outcome, Written):
                    self._tell(write.job, outcome.revision)
        return outcomes

    def _apply(self, write: Write) -> Outcome:
        kept = self._jobs.get(write.job)
        revision = 0 if kept is None else len(kept.events)
        if revision != write.expected:
            return Conflict(revision)
        if kept is None:
            assert write.record is not None  # a `Write` that expects 0 cannot be made without one
            kept = self._jobs[write.job] = _Job(write.record, 0)
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

    def watch(self, job: str, after: int, callback: Told) -> Callable[[], None]:
        check_after(after)
        watch = _Watch(callback, after)
        self._watches.setdefault(job, []).append(watch)

        def stop() -> None:
            if not watch.stopped:
                watch.stopped = True
                others = self._watches[job]
                others.remove(watch)
                if not others:
                    del self._watches[job]

        kept = self._jobs.get(job)
        if kept is not None:
            _call(watch, job, len(kept.events))
        return stop

    def _tell(self, job: str, revision: int) -> None:
        for watch in tuple(self._watches.get(job, ())):  # a copy: callbacks may stop watches
            _call(watch, job, revision)

    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(self._jobs))

    def hold(self, name: str, owner: str, ttl_s: float, now: float) -> Hold | Busy:
        check_hold(name, owner, ttl_s, now)
        held = self._holds.get(name)
        if held is not None and now < held.until_s:
            if held.owner != owner:
                return Busy(held)
            term = held.term
        else:
            term = self._terms[name] = self._terms.get(name, 0) + 1
        mine = self._holds[name] = Hold(name, owner, term, now + ttl_s)
        return mine

    def release(self, hold: Hold) -> None:
        held = self._holds.get(hold.name)
        # By term, not by time: a renewed hold is the same hold, a later one of the same owner is not.
        if held is not None and (held.owner, held.term) == (hold.owner, hold.term):
            del self._holds[hold.name]


def _call(watch: _Watch, job: str, revision: int) -> None:
    if watch.stopped or revision <= watch.after:
        return
    try:
        watch.callback(job, revision)
    except Exception:
        # why: the write stands; raising would tell its writer that it failed, and other watchers nothing.
        log.exception("A watch on job %s raised at revision %d.", job, revision)
