"""Opening: what is made, with which rights, what is refused and in which words, and moving old versions on."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pliant.errors import BadInput, StoreError, StoreUnavailable
from pliant.stores.base import Entry
from pliant.stores.sqlite import SqliteStore, file, mark, schema
from unit.stores.disk import OTHER_USER, PROGRAMS, add, as_other_user, file_limit, first, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def theirs() -> Iterator[Path]:
    """A directory that any user gets to, unlike those that pytest makes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def refusal(path: Path) -> str:
    """The sentence with which a path is refused; a plain `StoreError`, for trying again would not help."""
    with pytest.raises(StoreError) as caught:
        SqliteStore(path)
    assert type(caught.value) is StoreError
    assert str(path.parent) in caught.value.why
    return caught.value.why


# ------------------------------------------------------------------------------------------------ what is made


def test_what_was_written_is_there_after_closing_and_opening(path: Path) -> None:
    with SqliteStore(path) as store:
        put(store, first("a", b"e1", b"e2"))
        identity = store.identity
    with SqliteStore(path) as store:
        assert store.events("a", 0, 10) == (Entry(1, b"e1"), Entry(2, b"e2"))
        assert store.identity == identity


def test_an_identity_is_drawn_at_random_and_an_existing_store_keeps_its_own(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "one.db") as one, SqliteStore(tmp_path / "two.db") as two:
        assert one.identity != two.identity
        with SqliteStore(tmp_path / "one.db", identity="another") as again:
            assert again.identity == one.identity


def test_a_clean_close_leaves_the_file_and_its_mark_and_nothing_else(path: Path) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
    assert sorted(found.name for found in path.parent.iterdir()) == ["store.db", "store.db.mark"]


def test_closing_twice_is_recoverable_and_a_closed_store_says_so(path: Path) -> None:
    store = SqliteStore(path)
    store.close()
    store.close()
    for call in (store.jobs, lambda: store.write([first()])):
        with pytest.raises(StoreError, match=r"was closed. Open it again"):
            call()


def test_a_path_may_be_relative_and_hold_what_an_address_may_not(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    with SqliteStore("my store?mode=ro#1 %20.db") as store:
        monkeypatch.chdir("/")  # a daemon does
        assert add(store, b"e1") == 1
    assert (path.parent / "my store?mode=ro#1 %20.db").exists()


def test_a_path_may_be_a_link_and_the_files_are_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "store.db").symlink_to(tmp_path / "disk" / "real.db")
    with SqliteStore(tmp_path / "store.db") as store:
        add(store, b"e1")
        assert {found.name for found in (tmp_path / "disk").iterdir()} >= {"real.db", "real.db-wal", "real.db.mark"}
        with SqliteStore(tmp_path / "disk" / "real.db") as same:
            assert same.jobs() == ("a",)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_only_the_owner_can_read_any_of_the_files(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with SqliteStore(path) as store:
            add(store, b"e1")
            modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["store.db", "store.db-shm", "store.db-wal", "store.db.mark"], 0o600)


