"""Holding, for election: who does the work. The contract is in `pliant.stores.base`."""

from __future__ import annotations

import math

import pytest

from pliant.errors import BadInput
from pliant.stores.base import Busy, Conflict, Hold, Store, Write, Written


def gain(store: Store, owner: str, now: float, ttl_s: float = 10.0, name: str = "lead") -> Hold:
    hold = store.hold(name, owner, ttl_s, now)
    assert isinstance(hold, Hold)
    return hold


def test_the_first_to_ask_holds(store: Store) -> None:
    assert store.hold("lead", "x", 10.0, 100.0) == Hold("lead", "x", 1, 110.0)


def test_another_owner_is_told_who_holds_and_until_when(store: Store, second: Store) -> None:
    mine = gain(store, "x", 100.0)
    assert second.hold("lead", "y", 10.0, 109.9) == Busy(mine)


def test_a_hold_is_over_at_its_end(store: Store, second: Store) -> None:
    mine = gain(store, "x", 100.0)
    theirs = gain(second, "y", 110.0)
    assert theirs.term > mine.term
    assert store.hold("lead", "x", 10.0, 110.1) == Busy(theirs)


def test_renewing_keeps_the_term_and_moves_the_end(store: Store, second: Store) -> None:
    mine = gain(store, "x", 100.0)
    again = gain(store, "x", 105.0)
    assert (again.term, again.until_s) == (mine.term, 115.0)
    assert second.hold("lead", "y", 10.0, 112.0) == Busy(again)


def test_a_shorter_time_to_live_counts_from_the_renewal(store: Store, second: Store) -> None:
    gain(store, "x", 100.0, ttl_s=60.0)
    gain(store, "x", 101.0, ttl_s=2.0)
    assert gain(second, "y", 103.0).owner == "y"


def test_an_owner_that_let_it_expire_gets_a_new_term(store: Store) -> None:
    mine = gain(store, "x", 100.0)
    assert gain(store, "x", 110.0).term > mine.term


def test_release_lets_the_next_one_in_at_once(store: Store, second: Store) -> None:
    mine = gain(store, "x", 100.0)
    store.release(mine)
    assert gain(second, "y", 100.0).term > mine.term


def test_releasing_does_not_lower_the_term(store: Store) -> None:
    terms = []
    for now in range(5):
        hold = gain(store, "x", float(now))
        terms.append(hold.term)
        store.release(hold)
    assert terms == sorted(set(terms))


def test_a_hold_that_is_over_cannot_be_released(store: Store, second: Store) -> None:
    old = gain(store, "x", 100.0)
    theirs = gain(second, "y", 110.0)
    store.release(old)
    assert store.hold("lead", "x", 10.0, 111.0) == Busy(theirs)


def test_an_older_term_of_the_same_owner_cannot_release_the_newer(store: Store, second: Store) -> None:
    old = gain(store, "x", 100.0)
    new = gain(store, "x", 110.0)
    store.release(old)
    assert second.hold("lead", "y", 10.0, 111.0) == Busy(new)


def test_a_hold_as_it_was_before_a_renewal_releases(store: Store, second: Store) -> None:
    mine = gain(store, "x", 100.0)
    gain(store, "x", 105.0)
    store.release(mine)
    assert gain(second, "y", 106.0).owner == "y"


def test_releasing_twice_or_what_never_was_is_harmless(store: Store) -> None:
    mine = gain(store, "x", 100.0)
    store.release(mine)
    store.release(mine)
    store.release(Hold("other", "x", 1, 100.0))


def test_holds_under_different_names_are_independent(store: Store) -> None:
    lead = gain(store, "x", 100.0, name="lead")
    sweep = gain(store, "y", 100.0, name="sweep")
    store.release(lead)
    assert store.hold("sweep", "x", 10.0, 101.0) == Busy(sweep)


def test_a_hold_gives_no_safety(store: Store, second: Store) -> None:
    """An old holder that believes it still holds can write, and it is the revision that stops it."""
    gain(store, "x", 100.0)
    assert store.write([Write("a", 0, (b"by x",), b"r")]) == (Written(1),)
    gain(second, "y", 200.0)
    assert second.write([Write("a", 1, (b"by y",))]) == (Written(2),)
    assert store.write([Write("a", 1, (b"by x",))]) == (Conflict(2),)


@pytest.mark.parametrize(
    ("name", "owner", "ttl_s", "now"),
    [
        ("", "x", 10.0, 0.0),
        ("lead", "", 10.0, 0.0),
        ("lead", "x", 0.0, 0.0),
        ("lead", "x", -1.0, 0.0),
        ("lead", "x", math.inf, 0.0),
        ("lead", "x", math.nan, 0.0),
        ("lead", "x", 10.0, math.nan),
        ("lead", "x", 10.0, math.inf),
    ],
)
def test_a_hold_that_makes_no_sense_is_refused(store: Store, name: str, owner: str, ttl_s: float, now: float) -> None:
    with pytest.raises(BadInput):
        store.hold(name, owner, ttl_s, now)
    assert isinstance(store.hold("lead", "z", 10.0, 0.0), Hold)
