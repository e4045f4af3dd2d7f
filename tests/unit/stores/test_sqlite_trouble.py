"""Trouble with the disk: full, damaged, failing. What was acknowledged is there, what failed says so."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from pliant.errors import BadInput, StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.base import Conflict, Entry, Write, Written
from pliant.stores.sqlite import SqliteStore, errors
from pliant.stores.sqlite.errors import explain, explain_os
from unit.stores.disk import add, faulty, file_limit, first, put, small_disk


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def fill(store: SqliteStore, size_bytes: int) -> tuple[list[bytes], StoreError]:
    """Write until there is no more room; what was acknowledged, and how the end was told."""
    acknowledged: list[bytes] = []
    for i in range(1000):
        data = f"{i}".encode() * size_bytes
        try:
            add(store, data)
        except StoreError as error:
            return acknowledged, error
        acknowledged.append(data)
    raise AssertionError("there was room for everything")


def check_full(store: SqliteStore, acknowledged: list[bytes], error: StoreError) -> None:
    assert type(error) is StoreError
    assert "nothing was written" in error.why
    assert str(store.path) in error.why
    assert len(acknowledged) > 2
    assert [entry.data for entry in store.events("a", 0, 10_000)] == acknowledged
    with pytest.raises(StoreError):
        store.write([Write("a", len(acknowledged), (bytes(900_000),))])
    with pytest.raises(StoreError):
        store.write([first("b", bytes(900_000)), first("c", bytes(900_000))])
    assert store.jobs() == ("a",)  # no half of a batch


def test_a_full_disk_loses_nothing_and_the_store_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=1024) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(300_000))
        with SqliteStore(disk / "store.db") as store:
            acknowledged, error = fill(store, 2000)
            assert "The disk of" in error.why
            check_full(store, acknowledged, error)
            ballast.unlink()
            assert add(store, b"after") == len(acknowledged) + 1
        with SqliteStore(disk / "store.db") as store:
            assert [entry.data for entry in store.events("a", 0, 10_000)] == [*acknowledged, b"after"]


def test_a_store_closed_on_a_full_disk_is_whole_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", size_kb=1024) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(300_000))
        with SqliteStore(disk / "store.db") as store:
            acknowledged, _ = fill(store, 2000)
            identity = store.identity
        ballast.unlink()
        with SqliteStore(disk / "store.db") as store:
            assert [entry.data for entry in store.events("a", 0, 10_000)] == acknowledged
            assert store.identity == identity


def test_a_limit_on_the_size_of_files_is_like_a_full_disk(path: Path) -> None:
    with SqliteStore(path) as store:
        with file_limit(300_000):
            acknowledged, error = fill(store, 2000)
            check_full(store, acknowledged, error)
        assert add(store, b"after") == len(acknowledged) + 1
    with SqliteStore(path) as store:
        assert [entry.data for entry in store.events("a", 0, 10_000)] == [*acknowledged, b"after"]


# --------------------------------------------------------------------------------------------------- damaged


def damage(path: Path, at: bytes, by: bytes) -> None:
    content = path.read_bytes()
    assert content.count(at) >= 1
    path.write_bytes(content.replace(at, by))


@pytest.mark.parametrize("what", ["event-3", "the record"])
def test_a_flipped_bit_is_found_by_whoever_reads_it(path: Path, what: str) -> None:
    with SqliteStore(path) as store:
        put(store, first("a", b"event-1", record=b"the record"), first("b"))
        put(store, Write("a", 1, (b"event-2", b"event-3")))
    damage(path, what.encode(), what.upper().encode())
    with SqliteStore(path) as store:
        with pytest.raises(StoreError, match=r"is damaged; nothing was written. .* restore a backup. \(job 'a' is not"):
            store.read("a")
        assert store.read("b") is not None


def test_an_event_that_is_missing_is_missed(path: Path) -> None:
    with SqliteStore(path) as store:
        put(store, first("a", b"1", record=b"r"))
        put(store, Write("a", 1, (b"2", b"3", b"4")))
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE revision = 3")
    connection.commit()
    connection.close()
    with SqliteStore(path) as store:
        for call in (lambda: store.read("a"), lambda: store.events("a", 0, 10), lambda: store.events("a", 2, 10)):
            with pytest.raises(StoreError, match="is damaged"):
                call()


def test_a_job_that_lost_all_its_events_is_damaged(path: Path) -> None:
    with SqliteStore(path) as store:
        put(store, first("a"))
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events")
    connection.commit()
    connection.close()
    with SqliteStore(path) as store, pytest.raises(StoreError, match="job 'a' has no events"):
        store.write([Write("a", 1, (b"e2",))])


def spoil_pages(path: Path, root: str) -> None:
    """Overwrite the root page of a table or of an index."""
    connection = sqlite3.connect(path)
    (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (root,)).fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)


@pytest.mark.parametrize("root", ["events", "jobs", "sqlite_autoindex_jobs_1"])
def test_a_damaged_page_is_met_by_reads_and_writes(path: Path, root: str) -> None:
    with SqliteStore(path) as store:
        put(store, *[first(f"job-{i}", bytes(500), record=bytes(3000)) for i in range(20)])
    spoil_pages(path, root)
    with SqliteStore(path) as store:  # opening looks at none of these pages, so that others can be read still
        for call in (
            lambda: store.read("job-1"),
            lambda: store.write([Write("job-1", 1, (b"e",), b"r")]),
            lambda: store.write([first("job-99")]),
        ):
            with pytest.raises(StoreError, match=r"is damaged; nothing was written. Stop, keep the file"):
                call()


def test_a_store_that_lost_its_identity_is_damaged(path: Path) -> None:
    SqliteStore(path).close()
    spoil_pages(path, "meta")
    with pytest.raises(StoreError, match="is damaged"):
        SqliteStore(path)
    SqliteStore(path.with_name("other.db")).close()
    connection = sqlite3.connect(path.with_name("other.db"))
    connection.execute("DELETE FROM meta")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="its identity is missing"):
        SqliteStore(path.with_name("other.db"))


def test_a_file_cut_short_is_damaged(path: Path) -> None:
    with SqliteStore(path) as store:
        put(store, *[first(f"job-{i}", bytes(500), record=bytes(3000)) for i in range(20)])
    with path.open("r+b") as file:
        file.truncate(3 * 4096)
    with pytest.raises(StoreError, match="is damaged"), SqliteStore(path) as store:
        store.jobs()


# ---------------------------------------------------------------------------------------------------- failing


@pytest.mark.parametrize("done", [True, False], ids=["applied", "not-applied"])
def test_after_a_failed_flush_the_outcome_is_open_and_the_file_is_flushed_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch, done: bool
) -> None:
    disk = faulty(monkeypatch)
    with SqliteStore(path) as store:
        put(store, first("a", b"e1"))
        disk.fail, disk.after = sqlite3.SQLITE_IOERR_FSYNC, done
        with pytest.raises(StoreTimeout, match=r"it is unknown whether this was written. Read before writing"):
            store.write([Write("a", 1, (b"e2",))])
        disk.fail = 0
        checkpoints = disk.checkpoints
        found = store.events("a", 1, 10)
        assert found == ((Entry(2, b"e2"),) if done else ())
        assert disk.checkpoints == checkpoints + 1  # before that answer was given
        assert store.write([Write("a", 1, (b"e2",))]) == ((Conflict(2),) if done else (Written(2),))


def test_a_file_that_cannot_be_flushed_anew_is_not_built_upon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = faulty(monkeypatch)
    with SqliteStore(path, wait_s=0.02) as store:
        put(store, first("a", b"e1"))
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM jobs").fetchall()
        put(store, Write("a", 1, (b"e2",)))
        disk.fail = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(StoreTimeout):
            store.write([Write("a", 2, (b"e3",))])
        disk.fail = 0
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="cannot be flushed after an error; try again"):
                store.read("a")
        reader.close()
        assert len(store.events("a", 0, 10)) == 2
        put(store, Write("a", 2, (b"e3",)))


def test_a_file_that_was_replaced_after_a_failed_flush_is_not_taken_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = faulty(monkeypatch)
    with SqliteStore(path) as store:
        put(store, first("a", b"e1"))
        disk.fail = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(StoreTimeout):
            store.write([Write("a", 1, (b"e2",))])
        disk.fail = 0
        other = path.with_name("other.db")
        SqliteStore(other).close()
        other.replace(path)
        with pytest.raises(StoreError, match="replaced, moved or removed"):
            store.read("a")


def test_a_directory_that_cannot_be_flushed_is_not_built_upon(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that flush, the name of a new -wal file may be gone after a power cut, with all that is in it."""

    def refuse(_: Path) -> None:
        raise OSError(5, "Input/output error")

    SqliteStore(path).close()
    disk = faulty(monkeypatch)
    with SqliteStore(path) as store:
        disk.fail = sqlite3.SQLITE_IOERR_FSYNC
        with pytest.raises(StoreTimeout):
            store.write([first()])
        disk.fail = 0
        with monkeypatch.context() as patch:
            patch.setattr("pliant.stores.sqlite.file.flush_directory", refuse)
            with pytest.raises(StoreError, match="Input/output error"):
                SqliteStore(path)
            with pytest.raises(StoreError, match="Input/output error"):
                store.write([first()])
        put(store, first())


