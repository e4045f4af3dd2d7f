"""Watches across handles: noticed without being asked, by one thread, which is there only while it is needed."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.errors import BadInput
from pliant.stores.base import Write, Written
from pliant.stores.sqlite import SqliteStore
from unit.stores.disk import add, first, put

THREAD = "pliant-store-watch"


class Ear:
    """A callback that can be waited for."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self._changed = threading.Condition()

    def __call__(self, job: str, revision: int) -> None:
        with self._changed:
            self.told.append(revision)
            self._changed.notify_all()

    def wait_for(self, revision: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: revision in self.told, 30.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_what_another_handle_writes_is_noticed_by_itself(path: Path) -> None:
    ear = Ear()
    with SqliteStore(path) as store, SqliteStore(path) as other:
        store.watch("a", 0, ear)
        for revision in (1, 2, 3):
            add(other, b"e")
            assert ear.wait_for(revision)
        assert ear.told == [1, 2, 3]


def test_what_this_handle_writes_is_told_before_write_returns(path: Path) -> None:
    ear = Ear()
    where: list[str] = []
    with SqliteStore(path, poll_s=3600.0) as store:
        store.watch("a", 0, ear)
        store.watch("a", 0, lambda job, revision: where.append(threading.current_thread().name))
        put(store, first("a", b"e1", b"e2"))
        assert ear.told == [2]
        assert where == [threading.current_thread().name]


def test_there_is_one_thread_and_only_while_there_are_watches(path: Path) -> None:
    with SqliteStore(path) as store:
        assert threads() == []
        stops = [store.watch(job, 0, Ear()) for job in ("a", "b", "b")]
        (thread,) = threads()
        for stop in stops:
            stop()
        thread.join(30.0)
        assert threads() == []
        store.watch("a", 0, Ear())
        assert len(threads()) == 1
    assert threads() == []


def test_closing_ends_the_thread_even_from_a_callback(path: Path) -> None:
    closed = threading.Event()
    store = SqliteStore(path)

    def close(_job: str, _revision: int) -> None:
        store.close()
        closed.set()

    store.watch("a", 0, close)
    (thread,) = threads()
    with SqliteStore(path) as other:
        add(other, b"e1")
        assert closed.wait(30.0)
        thread.join(30.0)
        assert not thread.is_alive()


def test_a_closed_store_tells_nobody(path: Path) -> None:
    ear = Ear()
    store = SqliteStore(path)
    stop = store.watch("a", 0, ear)
    store.close()
    with SqliteStore(path) as other:
        add(other, b"e1")
    stop()
    assert ear.told == []
    assert store.settle(0.0)


def race(handle: SqliteStore, count: int) -> None:
    """Add so many events to a job that another one adds to as well."""
    while count:
        stored = handle.read("a")
        assert stored is not None
        (outcome,) = handle.write([Write("a", stored.revision, (b"e",))])
        count -= isinstance(outcome, Written)


def test_revisions_only_grow_when_two_handles_write_at_once(path: Path) -> None:
    ears = [Ear() for _ in range(4)]
    with SqliteStore(path, poll_s=0.0005, wait_s=30.0) as store, SqliteStore(path, wait_s=30.0) as other:
        for ear in ears:
            store.watch("a", 0, ear)
        put(store, first("a"))
        thread = threading.Thread(target=race, args=(other, 60))
        thread.start()
        race(store, 60)
        thread.join()
        assert all(ear.wait_for(121) for ear in ears)
    for ear in ears:
        assert ear.told == sorted(set(ear.told))


def test_a_watch_survives_the_loss_of_its_connection(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told the newest in the end, and the log says so once, not at every look."""
    failures = [sqlite3.OperationalError("lost")] * 3
    ear = Ear()
    with SqliteStore(path, poll_s=0.001) as store, SqliteStore(path) as other:
        honest: Callable[[], sqlite3.Connection] = store._watches._connect

        def connect() -> sqlite3.Connection:
            if failures:
                raise failures.pop()
            return honest()

        monkeypatch.setattr(store._watches, "_connect", connect)
        store.watch("a", 0, ear)
        add(other, b"e1")
        assert ear.wait_for(1)
        assert failures == []
    assert caplog.text.count("Watches are not told of what others write until the store can be read again") == 1


def test_a_watch_that_could_not_be_set_leaves_nothing_behind(path: Path) -> None:
    ear = Ear()
    with SqliteStore(path) as store:
        with pytest.raises(BadInput):
            store.watch("\ud800", 0, ear)
        assert not store._watches
