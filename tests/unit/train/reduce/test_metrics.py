"""Logged values of a step: weighted over its parts, and dropped with dropped parts."""

import itertools

import pytest
import torch

from pliant.errors import BadInput
from pliant.train.reduce.control_row import LOGGED_MAX
from pliant.train.reduce.metrics import NOTHING, LoggedValues, StepMetrics

_slots = itertools.count()


def part(logged: StepMetrics, weight: float | None, **values: object) -> None:
    """One part of a step; without a weight, an idle one."""
    logged.begin(next(_slots))
    logged.log(values)
    if weight is None:
        logged.drop()
    else:
        logged.finish(weight)


def test_sums_are_weighted_and_in_the_order_of_the_names() -> None:
    logged = StepMetrics()
    part(logged, 3.0, norm=2.0, loss=torch.tensor(0.5))
    part(logged, 1.0, loss=1.0, norm=4.0)
    assert logged.names == ("loss", "norm")
    assert list(logged.sums) == pytest.approx([2.5, 10.0])


def test_a_name_logged_twice_in_a_part_keeps_the_last_value() -> None:
    logged = StepMetrics()
    logged.begin(0)
    logged.log({"loss": 1.0})
    logged.log({"loss": 2.0})
    logged.finish(1.0)
    assert logged.sums == (2.0,)


def test_a_part_that_logs_nothing_is_not_given_the_values_of_the_part_before() -> None:
    logged = StepMetrics()
    part(logged, 1.0, loss=5.0)
    part(logged, 1.0)
    assert logged.sums == (5.0,)


def test_only_parts_that_log_are_weighed() -> None:
    logged = StepMetrics()
    part(logged, 3.0, loss=5.0)
    part(logged, 4.0)
    assert logged.weight == 3.0
    logged.clear()
    assert logged.weight == 0.0


def test_a_part_that_weighs_nothing_does_not_make_the_mean_not_a_number() -> None:
    logged = StepMetrics()
    part(logged, 2.0, loss=1.5)
    part(logged, 0.0, loss=float("nan"))
    assert logged.sums == (3.0,)


def test_an_idle_part_adds_nothing_but_knows_the_names() -> None:
    logged = StepMetrics()
    part(logged, None, loss=5.0)
    assert logged.sums == ()
    assert logged.names_hash == 0
    assert logged.names == ("loss",)


def test_an_idle_part_after_others_leaves_their_sums() -> None:
    logged = StepMetrics()
    part(logged, 2.0, loss=1.5)
    part(logged, None, loss=99.0)
    assert logged.sums == (3.0,)


def test_the_next_step_starts_from_nothing() -> None:
    logged = StepMetrics()
    part(logged, 2.0, loss=1.5)
    logged.clear()
    assert not logged.sums
    part(logged, 1.0, loss=4.0)
    assert list(logged.sums) == [4.0]


def test_the_key_tells_names_apart_and_nothing_else() -> None:
    keys = []
    for values in ({"loss": 1.0, "norm": 2.0}, {"norm": 5.0, "loss": 7.0}, {"loss": 1.0}, {"lossnorm": 1.0}):
        logged = StepMetrics()
        part(logged, 1.0, **values)
        keys.append(logged.names_hash)
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert all(0 < key < 2**64 for key in keys)


def test_too_many_names_are_refused_where_they_are_logged() -> None:
    logged = StepMetrics()
    logged.begin(0)
    with pytest.raises(BadInput, match=f"at most {LOGGED_MAX}"):
        logged.log({f"name{at}": 1.0 for at in range(LOGGED_MAX + 1)})


def test_each_part_is_known_by_its_first_slot() -> None:
    logged = StepMetrics()
    for slot, weight, loss in ((5, 2.0, 1.5), (2, 1.0, 4.0)):
        logged.begin(slot)
        logged.log({"loss": loss})
        logged.finish(weight)
    assert logged.of(5) == LoggedValues(2.0, {"loss": 3.0})
    assert logged.of(2) == LoggedValues(1.0, {"loss": 4.0})
    assert logged.of(3) == NOTHING
    logged.clear()
    assert logged.of(5) == NOTHING


def test_a_slot_that_is_computed_again_counts_once() -> None:
    logged = StepMetrics()
    for loss in (1.0, 7.0):
        logged.begin(3)
        logged.log({"loss": loss})
        logged.finish(2.0)
    assert logged.sums == (14.0,)
    assert logged.weight == 2.0


def test_a_part_that_weighs_nothing_or_is_idle_leaves_nothing_under_its_slot() -> None:
    logged = StepMetrics()
    logged.begin(1)
    logged.log({"loss": float("nan")})
    logged.finish(0.0)
    logged.begin(2)
    logged.log({"loss": 1.0})
    logged.drop()
    assert logged.of(1) == logged.of(2) == NOTHING
    assert logged.names == ("loss",)


def test_other_names_in_another_part_of_the_step_are_refused() -> None:
    """Else what a script may log would depend on how many parts a member has."""
    logged = StepMetrics()
    part(logged, 1.0, loss=1.0)
    with pytest.raises(BadInput, match="the same names in all its micro-batches"):
        part(logged, 1.0, norm=2.0)
