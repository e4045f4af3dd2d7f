"""The bucket of each id, and the initial values of its row. Both follow from the table and the id alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.ps.tables.spec import Table

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Buckets = npt.NDArray[np.int64]

BUCKET_BITS = 10  # the lowest bits of a hash choose the bucket


def mix(values: Hashes) -> Hashes:
    """Return a well distributed hash of each number (the finalizer of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hashes_of(table: Table, ids: Ids) -> Hashes:
    """Return the hash of each id of a table."""
    return mix(ids.view(np.uint64) ^ np.uint64(table.salt))


def buckets_of(table: Table, ids: Ids) -> Buckets:
    """Return the bucket of each id of a table."""
    return bucket_of(hashes_of(table, ids))


def bucket_of(hashes: Hashes) -> Buckets:
    """Return the bucket of each hash."""
    return (hashes & np.uint64(BUCKETS - 1)).astype(np.int64)


def initial_values(table: Table, ids: Ids) -> Floats:
    """Return the values of rows before their first push. They follow from the seed, the table and the id alone."""
    keys = mix(hashes_of(table, ids) ^ mix(np.asarray([table.seed], np.int64).view(np.uint64)))
    columns = mix(np.arange(table.dim, dtype=np.uint64))
    numbers = mix(keys[:, None] ^ columns[None, :]) >> np.uint64(40)  # 24 bits, as many as float32 has
    return ((numbers.astype(np.float32) / np.float32(1 << 23)) - np.float32(1)) * np.float32(table.scale)
