"""Spot checks: which slots are computed twice, and by whom."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.train.reduce.spot_checks import is_checked, spot_checks

SHARES = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))


def test_no_member_checks_alone_and_nothing_is_checked_for_nothing() -> None:
    assert spot_checks(0, 1.0, 3, 1, ((0, 1, 2),)) == ()
    assert spot_checks(0, 1.0, 3, 1, ((0, 1, 2), ())) == ()
    assert spot_checks(0, 0.0, 3, 1, SHARES) == ()


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 100))
def test_every_slot_is_checked_once_by_another_member(seed: int, step: int, generation: int) -> None:
    found = spot_checks(seed, 1.0, step, generation, SHARES)
    assert [check.slot for check in found] == list(range(12))
    assert all(check.slot in SHARES[check.owner] and check.second != check.owner for check in found)


def test_another_generation_has_another_second_member() -> None:
    """So that who is wrong comes into dispute with two others."""
    one, other = (spot_checks(0, 1.0, 5, generation, SHARES) for generation in (4, 5))
    assert all(a.owner == b.owner and a.second != b.second for a, b in zip(one, other, strict=True))


def test_a_fraction_is_drawn_that_does_not_depend_on_who_owns_what() -> None:
    drawn = [(step, slot) for step in range(500) for slot in range(16) if is_checked(7, 0.05, step, slot)]
    assert 300 < len(drawn) < 500  # 400 of 8,000 are to be expected
    shares = ((0, 5, 9), tuple(slot for slot in range(16) if slot not in (0, 5, 9)))
    found = [(step, check.slot) for step in range(500) for check in spot_checks(7, 0.05, step, 1, shares)]
    assert found == drawn
