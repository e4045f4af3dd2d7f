"""Copies that lack the last updates become equal by these updates, and all others are copied."""

import numpy as np
import pytest

from pliant.core.ps.model import BUCKETS
from pliant.ps import SGD, PushPolicy, Table
from pliant.ps.copies import split_by_digests
from pliant.ps.tables import recent
from pliant.ps.tables.hashing import buckets_of
from pliant.ps.tables.table_copy import Part, TableCopy, Update

TABLE = Table("t", 2, SGD(1.0), scale=0.0)
EVERY = np.arange(BUCKETS)


def copy() -> TableCopy:
    found = TableCopy()
    found.define([TABLE], PushPolicy())
    found.hold(EVERY)
    return found


def update(sequence: int, worker: str = "w", ids: int = 5000, creates: bool = False) -> Update:
    rng = np.random.default_rng(sequence)
    chosen = np.unique(rng.integers(0, 20_000, ids))
    buckets = np.unique(buckets_of(TABLE, chosen))
    values = rng.standard_normal((len(chosen), 2)).astype(np.float32)
    return Update(worker, sequence, buckets, np.full(len(buckets), -1), (Part("t", chosen, values),), creates)


def pair(count: int) -> tuple[TableCopy, TableCopy]:
    one, other = copy(), copy()
    for sequence in range(1, count + 1):
        one.apply(update(sequence))
        other.apply(update(sequence))
    return one, other


def catch_up(one: TableCopy, other: TableCopy) -> tuple[int, int, int]:
    """Send what the other copy lacks, and return the numbers of buckets that were equal, behind, and neither."""
    split = split_by_digests(one, EVERY, other.digests(EVERY), other.trails)
    for each, mask in split.updates:
        other.apply(each.within(one.table, mask))
    behind = split.behind
    assert (one.digests(behind) == other.digests(behind)).all()
    assert (one.trails[behind] == other.trails[behind]).all()
    for (ids, block), (theirs, rows) in ((one.rows("t").extract(behind), other.rows("t").extract(behind)),):
        np.testing.assert_array_equal(block[np.argsort(ids)], rows[np.argsort(theirs)])
    return len(split.equal), len(behind), len(split.other)


def test_a_copy_that_lacks_the_last_updates_receives_them_alone() -> None:
    one, other = pair(4)
    assert catch_up(one, other) == (BUCKETS, 0, 0)
    for sequence, worker in ((5, "w"), (1, "v"), (2, "v")):
        one.apply(update(sequence, worker, ids=300))
    other.apply(update(5, ids=300))
    equal, behind, neither = catch_up(one, other)
    assert (equal > 300, behind > 300, neither) == (True, True, 0)
    assert catch_up(one, other) == (BUCKETS, 0, 0)


def test_rows_that_were_created_are_part_of_the_trail() -> None:
    one, other = pair(2)
    one.apply(update(3, creates=True))
    one.apply(update(4, ids=20_000))
    other.apply(update(4, ids=20_000))  # without those that were created
    equal, behind, neither = catch_up(one, other)
    assert behind == 0
    assert neither + equal == BUCKETS


def test_a_copy_that_is_ahead_or_far_behind_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "UPDATES_MAX", 3)
    one, other = pair(2)
    other.apply(update(3, ids=9000))
    assert catch_up(one, other)[1] == 0
    one, other = pair(2)
    for sequence in range(3, 7):
        one.apply(update(sequence, ids=20_000))
    assert catch_up(one, other)[1] == 0
    monkeypatch.setattr(recent, "BYTES_MAX", 1)
    one, other = pair(1)
    one.apply(update(2))
    assert catch_up(one, other)[1] == 0


def test_updates_before_a_bucket_came_do_not_count() -> None:
    one, other = pair(2)
    late, before = copy(), other.extract(EVERY)
    late.install(before)
    late.apply(update(3))
    one.apply(update(3))
    one.install(late.extract(EVERY))
    assert catch_up(one, other)[1] == 0
    assert catch_up(late, other)[1] > 1000, "these came since its buckets did"
    late.drop(EVERY)
    late.hold(EVERY)
    assert catch_up(late, other)[1] == 0
