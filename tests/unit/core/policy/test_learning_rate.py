"""Learning rates for larger batches, and the warm-up to them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.policy.learning_rate import scaled_rate, warmed_up_rate
from pliant.errors import BadInput


def test_the_linear_rule_multiplies_by_the_ratio_of_the_batches_and_the_root_rule_by_its_root() -> None:
    assert scaled_rate(0.1, found_with=32, batch=512) == pytest.approx(1.6)
    assert scaled_rate(0.1, found_with=32, batch=512, rule="sqrt") == pytest.approx(0.4)
    assert scaled_rate(0.1, found_with=64, batch=16) == pytest.approx(0.025)


@given(st.floats(1e-6, 10.0), st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(["linear", "sqrt"]))
def test_scaling_there_and_back_gives_the_same_rate(rate: float, small: int, large: int, rule: str) -> None:
    there = scaled_rate(rate, found_with=small, batch=large, rule=rule)
    assert scaled_rate(there, found_with=large, batch=small, rule=rule) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"rate": 0.0}, "The rate must be a number above 0, got 0.0."),
        ({"found_with": 0}, "got found_with=0 and batch=64"),
        ({"batch": -1}, "got found_with=32 and batch=-1"),
        ({"rule": "cubic"}, 'The rule must be "linear" or "sqrt", got \'cubic\'.'),
    ],
)
def test_numbers_that_make_no_sense_are_refused(given_: dict[str, Any], why: str) -> None:
    whole = {"rate": 0.1, "found_with": 32, "batch": 64, **given_}
    with pytest.raises(BadInput) as found:
        scaled_rate(**whole)
    assert why in found.value.why


def test_a_warm_up_rises_in_a_line_and_stays() -> None:
    rates = [warmed_up_rate(1.0, step, steps=4) for step in range(1, 7)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0])
    assert warmed_up_rate(1.0, 2, steps=4, start=0.5) == pytest.approx(0.75)
    assert warmed_up_rate(1.0, 1, steps=0) == 1.0


def test_a_warm_up_counts_steps_from_1() -> None:
    with pytest.raises(BadInput, match="Steps are counted from 1, got 0"):
        warmed_up_rate(1.0, 0, steps=4)
    with pytest.raises(BadInput, match="must be 0 or more, got -1"):
        warmed_up_rate(1.0, 1, steps=-1)
