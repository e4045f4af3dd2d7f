"""Rows by id, and their initial values."""

import numpy as np

from pliant.core.ps.model import BUCKETS
from pliant.ps import SGD, Table
from pliant.ps.tables.rows import Floats, RowTable, buckets_of, initial_values

TABLE = Table("t", 3, SGD(1.0), scale=0.5)


def test_rows_are_found_created_and_removed_like_those_of_a_dictionary() -> None:
    rows, known = RowTable(TABLE), dict[int, Floats]()
    rng = np.random.default_rng(0)
    for _ in range(30):
        ids = np.unique(rng.integers(-(10**18), 10**18, 200))
        if known:
            ids = np.unique(np.concatenate([ids, rng.choice(list(known), 50)]))
        gradient = rng.standard_normal((len(ids), 3)).astype(np.float32)
        rows.update(ids, gradient, np.ones((len(ids), 1), np.float32))
        for at, id_ in enumerate(ids.tolist()):
            known[id_] = known.get(id_, initial_values(TABLE, ids[at : at + 1])[0]) - gradient[at]
        gone = rng.choice(rows.count, 20, replace=False)
        for id_ in rows.ids[gone].tolist():
            del known[id_]
        rows.remove(gone)
    wanted = np.asarray(sorted(known))
    assert rows.count == len(known)
    assert (rows.find(wanted) >= 0).all()
    np.testing.assert_array_equal(rows.pull(wanted), np.stack([known[id_] for id_ in wanted.tolist()]))


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
