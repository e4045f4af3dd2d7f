"""Cost limits: the workers that a job with `--at-most-cost` can pay for.

A job stops while its limit still pays for the time in which its workers save and leave. So its cost exceeds the limit
by no more than what its slots cost in one interval between two allocations, as long as its workers leave within
`RESERVE_S` and every price is known so long before.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from pliant.core.allocate.model import CostLimit, Demand, Prices
from pliant.core.allocate.sizes import seconds_at, sizes_of
from pliant.core.model.job import HOUR_S

RESERVE_S = 60.0  # workers that must leave have this long to save
RUNWAY_S = 600.0  # a job starts at a size, or changes to it, only if its limit pays for this long
MARGIN = 1.1  # of the projected cost, for a size that the job does not have


def price_at(prices: Prices, at: float) -> float | None:
    """Return the price of a slot for an hour at a time; None before the first price."""
    index = bisect_right(prices, at, key=lambda entry: entry[0])
    return prices[index - 1][1] if index else None


def highest_price(prices: Prices, at: float) -> float | None:
    """Return the highest price from now until all workers of a job could have left."""
    now = price_at(prices, at)
    soon = [price for since, price in prices if at < since <= at + 2 * RESERVE_S]
    return None if now is None else max(now, *soon) if soon else now


def within_cost(demand: Demand) -> Demand:
    """Return the demand with no more workers than its cost limit pays for. It wants none if that is below its minimum.

    `CostLimit.workers` is set if that is less than the job wants.
    """
    cost = demand.cost
    if cost is None:
        return demand
    sizes = sizes_of(demand)
    price = cost.price
    if price is None or not _pays_for_minimum(demand, cost, price, sizes[0]):
        return replace(demand, granted=0, planned=None, cost=replace(cost, workers=0))
    kept = max((size for size in sizes if size <= demand.granted), default=0)
    able = max((size for size in sizes[1:] if _pays_for(cost, price, size, sizes[0], kept)), default=sizes[0])
    return demand if able == sizes[-1] else replace(demand, wanted=able, cost=replace(cost, workers=able))


def _pays_for_minimum(demand: Demand, cost: CostLimit, price: float, least: int) -> bool:
    """Return whether a job can start, or go on, with its minimum."""
    seconds = RESERVE_S if demand.granted else RUNWAY_S + RESERVE_S
    return cost.left >= _cost(least, price, seconds)


def _pays_for(cost: CostLimit, price: float, size: int, least: int, kept: int) -> bool:
    """Return whether the limit pays for a size above the minimum. `kept` is the size that the job has.

    Then its workers could leave until it has its minimum, and those of the minimum after them. If the speed and the
    remaining samples are known, the limit must pay until the end of the job.
    """
    if cost.left < _cost(size, price, RESERVE_S if size == kept else RUNWAY_S) + _cost(least, price, RESERVE_S):
        return False
    return size_cost(cost, price, size) * (1.0 if size == kept else MARGIN) <= cost.left


def size_cost(cost: CostLimit, price: float, size: int) -> float:
    """Return the cost from now to the end of the job at a size; 0 if that is not known."""
    return _cost(size, price, seconds_at(cost.samples_left, cost.speeds, size - cost.spares) or 0.0)


def _cost(slots: int, price: float, seconds: float) -> float:
    return slots * price * seconds / HOUR_S
