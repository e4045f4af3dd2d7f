"""Pulls and pushes of a worker, with the tables in its own process."""

from typing import Any

import numpy as np
import pytest

from pliant.errors import BadInput
from pliant.ps import SGD, PushPolicy, Table
from pliant.ps.access import LocalRows, TableAccess
from pliant.ps.tables.hashing import buckets_of
from pliant.ps.tables.spec import BY_STEP, table_terms
from pliant.ps.tables.table_copy import TableCopy

TABLE = Table("t", 2, SGD(1.0), scale=0.0)


def alone(policy: PushPolicy | None = None, workers: int = 1, table: Table = TABLE) -> list[TableAccess]:
    policy = policy or PushPolicy()
    rows = LocalRows([table], policy)
    return [TableAccess(f"w{at}", [table], policy, rows) for at in range(workers)]


def test_gradients_of_equal_ids_are_added_up() -> None:
    (tables,) = alone()
    assert tables.push({"t": ([[3, 5], [3, 3]], np.ones((2, 2, 2)))})
    np.testing.assert_array_equal(tables.pull("t", [[5], [3]]), [[[-1, -1]], [[-3, -3]]])
    assert tables.pull("t", np.zeros((0, 4), np.int64)).shape == (0, 4, 2)
    assert tables.push({"t": (np.zeros(0, np.int64), np.zeros((0, 2)))})


def test_rows_are_created_once() -> None:
    first, second = alone(workers=2)
    first.create("t", [1, 2], [[1, 1], [2, 2]])
    second.create("t", [2, 3], [[9, 9], [3, 3]])
    np.testing.assert_array_equal(first.pull("t", [1, 2, 3])[:, 0], [1, 2, 3])


def test_the_mean_of_several_pushes_is_applied_once_they_are_there() -> None:
    first, second = alone(PushPolicy(grads_to_wait=2), workers=2)
    first.push({"t": ([1], [[2.0, 2.0]])})
    assert first.pull("t", [1])[0, 0] == 0
    second.push({"t": ([1, 2], [[4.0, 4.0], [8.0, 8.0]])})
    np.testing.assert_array_equal(first.pull("t", [1, 2])[:, 0], [-3, -4])


def test_the_gradients_of_a_step_are_applied_by_a_request_of_a_later_one() -> None:
    (tables,) = alone(BY_STEP)
    one = [tables.part("t", [1, 2], np.ones((2, 2)))]
    tables.push_slot(1, 0, one)
    tables.push_slot(1, 1, one)
    tables.push_slot(1, 0, one)  # another member computes the slot again
    assert (tables.pull("t", [1, 2], 1) == 0).all()
    tables.push_slot(2, 0, [tables.part("t", [1], [[4.0, 4.0]])])
    np.testing.assert_array_equal(tables.pull("t", [1, 2], 2)[:, 0], [-2, -2])
    np.testing.assert_array_equal(tables.pull("t", [1, 2], 9)[:, 0], [-6, -2])


def test_the_steps_after_a_rollback_count_once() -> None:
    (tables,) = alone(BY_STEP)
    for step in (1, 2, 3, 2, 3, 4):
        for slot in range(2 if step < 3 else 1):
            tables.push_slot(step, slot, [tables.part("t", [1], [[1.0, 1.0]])])
    assert tables.pull("t", [1], 5)[0, 0] == -6


def test_an_item_without_rows_pushes_nothing() -> None:
    (tables,) = alone(BY_STEP)
    tables.push_slot(1, 0, [])
    tables.push_slot(1, 0, [tables.part("t", np.zeros(0, np.int64), np.zeros((0, 2)))])
    tables.push_slot(1, 0, [tables.part("t", [1], [[1.0, 1.0]]), tables.part("t", [1, 2], np.ones((2, 2)))])
    np.testing.assert_array_equal(tables.pull("t", [1, 2], 2)[:, 0], [-2, -1])


def test_a_push_that_is_too_old_is_refused_and_changes_nothing() -> None:
    first, second = alone(PushPolicy(staleness_max=1), workers=2)
    first.pull("t", [1])
    for _ in range(2):
        assert second.push({"t": ([1], [[1.0, 1.0]])})
    assert not first.push({"t": ([1], [[1.0, 1.0]])})
    assert first.pull("t", [1])[0, 0] == -2
    assert first.push({"t": ([1], [[1.0, 1.0]])})


