"""Live jobs in pages: what a coordinator reads when it takes over."""

from __future__ import annotations

import pytest

from pliant.errors import BadInput
from pliant.stores.base import Conflict, Store, Stored, Write, Written


def names(store: Store, after: str = "", limit: int = 100) -> list[str]:
    return [name for name, _ in store.read_page(after, limit)]


def create(store: Store, *jobs: str) -> None:
    assert set(store.write([Write(job, 0, (b"e1",), b"r") for job in jobs])) == {Written(1)}


def test_an_empty_store_has_an_empty_page(store: Store) -> None:
    assert store.read_page("", 10) == ()


def test_a_page_has_record_and_tail_of_each_job(store: Store) -> None:
    store.write([Write("a", 0, (b"e1", b"e2"), b"after 2"), Write("b", 0, (b"e1",), b"after 1")])
    store.write([Write("a", 2, (b"e3",)), Write("b", 1, (b"e2", b"e3"))])
    store.write([Write("b", 3, (b"e4",))])
    assert store.read_page("", 10) == (
        ("a", Stored(3, b"after 2", 2, (b"e3",))),
        ("b", Stored(4, b"after 1", 1, (b"e2", b"e3", b"e4"))),
    )


def test_pages_follow_the_names(store: Store) -> None:
    create(store, "c", "a", "ä-作業", "b", "a b", "@tokens", "a/b")
    assert names(store) == sorted(["c", "a", "ä-作業", "b", "a b", "@tokens", "a/b"])
    assert names(store, after="a", limit=2) == ["a b", "a/b"]
    assert names(store, after="a/c") == ["b", "c", "ä-作業"]  # a name that is not there
    assert names(store, after="ä-作業") == []


def test_small_pages_show_every_job_once(store: Store) -> None:
    create(store, *[f"job-{number}" for number in range(23)])
    seen: list[str] = []
    while page := names(store, after=seen[-1] if seen else "", limit=5):
        assert len(page) <= 5
        seen += page
    assert seen == sorted(f"job-{number}" for number in range(23))


def test_a_job_that_has_ended_is_read_by_its_name_only(store: Store, second: Store) -> None:
    create(store, "a", "b")
    assert store.write([Write("a", 1, (b"over",), live=False)]) == (Written(2),)
    assert names(store) == names(second) == ["b"]
    assert second.read("a") == Stored(2, b"r", 1, (b"over",))
    assert second.jobs() == ("a", "b")


def test_a_job_may_end_with_its_first_write(store: Store) -> None:
    assert store.write([Write("a", 0, (b"e1",), b"r", live=False)]) == (Written(1),)
    assert names(store) == []
    assert store.jobs() == ("a",)


def test_a_job_that_goes_on_again_is_live_again(store: Store) -> None:
    create(store, "a")
    store.write([Write("a", 1, (b"over",), b"ended", live=False)])
    store.write([Write("a", 2, (b"again",))])
    assert store.read_page("", 10) == (("a", Stored(3, b"ended", 2, (b"again",))),)


def test_a_write_that_conflicts_ends_nothing(store: Store) -> None:
    create(store, "a")
    assert store.write([Write("a", 4, (b"over",), live=False)]) == (Conflict(1),)
    assert names(store) == ["a"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_has_room_for_a_job(store: Store, limit: int) -> None:
    with pytest.raises(BadInput):
        store.read_page("", limit)
