"""Backups: a store that was set back, moved or replaced is not taken for the one it was; no crash looks like that."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.errors import StoreError, StoreTimeout
from pliant.stores.base import Written
from pliant.stores.sqlite import SqliteStore, file, mark
from unit.stores.disk import PROGRAMS, add, first, put

WARNING = "was restored, or moved without its mark"
REPLACED = r"replaced, moved or removed while it was open; nothing was written. Stop, put the files in place"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def mark_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.mark")


def identity_of(path: Path) -> str:
    with SqliteStore(path) as store:
        return store.identity


def copy_running(source: Path, target: Path) -> None:
    """Return what `sqlite3 SOURCE '.backup TARGET'` does: also the way back, onto a file that others have open."""
    with sqlite3.connect(source) as a, sqlite3.connect(target) as b:
        a.backup(b)
    a.close()
    b.close()


def vacuum_into(source: Path, target: Path) -> None:
    connection = sqlite3.connect(source)
    connection.execute("VACUUM INTO ?", (str(target),))
    connection.close()


# ----------------------------------------------------------------------------------------- between two lives


def copy_over(backup: Path, path: Path) -> None:
    shutil.copyfile(backup, path)


def move_over(backup: Path, path: Path) -> None:
    backup.replace(path)


def remove_and_copy(backup: Path, path: Path) -> None:
    path.unlink()
    shutil.copy(backup, path)


@pytest.mark.parametrize("restore", [copy_over, move_over, remove_and_copy, copy_running])
@pytest.mark.parametrize("take", [copy_running, vacuum_into])
def test_a_restored_backup_gets_a_new_identity(
    path: Path,
    take: Callable[[Path, Path], None],
    restore: Callable[[Path, Path], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The backup is of the same life as the writes that it lacks: no open or close lies in between."""
    backup = path.with_name("backup.db")
    with SqliteStore(path) as store:
        add(store, b"e1")
        take(path, backup)
        add(store, b"e2")
        old = store.identity
    restore(backup, path)
    with SqliteStore(path) as store:
        assert store.identity != old
        assert len(store.events("a", 0, 10)) == 1
        assert add(store, b"another e2") == 2
        new = store.identity
    assert [WARNING in record.getMessage() for record in caplog.records] == [True]
    assert old in caplog.text
    assert new in caplog.text
    assert identity_of(path) == new  # once, and not at every open


