"""Archiving through kills, changes of leader, deletions and reused names: no event is lost, doubled or mixed up."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pliant.coordinator import archiver
from pliant.coordinator.archiver import Archiver
from pliant.coordinator.history import JobHistory
from pliant.coordinator.housekeeping import remove_leftover
from pliant.errors import HoldLost
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Conflict, Hold, Segment, Write, Written
from pliant.stores.memory import MemoryStore

JOBS = ("a", "b")
LEADERS = ("x", "y")
SMALL = {"SEGMENT_EVENTS": 4, "KEPT_EVENTS": 2, "ENDED_EVENTS": 2, "PAGE": 3, "SEGMENT_BYTES": 60}


class Killed(Exception):
    """The process is killed here."""


@dataclass
class MemoryFiles:
    """Files of an archive, and the moment at which its writer is killed: "", "before" or "after" the write."""

    content: dict[str, bytes] = field(default_factory=dict)
    kill: str = ""
    location: str = "memory"

    def write(self, path: str, content: bytes) -> None:
        assert self.content.get(path, content) == content, "a segment never changes"
        if self.kill == "before":
            raise Killed
        self.content[path] = content
        if self.kill == "after":
            raise Killed

    def read(self, path: str) -> bytes:
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def names(self, folder: str) -> list[str]:
        depth = folder.count("/") + 1
        return sorted({path.split("/")[depth] for path in self.content if path.startswith(f"{folder}/")})

    def remove(self, path: str) -> None:
        self.content.pop(path, None)


class Archiving(RuleBasedStateMachine):
    """Two coordinators on one store and one archive, beside a plain list of each job's events."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for name, value in SMALL.items():
            self.patch.setattr(archiver, name, value)
        self.store = MemoryStore("store")
        self.files = MemoryFiles()
        self.archive = Archive(self.files, "store")
        self.mover = Archiver(self.store, self.archive)
        self.history = JobHistory(self.store, self.archive)  # with what it remembers of deleted jobs
        self.events: dict[str, list[tuple[int, bytes]]] = {}
        self.highest = 0  # revision of a deleted job
        self.holds: dict[str, Hold] = {}
        self.written = 0
        self.lead(LEADERS[0])

    def teardown(self) -> None:
        self.patch.undo()

    @rule(job=st.sampled_from(JOBS), count=st.integers(1, 15), recorded=st.sampled_from([True, True, False]))
    def write(self, job: str, count: int, recorded: bool) -> None:
        known = self.events.get(job, [])
        expected = known[-1][0] if known else 0
        data = tuple(b"event %d" % (self.written + number) for number in range(count))
        self.written += count
        record = b"record" if recorded or not expected else None
        (outcome,) = self.store.write([Write(job, expected, data, record)])
        assert isinstance(outcome, Written)
        first = outcome.revision - count + 1
        assert first == (expected or self.highest) + 1
        self.events.setdefault(job, []).extend((first + i, each) for i, each in enumerate(data))

    @rule(leader=st.sampled_from(LEADERS))
    def lead(self, leader: str) -> None:
        """The other one is paused and does not know that it leads no more."""
        for hold in self.holds.values():
            self.store.release(hold)
        found = self.store.hold("coordinator", leader, 1e9, 0.0)
        assert isinstance(found, Hold)
        self.holds[leader] = found

    @rule(leader=st.sampled_from(LEADERS), ended=st.booleans(), pieces=st.integers(1, 4))
    def archive_pieces(self, leader: str, ended: bool, pieces: int) -> None:
        if leader in self.holds:
            with suppress(HoldLost):
                for job in JOBS * pieces:
                    self.mover.move(job, self.holds[leader], ended=ended)

    @rule(job=st.sampled_from(JOBS), kill=st.sampled_from(["before", "after"]))
    def archive_and_be_killed(self, job: str, kill: str) -> None:
        self.files.kill = kill
        with suppress(Killed, HoldLost):
            self.mover.move(job, next(iter(self.holds.values())), ended=False)
        self.files.kill = ""

    @rule(job=st.sampled_from(JOBS), kill=st.booleans())
    def delete(self, job: str, kill: bool) -> None:
        known = self.events.get(job)
        if known is None:
            assert self.store.delete(job, 1) == Conflict(0)
            return
        revision = known[-1][0]
        assert self.store.delete(job, revision) is None
        del self.events[job]
        self.highest = max(self.highest, revision)
        if not kill:
            self.archive.remove(job, revision)

    @rule()
    def sweep(self) -> None:
        for job in self.archive.jobs():
            remove_leftover(self.store, self.archive, job)
        assert set(self.archive.jobs()) <= set(self.events)

    @rule(job=st.sampled_from(JOBS), after=st.integers(0, 40), limit=st.integers(1, 30))
    def read_a_page(self, job: str, after: int, limit: int) -> None:
        wanted = [entry for entry in self.events.get(job, []) if entry[0] > after][:limit]
        assert [(entry.revision, entry.data) for entry in self.history.events(job, after, limit)] == wanted

    @invariant()
    def every_history_is_whole(self) -> None:
        for job in JOBS:
            found = self.history.events(job, 0, 10_000)
            assert [(entry.revision, entry.data) for entry in found] == self.events.get(job, [])
            segments: tuple[Segment, ...] = self.store.segments(job)
            assert all(segment.name in self.files.content for segment in segments)


TestArchiving = Archiving.TestCase
TestArchiving.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
