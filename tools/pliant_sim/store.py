"""Simulated disks: a store with injected faults, and the directory of checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pliant.chaos.fault_kinds import FaultKind
from pliant.core.model.checkpoint import Checkpoint
from pliant.errors import StoreTimeout, StoreUnavailable
from pliant.stores.base import Busy, Conflict, Entry, Hold, Outcome, Segment, Store, Stored, Write, Written
from pliant_sim.live.toy_model import ToyModel


class CoordinatorCrash(BaseException):
    """A coordinator's process ends in the middle of a write."""


@dataclass(slots=True)
class FlakyStore:
    """One coordinator's connection to the real store contract, with faults armed for its next writes.

    It keeps the contract: after an error nothing was written; after a timeout the outcome is open.
    """

    store: Store
    written: Callable[[Write, int], None]
    later: Callable[[Sequence[Write]], None]
    fired: Callable[[FaultKind], None]
    armed: list[FaultKind] = field(default_factory=list)
    cut: bool = False  # it cannot be reached
    wrote: Callable[[], None] = lambda: None  # called after each write

    @property
    def reached(self) -> Store:
        """The store, unless this coordinator is cut off from it."""
        if self.cut:
            raise StoreUnavailable("it cannot be reached")
        return self.store

    @property
    def identity(self) -> str:
        return self.store.identity

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        if self.cut:
            raise StoreUnavailable("it cannot be reached")
        fault = self.armed.pop(0) if self.armed else None
        if fault:
            self.fired(fault)
        if fault is FaultKind.CRASH_BEFORE_WRITE:
            raise CoordinatorCrash
        if fault is FaultKind.STORE_ERROR:
            raise StoreUnavailable("disk error")
        if fault is FaultKind.STORE_TIMEOUT_LOST:
            raise StoreTimeout("no answer")
        if fault is FaultKind.STORE_TIMEOUT_LATE:
            self.later(writes)
            raise StoreTimeout("no answer yet")
        outcomes = self.apply(writes, under)
        self.wrote()
        if fault is FaultKind.CRASH_AFTER_WRITE:
            raise CoordinatorCrash
        if fault is FaultKind.STORE_TIMEOUT_APPLIED:
            raise StoreTimeout("the answer was lost")
        return outcomes

    def apply(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        outcomes = self.store.write(writes, under)
        for write, outcome in zip(writes, outcomes, strict=True):
            if isinstance(outcome, Written):
                self.written(write, outcome.revision)
        return outcomes

    def read(self, job: str) -> Stored | None:
        return self.reached.read(job)

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        return self.reached.read_page(after, limit)

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        return self.reached.events(job, after, limit)

    def segments(self, job: str) -> tuple[Segment, ...]:
        return self.reached.segments(job)

    def trim(self, job: str, segment: Segment, under: Hold | None = None) -> bool:
        return self.reached.trim(job, segment, under)

    def delete(self, job: str, expected: int, under: Hold | None = None) -> Conflict | None:
        return self.reached.delete(job, expected, under)

    def jobs(self) -> tuple[str, ...]:
        return self.reached.jobs()

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        return self.reached.hold(name, owner, ttl_s, now, url)

    def holder(self, name: str, now: float) -> Hold | None:
        return self.reached.holder(name, now)

    def release(self, hold: Hold) -> None:
        self.reached.release(hold)


@dataclass(slots=True)
class CheckpointDirectory:
    """The shared directory of checkpoints. Every member can write any name."""

    files: dict[str, dict[str, ToyModel]] = field(default_factory=dict)  # by checkpoint, then by file
    damaged: set[str] = field(default_factory=set)

    def write(self, name: str, file: str, model: ToyModel) -> ToyModel | None:
        """Write a file; return the one it replaced, if that differed."""
        there = self.files.setdefault(name, {})
        before = there.get(file)
        there[file] = model
        return before if before is not None and before != model else None

    def unread(self, checkpoint: Checkpoint) -> bool | None:
        """Return True if it is damaged, False if it is incomplete, None if it can be read."""
        if checkpoint.name in self.damaged:
            return True
        there = self.files.get(checkpoint.name, {})
        return None if all(piece.file in there for piece in checkpoint.pieces) else False

    def read(self, checkpoint: Checkpoint) -> ToyModel:
        return self.files[checkpoint.name][checkpoint.pieces[0].file]

    def remove(self, name: str) -> None:
        self.files.pop(name, None)
