"""Old events make room for the names of segments, and ended jobs go as a whole."""

from __future__ import annotations

import pytest

from pliant.errors import BadInput, EventsTrimmed, HoldLost
from pliant.stores.base import Conflict, Entry, Hold, Segment, Store, Stored, Write, Written


def fill(store: Store, job: str, count: int, record_at: int | None = None) -> None:
    """Write events 1 to `count`, with a record of the state after the event `record_at`."""
    covered = count if record_at is None else record_at
    store.write([Write(job, 0, tuple(b"%d" % each for each in range(1, covered + 1)), b"record")])
    if covered < count:
        store.write([Write(job, covered, tuple(b"%d" % each for each in range(covered + 1, count + 1)))])


def kept(store: Store, job: str, after: int) -> list[int]:
    return [entry.revision for entry in store.events(job, after, 1000)]


# ------------------------------------------------------------------------------------------------- trimming


def test_trimmed_events_are_gone_and_their_segment_is_known(store: Store, second: Store) -> None:
    fill(store, "a", 9)
    assert store.segments("a") == ()
    assert store.trim("a", Segment(1, 4, "one"))
    assert store.trim("a", Segment(5, 6, "two"))
    for each in (store, second):
        assert each.segments("a") == (Segment(1, 4, "one"), Segment(5, 6, "two"))
        assert kept(each, "a", 6) == [7, 8, 9]
        assert each.events("a", 8, 5) == (Entry(9, b"9"),)
        assert each.read("a") == Stored(9, b"record", 9, ())


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_read_of_trimmed_events_tells_where_the_store_begins(store: Store, after: int) -> None:
    fill(store, "a", 9)
    store.trim("a", Segment(1, 6, "one"))
    with pytest.raises(EventsTrimmed) as raised:
        store.events("a", after, 1)
    assert raised.value.through == 6
    assert kept(store, "a", 6) == [7, 8, 9]


def test_events_that_the_record_does_not_cover_stay(store: Store) -> None:
    fill(store, "a", 9, record_at=4)
    assert not store.trim("a", Segment(1, 5, "too far"))
    assert store.trim("a", Segment(1, 4, "covered"))
    assert store.read("a") == Stored(9, b"record", 4, (b"5", b"6", b"7", b"8", b"9"))
    assert kept(store, "a", 4) == [5, 6, 7, 8, 9]


def test_the_newest_event_always_stays(store: Store) -> None:
    fill(store, "a", 3)
    assert not store.trim("a", Segment(1, 3, "all"))
    assert store.trim("a", Segment(1, 2, "all but one"))
    assert kept(store, "a", 2) == [3]
    assert store.write([Write("a", 3, (b"4",))]) == (Written(4),)


@pytest.mark.parametrize("segment", [Segment(2, 3, "a gap"), Segment(3, 4, "a gap"), Segment(1, 2, "again")])
def test_a_segment_must_begin_with_the_oldest_event(store: Store, segment: Segment) -> None:
    fill(store, "a", 9)
    if segment.name == "again":
        assert store.trim("a", segment)
    before = store.segments("a")
    assert not store.trim("a", segment)
    assert store.segments("a") == before
    assert kept(store, "a", before[-1].last if before else 0)[-1] == 9


def test_a_job_that_does_not_exist_has_no_segments_and_cannot_be_trimmed(store: Store) -> None:
    assert store.segments("a") == ()
    assert not store.trim("a", Segment(1, 1, "one"))


@pytest.mark.parametrize("form", [(0, 1, "x"), (2, 1, "x"), (1, 1, "")])
def test_a_segment_needs_a_run_of_revisions_and_a_name(form: tuple[int, int, str]) -> None:
    with pytest.raises(BadInput):
        Segment(*form)


def test_other_jobs_are_not_touched(store: Store) -> None:
    fill(store, "a", 5)
    fill(store, "b", 5)
    store.trim("a", Segment(1, 4, "one"))
    store.delete("a", 5)
    assert kept(store, "b", 0) == [1, 2, 3, 4, 5]
    assert store.segments("b") == ()
    assert store.jobs() == ("b",)


# ------------------------------------------------------------------------------------------------- deleting


def test_a_deleted_job_is_gone_for_every_reader(store: Store, second: Store) -> None:
    fill(store, "a", 5)
    store.trim("a", Segment(1, 3, "one"))
    assert store.delete("a", 5) is None
    for each in (store, second):
        assert each.read("a") is None
        assert each.jobs() == ()
        assert each.events("a", 0, 10) == ()
        assert each.segments("a") == ()
        assert each.read_page("", 10) == ()


def test_a_job_that_changed_is_not_deleted(store: Store) -> None:
    fill(store, "a", 5)
    assert store.delete("a", 4) == Conflict(5)
    assert store.delete("a", 6) == Conflict(5)
    assert store.delete("b", 1) == Conflict(0)
    assert kept(store, "a", 0) == [1, 2, 3, 4, 5]


def test_a_revision_is_never_used_again(store: Store, second: Store) -> None:
    fill(store, "a", 5)
    fill(store, "b", 8)
    store.delete("a", 5)
    store.delete("b", 8)
    first = Write("a", 0, (b"new", b"newer"), b"record")
    assert store.write([first]) == (Written(10),)
    for each in (store, second):
        assert each.read("a") == Stored(10, b"record", 10, ())
        assert each.events("a", 0, 10) == (Entry(9, b"new"), Entry(10, b"newer"))
        assert each.events("a", 5, 1) == (Entry(9, b"new"),)
        assert each.events("a", 9, 10) == (Entry(10, b"newer"),)
    assert store.write([first]) == (Conflict(10),)
    assert store.write([Write("a", 10, (b"on",))]) == (Written(11),)


def test_a_job_that_begins_later_is_trimmed_like_any_other(store: Store) -> None:
    fill(store, "a", 5)
    store.delete("a", 5)
    store.write([Write("a", 0, (b"6", b"7", b"8"), b"record")])
    assert not store.trim("a", Segment(1, 6, "of the deleted job"))
    assert store.trim("a", Segment(6, 7, "one"))
    with pytest.raises(EventsTrimmed):
        store.events("a", 0, 1)
    assert kept(store, "a", 7) == [8]


def test_an_older_deletion_does_not_lower_the_first_revision(store: Store) -> None:
    fill(store, "a", 9)
    fill(store, "b", 3)
    store.delete("a", 9)
    store.delete("b", 3)
    assert store.write([Write("c", 0, (b"x",), b"record")]) == (Written(10),)


# ------------------------------------------------------------------------------------------------ the holder


def test_a_holder_that_was_replaced_removes_nothing(store: Store) -> None:
    fill(store, "a", 9)
    hold = store.hold("lead", "x", 10.0, 0.0)
    assert isinstance(hold, Hold)
    assert store.trim("a", Segment(1, 2, "one"), under=hold)
    store.release(hold)
    assert isinstance(store.hold("lead", "y", 10.0, 0.0), Hold)
    with pytest.raises(HoldLost):
        store.trim("a", Segment(3, 4, "two"), under=hold)
    with pytest.raises(HoldLost):
        store.delete("a", 9, under=hold)
    assert store.segments("a") == (Segment(1, 2, "one"),)
    assert kept(store, "a", 2)[-1] == 9
