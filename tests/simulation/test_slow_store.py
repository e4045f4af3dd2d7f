"""A store whose calls take time: renewals, commands and faults arrive while a pump waits (ADR 0023)."""

import pytest

from pliant_sim.run import run_seed

SEEDS = 40


@pytest.mark.parametrize("tens", range(SEEDS // 10))
def test_no_promise_is_broken_while_the_store_is_slow(tens: int) -> None:
    results = [run_seed(seed, slow_store=True) for seed in range(10 * tens, 10 * tens + 10)]
    assert [(result.seed, result.complaints) for result in results if result.complaints] == []
    assert all(result.events for result in results)


def test_a_run_with_a_slow_store_is_the_same_every_time() -> None:
    assert run_seed(3, slow_store=True) == run_seed(3, slow_store=True)
    assert run_seed(3, slow_store=True).trace != run_seed(3).trace
