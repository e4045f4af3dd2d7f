"""Holding, for election: who does the work. The contract is in `pliant.stores.base`.

`x` and `y` are two processes with clocks that cannot be compared.
"""

from __future__ import annotations

import math

import pytest

from contract.conftest import Caller, Opened
from pliant.errors import BadInput, HoldLost
from pliant.stores.base import Busy, Conflict, Hold, Store, Stored, Write, Written


def test_the_first_to_ask_holds(x: Caller) -> None:
    assert x.gain().term >= 1


def test_another_owner_is_told_who_holds(opened: Opened, x: Caller, y: Caller) -> None:
    mine = x.gain()
    opened.advance(9.0)
    assert y.held_by() == ("x", mine.term)


def test_another_owner_is_told_where_the_holder_is_reached(x: Caller, y: Caller) -> None:
    x.gain(url="https://x:7711")
    answer = y.ask(url="https://y:7711")
    assert isinstance(answer, Busy)
    assert answer.hold.url == "https://x:7711"


def test_a_holder_may_change_its_address(x: Caller, y: Caller) -> None:
    mine = x.gain(url="https://x:7711")
    assert x.gain(url="https://x:7722").term == mine.term
    answer = y.ask()
    assert isinstance(answer, Busy)
    assert answer.hold.url == "https://x:7722"


def test_a_look_at_a_hold_gains_nothing(opened: Opened, x: Caller, y: Caller) -> None:
    assert y.store.holder("lead", y.now) is None
    mine = x.gain(ttl_s=10.0, url="https://x:7711")
    for caller in (x, y):
        seen = caller.store.holder("lead", caller.now)
        assert seen is not None
        assert (seen.owner, seen.term, seen.url) == ("x", mine.term, "https://x:7711")
        assert seen.until_s > caller.now
    assert y.store.holder("other", y.now) is None
    x.store.release(mine)
    assert y.store.holder("lead", y.now) is None
    x.gain(ttl_s=10.0)
    assert y.store.holder("lead", y.now) is not None
    opened.advance(10.0)
    assert y.store.holder("lead", y.now) is None
    assert x.gain().term > mine.term
    with pytest.raises(BadInput, match="finite"):
        y.store.holder("lead", math.inf)


def test_a_hold_that_is_not_renewed_is_over_after_its_time_to_live(opened: Opened, x: Caller, y: Caller) -> None:
    mine = x.gain(ttl_s=10.0)
    assert y.held_by() == ("x", mine.term)
    opened.advance(10.0)
    theirs = y.gain()
    assert theirs.term > mine.term
    assert x.held_by() == ("y", theirs.term)


@pytest.mark.parametrize("skew_s", [1e6, -1e6], ids=["ahead", "behind"])
def test_a_hold_does_not_compare_clocks_of_two_processes(opened: Opened, x: Caller, skew_s: float) -> None:
    if opened.is_one_process:
        pytest.skip("this store has one clock")
    y = Caller("y", opened.another(), opened.clock, skew_s)
    mine = x.gain(ttl_s=10.0)
    assert y.held_by() == ("x", mine.term)
    opened.advance(9.0)
    assert y.held_by() == ("x", mine.term)
    opened.advance(1.0)
    theirs = y.gain(ttl_s=10.0)
    assert x.held_by() == ("y", theirs.term)
    opened.advance(10.0)
    assert x.gain().term > theirs.term


def test_a_renewed_hold_stands_however_long(opened: Opened, x: Caller, y: Caller) -> None:
    mine = x.gain(ttl_s=10.0)
    for _ in range(5):
        assert y.held_by() == ("x", mine.term)
        opened.advance(6.0)
        assert y.held_by() == ("x", mine.term)
        assert x.gain(ttl_s=10.0).term == mine.term


def test_a_shorter_time_to_live_counts_from_the_renewal(opened: Opened, x: Caller, y: Caller) -> None:
    x.gain(ttl_s=60.0)
    x.gain(ttl_s=2.0)
    y.held_by()
    opened.advance(2.0)
    assert y.gain().owner == "y"


def test_a_longer_time_to_live_counts_from_the_renewal(opened: Opened, x: Caller, y: Caller) -> None:
    x.gain(ttl_s=2.0)
    mine = x.gain(ttl_s=60.0)
    y.held_by()
    opened.advance(50.0)
    assert y.held_by() == ("x", mine.term)


def test_an_owner_that_let_it_expire_gets_a_new_term(opened: Opened, x: Caller) -> None:
    mine = x.gain()
    opened.advance(10.0)
    assert x.gain().term > mine.term


def test_release_lets_the_next_one_in_at_once(x: Caller, y: Caller) -> None:
    mine = x.gain()
    x.store.release(mine)
    assert y.gain().term > mine.term