def test_a_backup_restored_after_a_kill_gets_a_new_identity(path: Path) -> None:
    backup = path.with_name("backup.db")
    with SqliteStore(path) as store:
        old = store.identity
    run = [sys.executable, str(PROGRAMS / "writer.py"), str(path)]
    with subprocess.Popen(run, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        copy_running(path, backup)
        for _ in range(20):  # what a pipe holds back is not what was written last, so more than a few
            writer.stdout.readline()
        writer.kill()
    for left in ("store.db-wal", "store.db-shm"):
        path.with_name(left).unlink()
    shutil.copyfile(backup, path)
    assert identity_of(path) != old


def test_a_backup_that_lacks_nothing_is_the_same_store(path: Path) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        old = store.identity
    copy_running(path, path.with_name("backup.db"))
    path.with_name("backup.db").replace(path)
    assert identity_of(path) == old


def test_a_store_parted_from_its_mark_gets_a_new_identity(path: Path) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        old = store.identity
    shutil.copyfile(path, path.with_name("copy.db"))
    assert identity_of(path.with_name("copy.db")) != old
    assert identity_of(path) == old


@pytest.mark.parametrize("content", [b"", b"pliant", b"pliant a 00 00 00000000\n", b"\xff" * 200], ids=len)
def test_a_damaged_mark_is_none(path: Path, content: bytes) -> None:
    old = identity_of(path)
    mark_of(path).write_bytes(content)
    new = identity_of(path)
    assert new != old
    assert identity_of(path) == new
    assert len(mark_of(path).read_bytes().partition(b"\n")[0]) == mark.LENGTH - 1


def test_another_stores_mark_is_none(tmp_path: Path) -> None:
    old = identity_of(tmp_path / "one.db")
    identity_of(tmp_path / "two.db")
    mark_of(tmp_path / "two.db").replace(mark_of(tmp_path / "one.db"))
    assert identity_of(tmp_path / "one.db") != old


def test_a_store_moved_with_its_mark_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with SqliteStore(tmp_path / "here" / "store.db") as store:
        add(store, b"e1")
        old = store.identity
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert identity_of(tmp_path / "there" / "store.db") == old


def test_a_store_that_is_gone_is_said_to_be_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        old = store.identity
    path.unlink()
    assert identity_of(path) != old
    assert "had 1 commits and is missing: created a new, empty one" in caplog.text


def test_a_backup_beside_the_wal_file_of_what_it_replaces_is_refused(path: Path) -> None:
    """SQLite would play the pages of the one onto the other, and neither would be left."""
    backup = path.with_name("backup.db")
    with SqliteStore(path) as store:
        add(store, b"e1")
        copy_running(path, backup)
        add(store, b"e2")
        for name in ("store.db-wal", "store.db.mark"):  # what a kill would leave
            shutil.copy(path.with_name(name), path.with_name(f"left {name}"))
    for name in ("store.db-wal", "store.db.mark"):
        path.with_name(f"left {name}").replace(path.with_name(name))
    backup.replace(path)
    with pytest.raises(StoreError, match=r"store.db-wal belongs to another file .* restored a backup, move it away"):
        SqliteStore(path)
    path.with_name("store.db-wal").unlink()
    with SqliteStore(path) as store:
        assert len(store.events("a", 0, 10)) == 1


@pytest.mark.parametrize("with_mark", [True, False])
@pytest.mark.parametrize(("put_back", "jobs"), [(True, ("by the dead",)), (False, ())])
def test_a_wal_file_whose_store_is_gone_is_not_played_onto_a_new_one(
    path: Path, with_mark: bool, put_back: bool, jobs: tuple[str, ...]
) -> None:
    identity_of(path)
    die(path, "mark noted")
    away = path.with_name("away")
    path.rename(away)
    if not with_mark:
        mark_of(path).unlink()
    for _ in range(2):  # having been refused once changes nothing
        with pytest.raises(StoreError, match=r"store.db is missing, but .*-wal exists; nothing was created. Put the"):
            SqliteStore(path)
        assert not path.exists()
    if put_back:
        away.rename(path)
    else:
        path.with_name("store.db-wal").rename(away)
    with SqliteStore(path) as store:
        assert store.jobs() == jobs


# -------------------------------------------------------------------------------------- no crash looks like it


MAKING = ["mark opened", "file made", "file has tables", "file whole", "mark made", "file named"]


def die(path: Path, point: str) -> None:
    dead = subprocess.run([sys.executable, str(PROGRAMS / "dying.py"), str(path), point], check=False)
    assert dead.returncode == -9


@pytest.mark.parametrize("point", MAKING)
def test_a_kill_while_a_store_is_made_leaves_none_or_a_whole_one(
    path: Path, point: str, caplog: pytest.LogCaptureFixture
) -> None:
    die(path, point)
    was_there = path.exists()
    assert was_there == (point == "file named")
    with SqliteStore(path) as store:
        assert add(store, b"e1") == 1
        identity = store.identity
    assert identity_of(path) == identity
    assert caplog.records == []


@pytest.mark.parametrize("point", ["mark opened", "file has tables"])
def test_a_kill_while_a_store_is_opened_does_not_change_its_identity(path: Path, point: str) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        old = store.identity
    die(path, point)
    assert identity_of(path) == old


@pytest.mark.parametrize("point", ["file whole", "mark made"])
def test_a_kill_while_a_restored_store_gets_its_identity_does_not_bring_the_old_one_back(
    path: Path, point: str
) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        old = store.identity
    mark_of(path).unlink()
    die(path, point)
    new = identity_of(path)
    assert new != old
    assert identity_of(path) == new


def test_a_kill_after_the_mark_was_noted_finds_the_commit_that_it_counts(path: Path) -> None:
    old = identity_of(path)
    die(path, "mark noted")
    with SqliteStore(path) as store:
        assert (store.identity, store.jobs()) == (old, ("by the dead",))


def test_a_mark_that_lags_is_no_restored_backup(path: Path) -> None:
    """After a power cut the mark may be an older one: it is not flushed with every commit."""
    with SqliteStore(path) as store:
        add(store, b"e1")
        lagging = mark_of(path).read_bytes()
        add(store, b"e2")
        old = store.identity
    mark_of(path).write_bytes(lagging)
    assert identity_of(path) == old


def test_a_file_that_its_disk_lost_commits_of_is_like_a_restored_one(path: Path) -> None:
    """The mark counts only what was durable, so a file behind it means that something acknowledged is gone."""
    with SqliteStore(path) as store:
        old = store.identity
        add(store, b"e1")
        path_to_mark = mark.StoreMark(mark_of(path))
        path_to_mark.write(old, 2, path.stat().st_ino)
        path_to_mark.close()
    assert identity_of(path) != old


def test_a_mark_that_cannot_be_written_does_not_harm_the_write(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with SqliteStore(path) as store:
        monkeypatch.setattr(mark.StoreMark, "write", refuse)
        assert add(store, b"e1") == 1
        assert "The mark of" in caplog.text


# ------------------------------------------------------------------------------------------ under our hands


def test_a_store_whose_file_was_moved_away_stops_until_it_is_back(path: Path) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        path.rename(path.with_name("away.db"))
        for call in (
            lambda: store.write([first("b")]),
            lambda: store.read("a"),
            lambda: store.hold("l", "x", 1.0, 0.0),
        ):
            with pytest.raises(StoreError, match=REPLACED):
                call()
        path.with_name("away.db").rename(path)
        put(store, first("b"))


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db-shm"])
def test_a_store_whose_file_was_removed_stops(path: Path, name: str) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        path.with_name(name).unlink()
        with pytest.raises(StoreError, match=REPLACED):
            store.write([first("b")])


def test_a_store_whose_file_was_replaced_stops_and_does_no_harm_to_the_new_one(path: Path) -> None:
    backup = path.with_name("backup.db")
    store = SqliteStore(path)
    add(store, b"e1")
    copy_running(path, backup)
    add(store, b"e2")
    for left in ("store.db-wal", "store.db-shm"):
        path.with_name(left).unlink()
    backup.replace(path)
    with pytest.raises(StoreError, match=REPLACED):
        store.write([first("b")])
    with SqliteStore(path) as new:
        put(new, first("c"))
        store.close()  # must not take the other's -wal file with it
        put(new, first("d"))
    with SqliteStore(path) as new:
        assert new.jobs() == ("a", "c", "d")
        assert len(new.events("a", 0, 10)) == 1


def test_a_commit_into_a_file_that_is_replaced_meanwhile_is_not_acknowledged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(path) as store:
        add(store, b"e1")
        honest = file.StoreFile._check_in_place

        def move_then_check(self: file.StoreFile, committed: bool = False) -> None:
            if committed:
                path.rename(path.with_name("away.db"))
            honest(self, committed)

        monkeypatch.setattr(file.StoreFile, "_check_in_place", move_then_check)
        with pytest.raises(StoreTimeout, match="it is unknown whether this write will be found"):
            store.write([first("b")])


def test_a_store_set_back_by_sqlite_itself_stops(path: Path) -> None:
    """`.restore` keeps the file and changes what is in it, in a transaction like any other."""
    backup = path.with_name("backup.db")
    with SqliteStore(path) as store, SqliteStore(path) as other:
        add(store, b"e1")
        copy_running(path, backup)
        add(store, b"e2")
        copy_running(backup, path)
        with pytest.raises(StoreError, match=r"was set back to a backup while it was open; nothing was written"):
            store.write([first("b")])
        with SqliteStore(path) as new:
            assert new.identity != store.identity
        with pytest.raises(StoreError, match="was set back"):  # it had not seen what was lost, but the new identity
            other.write([first("b")])
    with SqliteStore(path) as new:
        assert new.write([first("b")]) == (Written(1),)
