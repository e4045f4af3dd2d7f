"""The contract of `pliant.stores.base` on every store of `conftest`: reads, writes and their order.

The rest of the contract is beside this file: `test_store_watch`, `test_store_hold`, and all of it together
against a model in `test_store_histories`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from pliant.errors import BadInput
from pliant.stores.base import Conflict, Entry, Store, Stored, Write, Written

Factory = Callable[[str], AbstractContextManager[Any]]


def first(job: str = "a", *events: bytes, record: bytes = b"r") -> Write:
    return Write(job, 0, events or (b"e1",), record)


def put(store: Store, *writes: Write) -> None:
    """Write where a conflict would be a mistake of the test."""
    assert all(isinstance(outcome, Written) for outcome in store.write(writes))


# ------------------------------------------------------------------------------------------- what is kept


def test_a_job_that_was_never_written_does_not_exist(store: Store) -> None:
    assert store.read("a") is None
    assert store.events("a", 0, 10) == ()
    assert store.jobs() == ()


def test_the_revision_counts_events_not_writes(store: Store) -> None:
    assert store.write([first("a", b"e1", b"e2", b"e3")]) == (Written(3),)
    assert store.write([Write("a", 3, (b"e4", b"e5"))]) == (Written(5),)
    stored = store.read("a")
    assert stored is not None
    assert stored.revision == 5


def test_events_have_revisions_without_a_gap(store: Store) -> None:
    put(store, first("a", b"e1", b"e2"))
    put(store, Write("a", 2, (b"e3",)))
    assert store.events("a", 0, 10) == (Entry(1, b"e1"), Entry(2, b"e2"), Entry(3, b"e3"))


def test_a_record_stands_for_all_events_up_to_it(store: Store) -> None:
    put(store, first("a", b"e1", b"e2", record=b"after 2"))
    assert store.read("a") == Stored(2, b"after 2", 2, ())


def test_a_write_without_a_record_leaves_the_old_one_and_a_tail(store: Store) -> None:
    put(store, first("a", b"e1", record=b"after 1"))
    put(store, Write("a", 1, (b"e2",)))
    put(store, Write("a", 2, (b"e3", b"e4")))
    assert store.read("a") == Stored(4, b"after 1", 1, (b"e2", b"e3", b"e4"))


def test_a_new_record_ends_the_tail_and_keeps_the_events(store: Store) -> None:
    put(store, first("a", b"e1", record=b"after 1"))
    put(store, Write("a", 1, (b"e2",)))
    put(store, Write("a", 2, (b"e3",), b"after 3"))
    assert store.read("a") == Stored(3, b"after 3", 3, ())
    assert [entry.data for entry in store.events("a", 0, 10)] == [b"e1", b"e2", b"e3"]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xfe", b"'; DROP TABLE events; --", bytes(range(256))])
def test_bytes_are_opaque(store: Store, data: bytes) -> None:
    put(store, first("a", data, data, record=data))
    put(store, Write("a", 2, (data,)))
    assert store.read("a") == Stored(3, data, 2, (data,))
    assert store.events("a", 2, 1) == (Entry(3, data),)


def test_large_values_come_back_whole(store: Store) -> None:
    data = bytes(range(256)) * 1024
    put(store, first("a", data, record=data))
    assert store.read("a") == Stored(1, data, 1, ())


@pytest.mark.parametrize("job", ["a b", "a/b", "../a", "ä-作業", "%s", "A", "a" * 200])
def test_a_name_is_only_a_name(store: Store, job: str) -> None:
    put(store, first("a", b"other"))
    put(store, first(job, b"mine"))
    assert store.events(job, 0, 10) == (Entry(1, b"mine"),)
    assert store.jobs() == tuple(sorted({"a", job}))


def test_jobs_are_sorted_by_name(store: Store) -> None:
    put(store, first("c"), first("a"), first("b"))
    assert store.jobs() == ("a", "b", "c")


def test_each_job_has_its_own_revision(store: Store) -> None:
    put(store, first("a", b"1", b"2", b"3"))
    put(store, first("b", b"1"))
    put(store, Write("b", 1, (b"2",)))
    assert store.read("a") == Stored(3, b"r", 3, ())
    assert store.read("b") == Stored(2, b"r", 1, (b"2",))


# ------------------------------------------------------------------------------------------------- events


def test_events_start_after_a_revision_and_stop_at_the_limit(store: Store) -> None:
    put(store, first("a", *[b"%d" % i for i in range(1, 8)]))
    assert store.events("a", 2, 3) == (Entry(3, b"3"), Entry(4, b"4"), Entry(5, b"5"))
    assert store.events("a", 6, 100) == (Entry(7, b"7"),)


@pytest.mark.parametrize("after", [3, 4, 10**12])
def test_there_are_no_events_after_the_newest(store: Store, after: int) -> None:
    put(store, first("a", b"1", b"2", b"3"))
    assert store.events("a", after, 10) == ()


def test_a_follower_in_small_bites_sees_every_event_once(store: Store) -> None:
    put(store, first("a", *[b"%d" % i for i in range(1, 24)]))
    seen: list[Entry] = []
    while more := store.events("a", seen[-1].revision if seen else 0, 5):
        seen += more
    assert [entry.revision for entry in seen] == list(range(1, 24))


@pytest.mark.parametrize(("after", "limit"), [(-1, 10), (0, 0), (0, -1)])
def test_asking_for_impossible_events_is_refused(store: Store, after: int, limit: int) -> None:
    with pytest.raises(BadInput):
        store.events("a", after, limit)


# ----------------------------------------------------------------------------------------------- the race


@pytest.mark.parametrize("expected", [0, 1, 3, 10**12])
def test_a_write_that_expects_another_revision_changes_nothing(store: Store, expected: int) -> None:
    put(store, first("a", b"e1", b"e2", record=b"after 2"))
    assert store.write([Write("a", expected, (b"x",), b"x")]) == (Conflict(2),)
    assert store.read("a") == Stored(2, b"after 2", 2, ())
    assert store.events("a", 0, 10) == (Entry(1, b"e1"), Entry(2, b"e2"))


def test_a_write_to_a_job_that_should_exist_and_does_not_conflicts_at_0(store: Store) -> None:
    assert store.write([Write("a", 4, (b"x",), b"x")]) == (Conflict(0),)
    assert store.read("a") is None
    assert store.jobs() == ()


def test_of_two_writers_at_one_revision_one_wins(store: Store, second: Store) -> None:
    put(store, first("a", b"e1"))
    assert second.write([Write("a", 1, (b"theirs",))]) == (Written(2),)
    assert store.write([Write("a", 1, (b"ours",))]) == (Conflict(2),)
    assert store.events("a", 1, 10) == (Entry(2, b"theirs"),)


def test_of_two_that_create_a_job_one_wins(store: Store, second: Store) -> None:
    assert store.write([first("a", b"ours", record=b"ours")]) == (Written(1),)
    assert second.write([first("a", b"theirs", record=b"theirs")]) == (Conflict(1),)
    assert second.read("a") == Stored(1, b"ours", 1, ())


def test_the_same_write_twice_is_applied_once(store: Store) -> None:
    put(store, first("a", b"e1"))
    write = Write("a", 1, (b"e2", b"e3"))
    assert store.write([write]) == (Written(3),)
    assert store.write([write]) == (Conflict(3),)
    # and this is how a writer whose first call timed out learns that it had been applied
    assert tuple(entry.data for entry in store.events("a", write.expected, len(write.events))) == write.events


def test_what_one_handle_wrote_another_reads(store: Store, second: Store) -> None:
    put(store, first("a", b"e1", record=b"after 1"))
    assert second.read("a") == Stored(1, b"after 1", 1, ())
    put(second, Write("a", 1, (b"e2",)))
    assert store.read("a") == Stored(2, b"after 1", 1, (b"e2",))
    assert second.identity == store.identity


# -------------------------------------------------------------------------------------------------- batches


def test_an_empty_batch_is_nothing(store: Store) -> None:
    assert store.write([]) == ()


def test_a_conflict_in_a_batch_does_nothing_to_the_others(store: Store) -> None:
    put(store, first("b", b"b1", b"b2"), first("d", b"d1"))
    outcomes = store.write(
        [
            first("a", b"a1"),
            Write("b", 1, (b"stale",), b"stale"),
            Write("c", 3, (b"missing",), b"missing"),
            Write("d", 1, (b"d2",)),
        ]
    )
    assert outcomes == (Written(1), Conflict(2), Conflict(0), Written(2))
    assert store.read("a") == Stored(1, b"r", 1, ())
    assert store.read("b") == Stored(2, b"r", 2, ())
    assert store.read("c") is None
    assert store.read("d") == Stored(2, b"r", 1, (b"d2",))


def test_outcomes_are_in_the_order_of_the_writes(store: Store) -> None:
    jobs = [f"job-{i}" for i in (5, 3, 9, 1)]
    outcomes = store.write([first(job, *[b"e"] * (i + 1)) for i, job in enumerate(jobs)])
    assert outcomes == (Written(1), Written(2), Written(3), Written(4))


def test_one_job_twice_in_a_batch_is_refused_and_nothing_is_written(store: Store) -> None:
    with pytest.raises(BadInput, match="'a' is written twice"):
        store.write([first("b"), first("a"), Write("a", 1, (b"e2",))])
    assert store.jobs() == ()


def test_a_batch_may_be_any_sequence(store: Store) -> None:
    assert store.write((first("a"), first("b"))) == (Written(1), Written(1))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Write("", 0, (b"e",), b"r"), "name of a job"),
        (lambda: Write("a", -1, (b"e",), b"r"), "lowest is 0"),
        (lambda: Write("a", 1, (), b"r"), "no event"),
        (lambda: Write("a", 0, (b"e",)), "no record"),
    ],
)
def test_a_write_that_makes_no_sense_cannot_be_made(make: Callable[[], Write], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make()


# ------------------------------------------------------------------------------------------------- identity


def test_the_identity_is_the_one_given(factory: Factory) -> None:
    with factory("one") as one, factory("two") as two:
        assert (one.store.identity, two.store.identity) == ("one", "two")
        put(one.store, first("a"))
        assert two.store.read("a") is None


def test_a_store_without_an_identity_cannot_be_made(factory: Factory) -> None:
    with pytest.raises(BadInput), factory(""):
        pass