def test_releasing_does_not_lower_the_term(x: Caller) -> None:
    terms = []
    for _ in range(5):
        hold = x.gain()
        terms.append(hold.term)
        x.store.release(hold)
    assert terms == sorted(set(terms))


def test_a_hold_that_is_over_cannot_be_released(opened: Opened, x: Caller, y: Caller) -> None:
    old = x.gain()
    y.held_by()
    opened.advance(10.0)
    theirs = y.gain()
    x.store.release(old)
    assert x.held_by() == ("y", theirs.term)


def test_an_older_term_of_the_same_owner_cannot_release_the_newer(opened: Opened, x: Caller, y: Caller) -> None:
    old = x.gain()
    opened.advance(10.0)
    new = x.gain()
    x.store.release(old)
    assert y.held_by() == ("x", new.term)


def test_a_hold_as_it_was_before_a_renewal_releases(opened: Opened, x: Caller, y: Caller) -> None:
    mine = x.gain()
    opened.advance(5.0)
    x.gain()
    x.store.release(mine)
    assert y.gain().owner == "y"


def test_releasing_twice_or_what_never_was_is_harmless(x: Caller) -> None:
    mine = x.gain()
    x.store.release(mine)
    x.store.release(mine)
    x.store.release(Hold("other", "x", 1, 100.0))


def test_holds_under_different_names_are_independent(x: Caller, y: Caller) -> None:
    lead = x.gain(name="lead")
    sweep = y.gain(name="sweep")
    x.store.release(lead)
    assert x.held_by(name="sweep") == ("y", sweep.term)


# ------------------------------------------------------------------------------------------ writing under a hold


def test_a_holder_writes_under_its_hold_also_after_renewing_it(opened: Opened, x: Caller) -> None:
    mine = x.gain()
    assert x.store.write([Write("a", 0, (b"e1",), b"r")], mine) == (Written(1),)
    opened.advance(5.0)
    x.gain()
    assert x.store.write([Write("a", 1, (b"e2",))], mine) == (Written(2),)
    assert x.store.write([Write("a", 1, (b"e3",))], mine) == (Conflict(2),)


def test_a_deposed_holder_changes_nothing(opened: Opened, x: Caller, y: Caller) -> None:
    """Neither a job that its successor wrote, nor one that it did not, nor a new one."""
    old = x.gain()
    x.store.write([Write("a", 0, (b"by x",), b"r"), Write("b", 0, (b"by x",), b"r")], old)
    y.held_by()
    opened.advance(10.0)
    new = y.gain()
    assert y.store.write([Write("a", 1, (b"by y",))], new) == (Written(2),)
    for late in (Write("a", 2, (b"late",)), Write("b", 1, (b"late",), b"late"), Write("c", 0, (b"late",), b"late")):
        with pytest.raises(HoldLost, match="is over; nothing was written"):
            x.store.write([late], old)
    assert x.store.read("a") == Stored(2, b"r", 1, (b"by y",))
    assert x.store.read("b") == Stored(1, b"r", 1, ())
    assert x.store.jobs() == ("a", "b")
    assert y.store.write([Write("b", 1, (b"by y",))], new) == (Written(2),)


@pytest.mark.parametrize("count", [1, 300])
def test_a_released_hold_writes_nothing_of_a_batch(x: Caller, count: int) -> None:
    mine = x.gain()
    x.store.release(mine)
    with pytest.raises(HoldLost):
        x.store.write([Write(f"job-{number}", 0, (b"e1",), b"r") for number in range(count)], mine)
    assert x.store.jobs() == ()


def test_an_older_term_of_the_same_owner_writes_nothing(x: Caller) -> None:
    old = x.gain()
    x.store.release(old)
    new = x.gain()
    with pytest.raises(HoldLost):
        x.store.write([Write("a", 0, (b"e1",), b"r")], old)
    assert x.store.write([Write("a", 0, (b"e1",), b"r")], new) == (Written(1),)


def test_a_hold_under_another_name_or_of_another_term_is_not_in_force(x: Caller, y: Caller) -> None:
    mine = x.gain()
    for forged in (
        Hold("sweep", "x", mine.term, 0.0),
        Hold("lead", "x", mine.term + 1, 0.0),
        Hold("sweep", "x", 0, 0.0),
    ):
        with pytest.raises(HoldLost):
            y.store.write([Write("a", 0, (b"e1",), b"r")], forged)
    assert y.store.jobs() == ()


def test_without_a_hold_the_revision_alone_decides(opened: Opened, x: Caller, y: Caller) -> None:
    x.gain()
    assert x.store.write([Write("a", 0, (b"by x",), b"r")]) == (Written(1),)
    y.held_by()
    opened.advance(10.0)
    y.gain()
    assert y.store.write([Write("a", 1, (b"by y",))]) == (Written(2),)
    assert x.store.write([Write("a", 1, (b"by x",))]) == (Conflict(2),)


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