def test_commits_are_flushed_and_no_checkpoint_runs_beside_other_writers(path: Path) -> None:
    with SqliteStore(path) as store:
        settings = {name: store._file.query(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous")}
        assert settings == {"journal_mode": "wal", "synchronous": 2}
        assert store._file.query("PRAGMA wal_autocheckpoint") == [(0,)]


def test_the_wal_file_is_checkpointed_before_it_grows_without_bound(path: Path) -> None:
    with SqliteStore(path) as store:
        for _ in range(60):
            add(store, bytes(100_000))
        assert (path.parent / "store.db-wal").stat().st_size < 2 * file.CHECKPOINT_PAGES * 4096
        assert path.stat().st_size > 3_000_000


@pytest.mark.parametrize("name", ["\ud800", "a\udfff"])
def test_a_name_that_is_no_text_is_refused(path: Path, name: str) -> None:
    with SqliteStore(path) as store:
        for call in (lambda: store.read(name), lambda: store.write([first(name)]), lambda: store.hold(name, "x", 1, 1)):
            with pytest.raises(BadInput, match="cannot be encoded in UTF-8"):
                call()
        assert store.jobs() == ()


# ---------------------------------------------------------------------------------------------- what is refused


def test_a_file_that_is_not_sqlite_is_refused_and_left_alone(path: Path) -> None:
    for content in (b"hello", b"# a program\n" * 1000, bytes(8192)):
        path.write_bytes(content)
        assert "is not a SQLite file" in refusal(path)
        assert path.read_bytes() == content


def test_another_programs_sqlite_file_is_refused_and_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE jobs (x)")
    connection.close()
    content = path.read_bytes()
    assert "is a SQLite file of another program. Use another path" in refusal(path)
    assert path.read_bytes() == content


def test_an_empty_file_is_refused(path: Path) -> None:
    path.touch()  # what a full disk or a careless script leaves; a new store in its place would hide a loss
    assert "it is empty" in refusal(path)


def test_a_store_of_a_newer_version_is_refused_and_left_alone(path: Path) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 7")
    connection.close()
    why = refusal(path)
    assert f"has schema version 7; this Pliant supports versions up to {len(schema.MIGRATIONS)}" in why
    assert "Use the newer Pliant that wrote it" in why


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    assert "Create it first" in refusal(tmp_path / "missing" / "store.db")


def test_a_directory_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").mkdir()
    assert "cannot be opened" in refusal(tmp_path / "store.db")


def test_a_directory_that_may_not_be_written_is_named(theirs: Path) -> None:
    theirs.chmod(0o555)
    with as_other_user():
        assert "the right to create and write files there" in refusal(theirs / "store.db")


def test_a_file_that_may_not_be_written_is_named(theirs: Path) -> None:
    SqliteStore(theirs / "store.db").close()
    for found in theirs.iterdir():
        found.chmod(0o666)
    theirs.chmod(0o777)
    (theirs / "store.db").chmod(0o444)
    with as_other_user():
        assert "is read-only; nothing was written" in refusal(theirs / "store.db")


def test_a_file_that_may_not_be_read_is_named(theirs: Path) -> None:
    SqliteStore(theirs / "store.db").close()
    theirs.chmod(0o777)
    (theirs / "store.db.mark").chmod(0o666)
    (theirs / "store.db").chmod(0o000)
    with as_other_user():
        assert "cannot be opened. Give this user read and write access" in refusal(theirs / "store.db")


def test_another_user_can_be_given_the_store(theirs: Path) -> None:
    SqliteStore(theirs / "store.db").close()
    theirs.chmod(0o777)
    if os.geteuid() == 0:
        for found in theirs.iterdir():
            os.chown(found, OTHER_USER, OTHER_USER)
    with as_other_user(), SqliteStore(theirs / "store.db") as store:
        assert add(store, b"e1") == 1


def test_a_disk_without_room_for_a_store_is_named_and_nothing_is_left(path: Path) -> None:
    with file_limit(8192):
        refusal(path)
    assert [found.name for found in path.parent.iterdir()] == ["store.db.mark"]
    SqliteStore(path).close()


def test_while_another_process_opens_it_the_store_is_unavailable(path: Path) -> None:
    SqliteStore(path).close()
    theirs = mark.StoreMark(path.with_name("store.db.mark"))
    with theirs.locked(0.0), pytest.raises(StoreUnavailable, match="try again"):
        SqliteStore(path, wait_s=0.02)
    theirs.close()
    SqliteStore(path, wait_s=0.02).close()


def test_while_another_process_writes_the_store_can_be_read_and_is_unavailable_for_writing(path: Path) -> None:
    with SqliteStore(path, wait_s=0.02) as store:
        add(store, b"e1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"has locked .*store.db; nothing was written. Try again"):
            store.write([first("b")])
        assert store.jobs() == ("a",)
        other.execute("ROLLBACK")
        other.close()
        put(store, first("b"))


# ----------------------------------------------------------------------------------------------- moving versions on


def colour(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE jobs ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'")


def fail(connection: sqlite3.Connection) -> None:
    connection.execute("DROP TABLE holds")
    connection.execute("UPDATE meta SET identity = 'half'")
    raise sqlite3.OperationalError("in the middle")


def version(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def test_an_old_store_is_moved_on_and_keeps_what_it_has(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        identity = store.identity
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, colour))
    with SqliteStore(path) as store:
        assert store._file.query("SELECT name, colour FROM jobs") == [("a", "grey")]
        assert store.identity == identity
        assert add(store, b"e2") == 2
    assert version(path) == len(schema.MIGRATIONS)
    SqliteStore(path).close()  # and a step is taken once
    with SqliteStore(path.with_name("new.db")) as store:
        assert store._file.query("SELECT colour FROM jobs") == []  # a new store takes all of them


def test_a_step_that_fails_leaves_the_old_version_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        identity = store.identity
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, colour, fail))
        with pytest.raises(StoreError, match="in the middle"):
            SqliteStore(path)
        assert version(path) == len(schema.MIGRATIONS) - 1  # the step before it is done, and stays done
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:-1])
        with SqliteStore(path) as store:
            assert (store.identity, store.jobs()) == (identity, ("a",))


def test_a_process_killed_in_a_step_leaves_the_old_version_whole(path: Path) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        identity = store.identity
    dead = subprocess.run([sys.executable, str(PROGRAMS / "dying.py"), str(path), "in a step"], check=False)
    assert dead.returncode == -9
    assert version(path) == len(schema.MIGRATIONS)
    with SqliteStore(path) as store:
        assert (store.identity, store.jobs(), add(store, b"e2")) == (identity, ("a",), 2)
        assert store._file.query("SELECT name FROM sqlite_schema WHERE name = 'half'") == []


def test_a_handle_that_was_open_when_a_newer_one_moved_the_store_on_stops(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(path) as old:
        with monkeypatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, colour))
            SqliteStore(path).close()
        with pytest.raises(StoreError, match=rf"A newer Pliant migrated .* to version {len(schema.MIGRATIONS) + 1}"):
            old.write([first()])
        assert old.jobs() == ()
