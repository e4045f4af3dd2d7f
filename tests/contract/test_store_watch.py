"""Watching: being told that there is more, without missing any. The contract is in `pliant.stores.base`.

`settle` returns once every watch has been told what there is to tell; a store may take its time for that.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pliant.errors import BadInput
from pliant.stores.base import Store, Write, Written
from pliant.stores.memory import MemoryStore

Told = list[tuple[str, int]]
Settle = Callable[[], None]


def first(job: str = "a", *events: bytes, record: bytes = b"r") -> Write:
    return Write(job, 0, events or (b"e1",), record)


def put(store: Store, *writes: Write) -> None:
    """Write where a conflict would be a mistake of the test."""
    assert all(isinstance(outcome, Written) for outcome in store.write(writes))


def listen(store: Store, job: str, after: int) -> tuple[Told, Callable[[], None]]:
    told: Told = []
    return told, store.watch(job, after, lambda name, revision: told.append((name, revision)))


def test_a_watch_is_told_of_each_growth(store: Store, settle: Settle) -> None:
    put(store, first("a", b"e1"))
    told, _ = listen(store, "a", 1)
    settle()
    assert told == []
    put(store, Write("a", 1, (b"e2", b"e3")))
    put(store, Write("a", 3, (b"e4",)))
    settle()
    assert told[-1] == ("a", 4)
    assert [revision for _, revision in told] == sorted({revision for _, revision in told})


def test_a_watch_from_an_older_revision_is_told_at_once(store: Store) -> None:
    put(store, first("a", b"e1", b"e2", b"e3"))
    told, _ = listen(store, "a", 1)
    assert told == [("a", 3)]


def test_a_watch_may_wait_for_a_job_to_exist(store: Store, settle: Settle) -> None:
    told, _ = listen(store, "a", 0)
    assert told == []
    put(store, first("a"))
    settle()
    assert told == [("a", 1)]


def test_a_watch_is_silent_up_to_the_revision_it_asked_for(store: Store, settle: Settle) -> None:
    put(store, first("a", b"e1"))
    told, _ = listen(store, "a", 3)
    put(store, Write("a", 1, (b"e2", b"e3")))
    settle()
    assert told == []
    put(store, Write("a", 3, (b"e4",)))
    settle()
    assert told == [("a", 4)]


def test_a_watch_hears_of_writes_through_another_handle(store: Store, second: Store, settle: Settle) -> None:
    told, _ = listen(store, "a", 0)
    put(second, first("a"))
    settle()
    assert told == [("a", 1)]


def test_a_conflict_and_another_jobs_write_are_not_told(store: Store, settle: Settle) -> None:
    put(store, first("a", b"e1"))
    told, _ = listen(store, "a", 1)
    store.write([Write("a", 7, (b"x",)), first("b")])
    settle()
    assert told == []


def test_whoever_is_told_finds_the_event(store: Store, second: Store, settle: Settle) -> None:
    """The number is a promise: what it counts can be read by then."""
    seen: list[tuple[int, int]] = []

    def look(job: str, revision: int) -> None:  # a test's liberty: a callback should only set a flag
        seen.append((revision, len(second.events(job, 0, 10))))

    store.watch("a", 0, look)
    put(store, first("a", b"e1", b"e2"))
    settle()
    assert seen == [(2, 2)]


def test_in_memory_a_watch_is_told_when_the_whole_batch_is_there() -> None:
    store = MemoryStore("memory")
    seen: list[tuple[str, ...]] = []
    store.watch("a", 0, lambda job, revision: seen.append(store.jobs()))
    put(store, first("a"), first("b"))
    assert seen == [("a", "b")]


def test_a_stopped_watch_is_silent_and_stopping_again_is_harmless(store: Store, settle: Settle) -> None:
    told, stop = listen(store, "a", 0)
    others, stop_other = listen(store, "a", 0)
    stop()
    stop()
    put(store, first("a"))
    settle()
    assert told == []
    assert others == [("a", 1)]
    stop_other()
    stop()
    put(store, Write("a", 1, (b"e2",)))
    settle()
    assert others == [("a", 1)]


def test_a_watch_may_stop_itself_while_it_is_told(store: Store, settle: Settle) -> None:
    told: Told = []
    stops: list[Callable[[], None]] = []

    def once(job: str, revision: int) -> None:
        told.append((job, revision))
        stops[0]()

    stops.append(store.watch("a", 0, once))
    after, _ = listen(store, "a", 0)
    put(store, first("a"))
    settle()
    assert after == [("a", 1)]
    put(store, Write("a", 1, (b"e2",)))
    settle()
    assert told == [("a", 1)]
    assert after == [("a", 1), ("a", 2)]


def test_a_watch_may_stop_all_others_while_it_is_told(store: Store, settle: Settle) -> None:
    """Two watches that stop each other, so that whichever is told first silences the second."""
    told: Told = []
    stops: list[Callable[[], None]] = []

    def only_one(job: str, revision: int) -> None:
        told.append((job, revision))
        for stop in stops:
            stop()

    stops += [store.watch("a", 0, only_one), store.watch("a", 0, only_one)]
    put(store, first("a"))
    settle()
    assert told == [("a", 1)]


def test_a_watch_that_raises_harms_neither_the_write_nor_the_others(
    store: Store, settle: Settle, caplog: pytest.LogCaptureFixture
) -> None:
    def bad(_job: str, _revision: int) -> None:
        raise RuntimeError("a careless callback")

    store.watch("a", 0, bad)
    told, _ = listen(store, "a", 0)
    assert store.write([first("a")]) == (Written(1),)
    settle()
    assert told == [("a", 1)]
    assert "a careless callback" in caplog.text


def test_a_long_poll_loses_nothing_between_asking_and_waiting(store: Store) -> None:
    """The pattern of every follower: read what is there, then wait from where that ended."""
    put(store, first("a", b"e1"))
    seen = list(store.events("a", 0, 10))
    put(store, Write("a", 1, (b"between",)))  # exactly the gap in which a plain subscription would be deaf
    told, stop = listen(store, "a", seen[-1].revision)
    assert told == [("a", 2)]
    stop()
    seen += store.events("a", seen[-1].revision, 10)
    assert [entry.data for entry in seen] == [b"e1", b"between"]


def test_a_watch_from_an_impossible_revision_is_refused(store: Store) -> None:
    with pytest.raises(BadInput):
        store.watch("a", -1, lambda job, revision: None)
