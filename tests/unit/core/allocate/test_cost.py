"""The workers that a job with a cost limit can pay for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.allocate import Demand, Pool, Reason, allocate
from pliant.core.allocate.cost import RESERVE_S, RUNWAY_S, highest_price, price_at
from pliant.core.allocate.model import PRICES_MAX, CostLimit, bad_pool
from pliant.core.allocate.reasons import amount

HOURLY = 3600.0  # a slot costs 1 for each second
START = RUNWAY_S + RESERVE_S
PRICES = ((100.0, 1.0), (200.0, 4.0), (260.0, 2.0))


def limited(left: float, granted: int = 0, wanted: int = 8, least: int = 1, **known: object) -> Demand:
    cost = CostLimit(1000.0, 1000.0 - left, HOURLY, **known)  # type: ignore[arg-type]  # fields of the limit
    return Demand("a", least, wanted, held=granted, granted=granted, cost=cost)


def size_of(demand: Demand, slots: int = 8) -> int:
    return allocate(Pool(slots), (demand,))[0].size


def test_a_job_starts_only_if_its_limit_pays_for_ten_minutes_at_its_minimum() -> None:
    assert size_of(limited(2 * START, least=2, wanted=2)) == 2
    (found,) = allocate(Pool(8), (limited(2 * START - 1, least=2, wanted=2),))
    assert (found.size, found.planned, found.reason, found.position) == (0, 0, Reason.COST_LIMIT, 1)
    (found,) = allocate(Pool(8), (limited(600.0, least=1),))
    assert found.why == "the rest of its cost limit of 1000.00 is too little for 1 worker at 3600 for a slot and hour"


def test_a_job_stops_while_its_limit_still_pays_for_the_time_in_which_its_workers_leave() -> None:
    assert size_of(limited(2 * RESERVE_S, granted=2, least=2)) == 2
    (found,) = allocate(Pool(8), (limited(2 * RESERVE_S - 1, granted=2, least=2),))
    assert (found.size, found.reason) == (0, Reason.COST_LIMIT)
    assert "is too little for 2 workers" in found.why


def test_a_job_whose_limit_comes_near_gets_a_size_that_it_can_pay_for_longer() -> None:
    assert size_of(limited(9 * RESERVE_S, granted=8)) == 8
    (found,) = allocate(Pool(8), (limited(9 * RESERVE_S - 1, granted=8),))
    assert (found.size, found.reason) == (1, Reason.COST)
    assert found.why == "1: more workers would exceed its cost limit of 1000.00"
    assert size_of(limited(10_000.0, granted=16, wanted=16), slots=16) == 16
    assert size_of(limited(17 * RESERVE_S - 1, granted=16, wanted=16, least=1), slots=16) == 1
    assert size_of(limited(50 * RESERVE_S, granted=64, wanted=64, least=1), slots=64) == 4


def test_a_job_grows_only_to_a_size_that_its_limit_pays_for_ten_minutes() -> None:
    assert size_of(limited(5 * RUNWAY_S + RESERVE_S, granted=2)) == 5
    assert size_of(limited(5 * RUNWAY_S + RESERVE_S - 1, granted=2)) == 4


def test_with_a_known_end_a_job_gets_no_more_workers_than_its_limit_pays_for_until_then() -> None:
    speeds = ((1, 1.0), (2, 1.6), (4, 2.4), (8, 3.0))  # 100,000 samples cost 100,000, 125,000, 166,667 or 266,667
    for left, size in ((110_000.0, 1), (140_000.0, 2), (200_000.0, 4), (300_000.0, 8)):
        assert size_of(limited(left, samples_left=1e5, speeds=speeds)) == size
    assert size_of(limited(130_000.0, granted=2, samples_left=1e5, speeds=speeds)) == 2  # it has this size
    assert size_of(limited(130_000.0, granted=1, samples_left=1e5, speeds=speeds)) == 1  # too close to change to it
    assert size_of(limited(90_000.0, samples_left=1e5, speeds=speeds)) == 1  # it goes as far as its limit


def test_spares_cost_like_workers_and_make_a_job_no_faster() -> None:
    speeds = ((1, 1.0), (2, 2.0))  # 200 s of two workers for 400 samples, 400 s of one
    assert size_of(limited(700.0, granted=2, wanted=2, samples_left=400.0, speeds=speeds)) == 2
    assert size_of(limited(700.0, granted=2, wanted=2, samples_left=400.0, speeds=speeds, spares=1)) == 1


def test_a_job_that_waits_for_its_limit_keeps_no_other_job_waiting() -> None:
    first, second = limited(0.0), Demand("b", 8, 8, since=1.0)
    found = {each.name: each for each in allocate(Pool(8), (first, second))}
    assert (found["a"].size, found["b"].size) == (0, 8)


def test_slots_of_a_job_that_stops_are_granted_only_when_they_are_free() -> None:
    found = {each.name: each for each in allocate(Pool(8), (limited(0.0, granted=8), Demand("b", 2, 8, since=1.0)))}
    assert (found["a"].size, found["b"].size) == (0, 0)
    assert found["b"].why == "starts with 8 workers once a has released them"


def test_without_a_price_a_job_with_a_limit_waits() -> None:
    job = Demand("a", 1, 4, held=2, granted=2, cost=CostLimit(50.0, 0.0, None))
    (found,) = allocate(Pool(8), (job,))
    assert (found.size, found.reason) == (0, Reason.NO_PRICE)
    assert found.why == "has a cost limit of 50.00, and the pool has no price of a slot now"


def test_free_slots_cost_nothing_and_a_limit_that_pays_for_all_has_no_effect() -> None:
    assert size_of(Demand("a", 1, 8, cost=CostLimit(50.0, 50.0, 0.0))) == 8
    (found,) = allocate(Pool(8), (Demand("a", 1, 8, held=8, granted=8, cost=CostLimit(1e9, 0.0, 1.0)),))
    assert (found.size, found.reason) == (8, Reason.ALL)


@pytest.mark.parametrize(
    ("at", "now", "highest"), [(99, None, None), (100, 1, 4), (79 + 60, 1, 4), (250, 4, 4), (300, 2, 2)]
)
def test_the_price_is_that_of_the_last_line_and_a_rise_counts_before_it_comes(
    at: float, now: float | None, highest: float | None
) -> None:
    assert price_at(PRICES, at) == now
    assert highest_price(PRICES, at) == highest


@pytest.mark.parametrize(
    ("prices", "wrong"),
    [
        (PRICES, ""),
        (((1.0, 2.0), (1.0, 3.0)), "prices must be in the order of their times, each time once"),
        (((1.0, -2.0),), "a price must be from 0 to 1e+12"),
        (
            tuple((float(at), 1.0) for at in range(PRICES_MAX + 1)),
            "a pool can have up to 10000 prices; got 10001: leave out the oldest",
        ),
    ],
)
def test_the_prices_of_a_pool_are_checked(prices: tuple[tuple[float, float], ...], wrong: str) -> None:
    assert bad_pool(Pool(8, prices=prices)) == wrong


def test_small_costs_are_shown_with_the_digits_that_matter() -> None:
    assert [amount(cost) for cost in (0.0, 0.00123, 0.5, 12.345)] == ["0.00", "0.0012", "0.50", "12.35"]


def test_a_job_that_lost_all_workers_with_the_pool_starts_again_only_if_its_limit_pays_for_that() -> None:
    lost = replace(limited(2 * START - 1, granted=2, wanted=2, least=2), held=0)
    other, third = Demand("b", 1, 4, 5, held=1, granted=4), Demand("c", 1, 1, since=1.0)
    found = {each.name: each for each in allocate(Pool(2), (lost, other, third))}
    assert (found["a"].size, found["a"].reason) == (0, Reason.COST_LIMIT)
    assert [found[name].size for name in "bc"] == [1, 1]  # it keeps no other job waiting
    found = {each.name: each for each in allocate(Pool(2), (replace(lost, held=1), other, third))}
    assert found["a"].reason is Reason.NO_ROOM
