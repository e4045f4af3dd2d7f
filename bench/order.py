"""Measure the cost of the canonical order per sample: one position at a time in the core, and for arrays."""

from __future__ import annotations

import time
from collections.abc import Callable

from pliant.core.data.sample_order import Order
from pliant.train.data import order as arrays

SAMPLES = 100_000_000


def order_cost(*, batch: int = 4096, seed: int = 0, attempts: int = 20) -> dict[str, float]:
    """Measure nanoseconds per sample, the best of several attempts, so that a busy machine disturbs less."""
    order = Order(seed, SAMPLES)
    few, many = range(batch // 16), range(batch)
    return {
        "scalar_ns": _best(lambda: order.take(0, few), attempts) / len(few),
        "array_ns": _best(lambda: arrays.take(order, 0, many), attempts) / len(many),
    }


def _best(do: Callable[[], object], attempts: int) -> float:
    times = []
    for _ in range(attempts):
        start = time.perf_counter_ns()
        do()
        times.append(time.perf_counter_ns() - start)
    return min(times)
