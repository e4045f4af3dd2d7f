"""Rows by id, and their initial values."""

import numpy as np

from pliant.core.ps.model import BUCKETS
from pliant.ps import SGD, Table
from pliant.ps.tables.growing_array import GrowingArray
from pliant.ps.tables.hashing import Floats, buckets_of, initial_values
from pliant.ps.tables.rows import RowTable

TABLE = Table("t", 3, SGD(1.0), scale=0.5)


def test_rows_are_found_created_and_removed_like_those_of_a_dictionary() -> None:
    rows, known = RowTable(TABLE), dict[int, Floats]()
    rng = np.random.default_rng(0)
    for turn in range(40):
        ids = np.unique(rng.integers(-(10**18), 10**18, 200 if turn % 10 else 4000))
        if known:
            ids = np.unique(np.concatenate([ids, rng.choice(list(known), 50)]))
        gradient = rng.standard_normal((len(ids), 3)).astype(np.float32)
        rows.update(ids, gradient, np.ones((len(ids), 1), np.float32))
        for at, id_ in enumerate(ids.tolist()):
            known[id_] = known.get(id_, initial_values(TABLE, ids[at : at + 1])[0]) - gradient[at]
        gone = np.sort(rng.choice(BUCKETS, 700 if turn % 10 == 5 else 20, replace=False))
        for id_ in rows.extract(gone)[0].tolist():
            del known[id_]
        rows.remove(gone)
        while turn % 3 == 0 and rows.compact(100):
            assert rows.count == len(known)
        wanted = np.asarray(sorted(known))
        assert rows.count == len(known) == rows.sizes().sum()
        np.testing.assert_array_equal(rows.pull(wanted), np.stack([known[id_] for id_ in wanted.tolist()]))
    every_id, block = rows.extract(np.arange(BUCKETS))
    assert sorted(every_id.tolist()) == sorted(known)
    np.testing.assert_array_equal(block, rows.pull(every_id))


def test_removed_rows_give_their_memory_back() -> None:
    rows, ids = RowTable(TABLE), np.arange(100_000, dtype=np.int64)
    rows.insert(ids, np.ones((len(ids), 3), np.float32))
    large = len(rows._data)
    rows.remove(np.arange(8, BUCKETS))
    assert len(rows._data) == large, "nothing moves while a layout is entered"
    while rows.compact(1000):
        pass
    assert len(rows._data) < large / 20
    left, block = rows.extract(np.arange(BUCKETS))
    assert (buckets_of(TABLE, left) < 8).all()
    assert (block == 1).all()
    rows.remove(np.arange(8))
    while rows.compact(1000):
        pass
    assert rows.count == 0
    rows.insert(ids, np.ones((len(ids), 3), np.float32))
    assert (rows.pull(ids) == 1).all()


def test_an_array_grows_while_a_caller_shows_a_part_of_it() -> None:
    array = GrowingArray(np.int64)
    array.reserve(1000)
    array.values[:1000] = np.arange(1000)
    shown = array.values[10:20]
    array.reserve(100_000)
    array.values[10] = -1
    assert shown[0] == 10
    assert (array.values[11:1000] == np.arange(11, 1000)).all()
    array.shrink(600)
    assert (array.values[11:600] == np.arange(11, 600)).all()


def test_initial_values_depend_on_the_seed_the_table_and_the_id_alone() -> None:
    ids = np.arange(1000, dtype=np.int64)
    values = initial_values(TABLE, ids)
    assert (initial_values(TABLE, ids[500:]) == values[500:]).all()
    assert abs(values.mean()) < 0.02
    assert 0.48 < np.abs(values).max() <= 0.5
    for other in (Table("u", 3, SGD(1.0), 0.5), Table("t", 3, SGD(1.0), 0.5, seed=1)):
        assert (initial_values(other, ids) != values).mean() > 0.99
    assert (RowTable(TABLE).pull(ids) == values).all(), "a pull creates nothing and returns the same"


def test_buckets_are_evenly_filled() -> None:
    counts = np.bincount(buckets_of(TABLE, np.arange(100_000, dtype=np.int64)), minlength=BUCKETS)
    assert counts.min() > 50
    assert counts.max() < 150
