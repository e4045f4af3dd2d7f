"""Old events move to the archive, whatever happens in between, and are read as if they had not."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pliant.coordinator import archiver as module
from pliant.coordinator.archiver import Archiver, Moved, segment_end
from pliant.coordinator.history import SEGMENTS_CACHED, JobHistory
from pliant.errors import HoldLost, StoreError, StoreTimeout
from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Entry, Hold, Segment, Store, Write
from pliant.stores.memory import MemoryStore
from pliant.stores.sqlite import SqliteStore
from unit.coordinator.shaky import Shaky

SEGMENT, KEPT, ENDED = 40, 10, 5


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SEGMENT_EVENTS", SEGMENT), ("KEPT_EVENTS", KEPT), ("ENDED_EVENTS", ENDED), ("PAGE", 7)):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(FolderFiles(tmp_path / "archive"), "store-1")


def data(count: int) -> list[bytes]:
    return [b'{"step":%d}' % number for number in range(1, count + 1)]


def filled(store: Store, count: int, tail: int = 0) -> list[bytes]:
    """Write so many events; the record covers all but the last `tail`."""
    events = data(count)
    store.write([Write("demo", 0, tuple(events[: count - tail]), b"record")])
    if tail:
        store.write([Write("demo", count - tail, tuple(events[count - tail :]))])
    return events


def held(store: Store) -> Hold:
    hold = store.hold("coordinator", "me", 100.0, 0.0)
    assert isinstance(hold, Hold)
    return hold


def whole(history: JobHistory, after: int = 0, limit: int = 9) -> list[Entry]:
    """Read to the end, page by page, as a client does."""
    found: list[Entry] = []
    while page := history.events("demo", found[-1].revision if found else after, limit):
        assert len(page) <= limit
        found += page
    return found


def move_all(mover: Archiver, hold: Hold, *, ended: bool = False) -> int:
    count = 0
    while mover.move("demo", hold, ended=ended).again:
        count += 1
    return count


# -------------------------------------------------------------------------------------------- what is moved


@pytest.mark.parametrize(
    ("trimmed", "record", "revision", "ended", "end"),
    [
        (0, 49, 49, False, None),  # 39 events, and the newest that stay
        (0, 50, 50, False, 40),
        (40, 90, 90, False, 80),
        (0, 30, 500, False, None),  # no record covers them
        (0, 500, 500, False, 40),  # one segment at a time
        (100, 100, 100, True, None),
        (0, 5, 6, True, 5),
        (0, 6, 6, True, 5),  # the newest event stays
        (0, 4, 6, True, None),
        (0, 100, 100, True, 40),
        (80, 100, 100, True, 99),
    ],
)
def test_a_segment_is_full_and_leaves_the_newest_events(
    trimmed: int, record: int, revision: int, ended: bool, end: int | None
) -> None:
    assert segment_end(trimmed, record, revision, ended=ended) == end


@pytest.mark.parametrize("after", [0, 1, 39, 40, 41, 79, 80, 81, 119, 120])
@pytest.mark.parametrize("limit", [1, 9, 1000])
def test_a_history_reads_as_it_was_written_wherever_a_read_begins(archive: Archive, after: int, limit: int) -> None:
    store = MemoryStore("store-1")
    events = filled(store, 120)
    assert move_all(Archiver(store, archive), held(store)) == 2
    assert [segment.last for segment in store.segments("demo")] == [40, 80]
    found = whole(JobHistory(store, archive), after, limit)
    assert found == [Entry(number, events[number - 1]) for number in range(after + 1, 121)]


def test_an_ended_job_keeps_one_event_in_the_store(archive: Archive) -> None:
    store = MemoryStore("store-1")
    events = filled(store, 100)
    assert move_all(Archiver(store, archive), held(store), ended=True) == 3
    assert store.events("demo", 99, 10) == (Entry(100, events[99]),)
    assert [entry.data for entry in whole(JobHistory(store, archive))] == events


def test_a_job_that_is_trained_on_continues_its_segments(archive: Archive) -> None:
    store = MemoryStore("store-1")
    events = filled(store, 30)
    mover, hold = Archiver(store, archive), held(store)
    assert move_all(mover, hold, ended=True) == 1
    more = tuple(b"more %d" % number for number in range(100))
    store.write([Write("demo", 30, more, b"record")])
    assert move_all(mover, hold) == 2
    assert [(segment.first, segment.last) for segment in store.segments("demo")] == [(1, 29), (30, 69), (70, 109)]
    assert [entry.data for entry in whole(JobHistory(store, archive))] == [*events, *more]


def test_a_job_that_was_created_after_a_deletion_is_archived_from_its_first_event(archive: Archive) -> None:
    store = MemoryStore("store-1")
    filled(store, 70)
    store.delete("demo", 70)
    store.write([Write("demo", 0, tuple(data(60)), b"record")])
    assert move_all(Archiver(store, archive), held(store)) == 1
    assert [(segment.first, segment.last) for segment in store.segments("demo")] == [(71, 110)]
    history = JobHistory(store, archive)
    assert [entry.revision for entry in whole(history)] == [*range(71, 131)]
    assert [entry.revision for entry in whole(history, after=50)] == [*range(71, 131)]


def test_long_events_make_short_segments(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    store = MemoryStore("store-1")
    events = filled(store, 60)
    assert move_all(Archiver(store, archive), held(store)) > 1
    assert [entry.data for entry in whole(JobHistory(store, archive))] == events
    store.write([Write("huge", 0, (b"x" * 1000,) * 60, b"record")])
    assert Archiver(store, archive).move("huge", held(store), ended=False) == Moved(1, again=True)


def test_events_that_no_record_covers_stay(archive: Archive) -> None:
    store = MemoryStore("store-1")
    events = filled(store, 200, tail=150)
    assert move_all(Archiver(store, archive), held(store)) == 1
    assert store.segments("demo")[-1].last == 40
    assert [entry.data for entry in whole(JobHistory(store, archive))] == events


def test_a_job_that_does_not_exist_is_nothing_to_do(archive: Archive) -> None:
    store = MemoryStore("store-1")
    assert Archiver(store, archive).move("demo", held(store), ended=True) == Moved(0, again=False)


# --------------------------------------------------------------------------------------------------- trouble


class Stop(Exception):
    """The process is killed here."""


class Dying(FolderFiles):
    """Files that are written, or not, before the process is killed."""

    def __init__(self, folder: Path, *, written: bool) -> None:
        super().__init__(folder)
        self.written = written

    def write(self, path: str, content: bytes) -> None:
        if self.written:
            super().write(path, content)
        raise Stop


@pytest.mark.parametrize("written", [False, True], ids=["before the segment", "between segment and trim"])
def test_a_kill_at_any_moment_loses_and_doubles_nothing(tmp_path: Path, written: bool) -> None:
    path, folder = tmp_path / "store.db", tmp_path / "archive"
    with SqliteStore(path) as store:
        events = filled(store, 120)
        identity = store.identity
        with pytest.raises(Stop):
            Archiver(store, Archive(Dying(folder, written=written), identity)).move("demo", held(store), ended=False)
    with SqliteStore(path) as store:
        archive = Archive(FolderFiles(folder), identity)
        assert [entry.data for entry in whole(JobHistory(store, archive))] == events
        assert move_all(Archiver(store, archive), held(store)) == 2
        assert [entry.data for entry in whole(JobHistory(store, archive))] == events
        assert len(archive_files(folder)) == 2  # the segment of the killed process is one of them


def archive_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_an_answer_that_is_lost_moves_nothing_twice(archive: Archive, tmp_path: Path) -> None:
    store = Shaky(MemoryStore("store-1"))
    events = filled(store, 120)
    hold, mover = held(store), Archiver(store, archive)

    def applied(job: str, segment: Segment, under: Hold | None = None) -> bool:
        MemoryStore.trim(store.inner, job, segment, under)
        raise StoreTimeout("no answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "trim", applied)
        with pytest.raises(StoreTimeout):
            mover.move("demo", hold, ended=False)
    assert move_all(mover, hold) == 1
    assert [entry.data for entry in whole(JobHistory(store, archive))] == events
    assert len(archive_files(tmp_path / "archive")) == 2


def test_a_leader_that_was_replaced_trims_nothing(archive: Archive) -> None:
    store = MemoryStore("store-1")
    filled(store, 120)
    hold = held(store)
    store.release(hold)
    with pytest.raises(HoldLost):
        Archiver(store, archive).move("demo", hold, ended=False)
    assert store.segments("demo") == ()


def test_a_store_that_was_set_back_under_the_archiver_is_reported(archive: Archive) -> None:
    class SetBack(Shaky):
        def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
            return () if after > 20 else super().events(job, after, limit)

    store = SetBack(MemoryStore("store-1"))
    filled(store, 120)
    with pytest.raises(StoreError, match="was set back"):
        Archiver(store, archive).move("demo", held(store), ended=False)


def test_without_the_archive_the_reader_is_told_what_to_do(archive: Archive) -> None:
    store = MemoryStore("store-1")
    filled(store, 120)
    move_all(Archiver(store, archive), held(store))
    with pytest.raises(StoreError, match="Start it with --archive"):
        JobHistory(store, None).events("demo", 0, 10)
    assert len(JobHistory(store, None).events("demo", 80, 100)) == 40


def test_a_job_that_is_deleted_while_it_is_read_has_no_events(archive: Archive) -> None:
    class Deleting(Shaky):
        def segments(self, job: str) -> tuple[Segment, ...]:
            self.inner.delete(job, 120)
            return self.inner.segments(job)

    store = Deleting(MemoryStore("store-1"))
    store.inner.write([Write("demo", 0, tuple(data(120)), b"record")])
    store.inner.trim("demo", Segment(1, 40, "gone"))
    assert JobHistory(store, archive).events("demo", 0, 10) == ()


def test_a_segment_is_read_once_for_all_its_pages_and_few_are_remembered(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore("store-1")
    filled(store, SEGMENT * (SEGMENTS_CACHED + 3))
    count = move_all(Archiver(store, archive), held(store))
    read: list[str] = []
    real = Archive.read

    def noted(self: Archive, segment: Segment) -> Sequence[bytes]:
        read.append(segment.name)
        return real(self, segment)

    monkeypatch.setattr(Archive, "read", noted)
    history = JobHistory(store, archive)
    whole(history)
    assert len(read) == count
    assert len(history._cached) == SEGMENTS_CACHED


def test_a_restored_backup_reads_its_segments_and_goes_its_own_way(tmp_path: Path) -> None:
    folder, path, restored = tmp_path / "archive", tmp_path / "store.db", tmp_path / "restored.db"
    with SqliteStore(path) as store:
        events = filled(store, 120)
        assert move_all(Archiver(store, Archive(FolderFiles(folder), store.identity)), held(store)) == 2
    shutil.copy(path, restored)  # a backup
    histories = []
    for place, text in ((path, b"original"), (restored, b"restored")):
        with SqliteStore(place) as store:
            more = tuple(b"%b %d" % (text, number) for number in range(100))
            store.write([Write("demo", 120, more, b"record")])
            archive = Archive(FolderFiles(folder), store.identity)
            assert move_all(Archiver(store, archive), held(store)) == 3
            found = [entry.data for entry in whole(JobHistory(store, archive))]
            assert found == [*events, *more]
            histories.append((place, store.identity, found))
    (_, first, _), (_, second, _) = histories
    assert first != second
    Archive(FolderFiles(folder), second).remove("demo", 10_000)
    with SqliteStore(path) as store:  # the copy has taken nothing from the original
        assert [entry.data for entry in whole(JobHistory(store, Archive(FolderFiles(folder), first)))] == histories[0][
            2
        ]