def test_a_failed_write_before_the_flush_wrote_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = faulty(monkeypatch)
    with SqliteStore(path) as store:
        disk.fail = sqlite3.SQLITE_IOERR_WRITE
        with pytest.raises(StoreError, match="Check the disk, quotas") as caught:
            store.write([first()])
        assert type(caught.value) is StoreError
        disk.fail = 0
        put(store, first())


def test_a_checkpoint_that_fails_does_not_harm_the_write(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = faulty(monkeypatch)
    monkeypatch.setattr("pliant.stores.sqlite.file.CHECKPOINT_PAGES", 1)
    with SqliteStore(path) as store:
        disk.fail, disk.at = sqlite3.SQLITE_IOERR_FSYNC, "PRAGMA wal_checkpoint(RESTART)"
        put(store, first("a", b"e1"))  # it stands in the -wal file
        assert "The disk of" in caplog.text
        disk.fail = 0
        assert store.events("a", 0, 10) == (Entry(1, b"e1"),)


# ---------------------------------------------------------------------------------------------------- sentences


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode, error.sqlite_errorname = code, "SQLITE_SOMETHING"
    return error


@pytest.mark.parametrize(
    ("code", "kind", "in_commit"),
    [
        (sqlite3.SQLITE_BUSY, StoreUnavailable, StoreUnavailable),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreUnavailable, StoreUnavailable),
        (sqlite3.SQLITE_LOCKED, StoreUnavailable, StoreUnavailable),
        (sqlite3.SQLITE_FULL, StoreError, StoreError),
        (sqlite3.SQLITE_TOOBIG, BadInput, BadInput),
        (sqlite3.SQLITE_READONLY, StoreError, StoreError),
        (sqlite3.SQLITE_IOERR_WRITE, StoreError, StoreError),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreError, StoreTimeout),
        (sqlite3.SQLITE_IOERR_DIR_FSYNC, StoreError, StoreTimeout),
        (sqlite3.SQLITE_IOERR_READ, StoreError, StoreTimeout),
        (sqlite3.SQLITE_CORRUPT, StoreError, StoreTimeout),
        (sqlite3.SQLITE_NOTADB, StoreError, StoreTimeout),
        (sqlite3.SQLITE_CANTOPEN, StoreError, StoreTimeout),
        (sqlite3.SQLITE_NOMEM, StoreError, StoreTimeout),
        (sqlite3.SQLITE_ERROR, StoreError, StoreTimeout),
    ],
)
def test_an_error_says_what_is_known_and_no_more(code: int, kind: type, in_commit: type) -> None:
    """Outside of a commit nothing can have been written. In one, only some errors rule it out."""
    outside, inside = explain(sqlite_error(code), Path("/a/b.db")), explain(sqlite_error(code), Path("/a/b.db"), True)
    assert (type(outside), type(inside)) == (kind, in_commit)
    for error in (outside, inside):
        assert "/a/b.db" in error.why
        assert error.why.count(". ") >= 1  # what is, and what to do


def test_an_error_of_python_itself_is_one_of_ours() -> None:
    assert type(explain(sqlite3.ProgrammingError("closed"), Path("/a/b.db"))) is StoreError
    assert not errors.is_recoverable(sqlite3.ProgrammingError("closed"))


@pytest.mark.parametrize("number", [2, 5, 13, 28, 30, 122])
def test_what_the_system_says_becomes_a_sentence(number: int) -> None:
    error = explain_os(OSError(number, "what the system says"), Path("/a/b.db"))
    assert type(error) is StoreError
    assert "/a" in error.why
