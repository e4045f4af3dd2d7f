"""Large values, long batches and many jobs."""

from __future__ import annotations

import random

from pliant.stores.base import Conflict, Entry, Store, Stored, Write, Written

MIB = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that no compression makes smaller."""
    return random.Random(seed).randbytes(size)


def test_a_record_and_events_of_several_mebibytes_come_back_whole(store: Store, second: Store) -> None:
    record, event = noise(5 * MIB + 3), noise(2 * MIB + 1, seed=1)
    assert store.write([Write("a", 0, (b"small", event, b"small"), record)]) == (Written(3),)
    assert second.read("a") == Stored(3, record, 3, ())
    assert second.events("a", 0, 10) == (Entry(1, b"small"), Entry(2, event), Entry(3, b"small"))
    assert store.write([Write("a", 3, (event,))]) == (Written(4),)
    assert second.read("a") == Stored(4, record, 3, (event,))
    assert second.read_page("", 10) == (("a", Stored(4, record, 3, (event,))),)


def test_a_large_record_replaces_a_large_one_and_gives_way_to_a_small_one(store: Store) -> None:
    first, second = noise(3 * MIB), noise(2 * MIB, seed=1)
    store.write([Write("a", 0, (b"e1",), first)])
    assert store.write([Write("a", 1, (b"e2",), second)]) == (Written(2),)
    assert store.read("a") == Stored(2, second, 2, ())
    assert store.write([Write("a", 2, (b"e3",), b"small")]) == (Written(3),)
    assert store.read("a") == Stored(3, b"small", 3, ())
    assert [entry.data for entry in store.events("a", 0, 10)] == [b"e1", b"e2", b"e3"]


def test_a_large_write_that_conflicts_changes_nothing(store: Store) -> None:
    store.write([Write("a", 0, (b"e1",), b"r")])
    large = noise(3 * MIB)
    assert store.write([Write("a", 4, (large,), large), Write("b", 0, (b"e1",), b"r")]) == (Conflict(1), Written(1))
    assert store.read("a") == Stored(1, b"r", 1, ())
    assert store.events("a", 1, 10) == ()
    assert store.write([Write("a", 1, (b"e2",), large)]) == (Written(2),)
    assert store.read("a") == Stored(2, large, 2, ())


def test_a_batch_may_have_hundreds_of_writes(store: Store) -> None:
    jobs = [f"job-{number:03}" for number in range(300)]
    first = [Write(job, 0, (b"e1", b"e2"), f"record of {job}".encode()) for job in jobs]
    assert store.write(first) == (Written(2),) * 300
    stale = {7, 150, 299}
    again = [Write(job, 1 if place in stale else 2, (b"e3",)) for place, job in enumerate(jobs)]
    outcomes = store.write(again)
    assert outcomes == tuple([Conflict(2) if place in stale else Written(3) for place in range(300)])
    assert store.jobs() == tuple(jobs)
    for place, (name, stored) in enumerate(store.read_page("", 1000)):
        assert name == jobs[place]
        assert stored == Stored(
            2 if place in stale else 3, f"record of {name}".encode(), 2, () if place in stale else (b"e3",)
        )


def test_a_batch_may_have_many_mebibytes(store: Store) -> None:
    values = [noise(300_000, seed) for seed in range(20)]
    writes = [Write(f"job-{place:02}", 0, (value,), value) for place, value in enumerate(values)]
    assert store.write(writes) == (Written(1),) * 20
    page = store.read_page("", 100)
    assert [stored.record for _, stored in page] == values


def test_one_write_may_have_thousands_of_events(store: Store) -> None:
    events = tuple(f"event {number}".encode() for number in range(1, 5001))
    assert store.write([Write("a", 0, events[:2500], b"r")]) == (Written(2500),)
    assert store.write([Write("a", 2500, events[2500:])]) == (Written(5000),)
    assert store.read("a") == Stored(5000, b"r", 2500, events[2500:])
    assert store.events("a", 2400, 200) == tuple([Entry(n, f"event {n}".encode()) for n in range(2401, 2601)])


def test_a_long_tail_of_single_events_comes_back_whole(store: Store) -> None:
    store.write([Write("a", 0, (b"e1",), b"r")])
    for revision in range(1, 400):
        assert store.write([Write("a", revision, (b"e%d" % (revision + 1),))]) == (Written(revision + 1),)
    stored = store.read("a")
    assert stored == Stored(400, b"r", 1, tuple([b"e%d" % number for number in range(2, 401)]))
    assert store.events("a", 390, 5) == tuple([Entry(n, b"e%d" % n) for n in range(391, 396)])