def test_a_push_is_not_too_old_for_buckets_without_its_rows() -> None:
    first, second = alone(PushPolicy(grads_to_wait=2, staleness_max=0), workers=2)
    first.pull("t", [1])  # of an earlier batch
    for _ in range(2):
        assert second.push({"t": ([2], [[1.0, 1.0]])})  # every bucket counts these, so all versions rise
    first.pull("t", [3])
    assert first.push({"t": ([3], [[1.0, 1.0]])})
    assert not first.push({"t": ([1], [[1.0, 1.0]])})


def test_rows_that_are_pushed_and_never_pulled_have_no_age() -> None:
    """Row 5 of table `u` is in the bucket of a row of `t` that was pulled long before."""
    tables = [TABLE, Table("u", 2, SGD(1.0), scale=0.0)]
    policy = PushPolicy(staleness_max=0)
    rows = LocalRows(tables, policy)
    first, second = (TableAccess(name, tables, policy, rows) for name in ("w0", "w1"))
    (bucket,) = buckets_of(tables[1], np.asarray([5]))
    near = next(row for row in range(100_000) if buckets_of(TABLE, np.asarray([row]))[0] == bucket)
    first.pull("t", [near])
    assert second.push({"t": ([near], [[1.0, 1.0]])})
    assert first.push({"u": ([5], [[1.0, 1.0]])})
    assert not first.push({"t": ([near], [[1.0, 1.0]]), "u": ([5], [[1.0, 1.0]])})


def test_a_push_that_was_refused_is_taken_when_its_rows_were_pulled_again() -> None:
    first, second = alone(PushPolicy(staleness_max=0), workers=2)
    ids = [1, next(row for row in range(2, 100_000) if same_bucket(1, row))]
    first.pull("t", ids)
    assert second.push({"t": ([1], [[1.0, 1.0]])})
    gradients = {"t": (ids, np.ones((2, 2)))}
    assert not first.push(gradients)
    first.pull("t", ids[:1])
    assert first.push(gradients)


def same_bucket(row: int, other: int) -> bool:
    one, two = buckets_of(TABLE, np.asarray([row, other]))
    return bool(one == two)


def test_the_rate_falls_with_the_staleness() -> None:
    first, second = alone(PushPolicy(staleness_rates=True), workers=2)
    first.pull("t", [1])
    for _ in range(4):
        second.pull("t", [1])
        second.push({"t": ([1], [[0.0, 0.0]])})
    first.push({"t": ([1], [[1.0, 1.0]])})
    assert second.pull("t", [1])[0, 0] == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"u": ([1], [[1.0, 1.0]])}, "There is no table 'u'"),
        ({"t": ([1.5], [[1.0, 1.0]])}, "ids must be integers"),
        ({"t": ([1, 2], [[1.0, 1.0]])}, "need values of shape"),
        ({"t": ([1], [[1.0, float("nan")]])}, "not all finite"),
    ],
)
def test_values_that_cannot_be_used_are_refused(given: dict[str, Any], text: str) -> None:
    (tables,) = alone()
    with pytest.raises(BadInput, match=text):
        tables.push(given)


@pytest.mark.parametrize(
    ("tables", "policy", "text"),
    [
        ([TABLE, TABLE], PushPolicy(), "different names"),
        ([Table("a b", 2)], PushPolicy(), "letters, digits"),
        ([Table("t", 0)], PushPolicy(), "dim must be 1"),
        ([Table("t", 1, SGD(1.0), -1.0)], PushPolicy(), "scale must be 0"),
        ([TABLE], PushPolicy(-1), "grads_to_wait must be 1"),
        ([TABLE], PushPolicy(0, 1), "grads_to_wait must be 1"),
        ([TABLE], PushPolicy(1, -1), "staleness_max must be 0"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tables: list[Table], policy: PushPolicy, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        TableAccess("w", tables, policy, LocalRows([], policy))


def test_the_settings_of_tables_are_terms_of_the_job() -> None:
    assert table_terms([], PushPolicy()) == ()
    assert table_terms([TABLE], PushPolicy()) != table_terms([TABLE], PushPolicy(2))


def test_a_server_without_tables_does_not_change_the_policy_of_others() -> None:
    copies = TableCopy()
    copies.define([TABLE], PushPolicy(2))
    copies.define([], PushPolicy())
    assert copies.policy == PushPolicy(2)
