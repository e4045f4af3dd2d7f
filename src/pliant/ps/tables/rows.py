"""Rows of one table in numpy arrays, found by id through open addressing, whole batches at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.ps.tables.spec import Table

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.intp]
Floats = npt.NDArray[np.float32]
Hashes = npt.NDArray[np.uint64]
Buckets = npt.NDArray[np.int64]

FIRST_SLOTS = 1024
_BUCKET_MASK = np.uint64(BUCKETS - 1)
_SHIFT = np.uint64(10)  # the lowest bits choose the bucket, the others the slot


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
    return (hashes_of(table, ids) & _BUCKET_MASK).astype(np.int64)


def initial_values(table: Table, ids: Ids) -> Floats:
    """Return the values of rows before their first push. They follow from the seed, the table and the id alone."""
    keys = mix(hashes_of(table, ids) ^ mix(np.asarray([table.seed], np.int64).view(np.uint64)))
    columns = mix(np.arange(table.dim, dtype=np.uint64))
    numbers = mix(keys[:, None] ^ columns[None, :]) >> np.uint64(40)  # 24 bits, as many as float32 has
    return ((numbers.astype(np.float32) / np.float32(1 << 23)) - np.float32(1)) * np.float32(table.scale)


class RowTable:
    """The rows of one table that one copy has. A row has its values first, then its slots."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.count = 0
        self._ids: Ids = np.empty(0, np.int64)
        self._data: Floats = np.empty((0, table.width), np.float32)
        self._slots: Rows = np.full(FIRST_SLOTS, -1, np.intp)

    @property
    def ids(self) -> Ids:
        return self._ids[: self.count]

    @property
    def data(self) -> Floats:
        return self._data[: self.count]

    def find(self, ids: Ids) -> Rows:
        """Return the row of each id; -1 for an id without a row."""
        found = np.full(len(ids), -1, np.intp)
        mask = len(self._slots) - 1
        at = self._first_slots(ids)
        left = np.arange(len(ids))
        while len(left):
            rows = self._slots[at]
            known = rows >= 0
            equal = known & (self._ids[rows] == ids[left]) if self.count else known
            found[left[equal]] = rows[equal]
            going = known & ~equal
            left, at = left[going], (at[going] + 1) & mask
        return found

    def pull(self, ids: Ids) -> Floats:
        """Return the values of rows, also of those that do not exist yet."""
        rows = self.find(ids)
        if (rows >= 0).all() and len(rows):
            return np.ascontiguousarray(self._data[rows, : self.table.dim])
        values = initial_values(self.table, ids)
        known = rows >= 0
        values[known] = self._data[rows[known], : self.table.dim]
        return values

    def create_missing(self, ids: Ids, values: Floats | None = None) -> Rows:
        """Return the row of each id, and create those that do not exist, with these values or the initial ones."""
        rows = self.find(ids)
        missing = rows < 0
        if missing.any():
            block = np.zeros((int(missing.sum()), self.table.width), np.float32)
            new = ids[missing]
            block[:, : self.table.dim] = initial_values(self.table, new) if values is None else values[missing]
            rows[missing] = self.count + np.arange(len(new))
            self.insert(new, block)
        return rows

    def update(self, ids: Ids, gradients: Floats, scale: Floats) -> None:
        """Apply gradients to rows. The ids must differ."""
        rows = self.create_missing(ids)
        block = self._data[rows]
        self.table.optimizer.update(block, self.table.dim, gradients, scale)
        self._data[rows] = block

    def insert(self, ids: Ids, block: Floats) -> None:
        """Add rows that do not exist, with their slots. The ids must differ."""
        start, self.count = self.count, self.count + len(ids)
        if self.count > len(self._ids):
            room = max(2 * len(self._ids), self.count, FIRST_SLOTS)
            self._ids = np.concatenate([self._ids[:start], np.empty(room - start, np.int64)])
            grown = np.empty((room, self.table.width), np.float32)
            grown[:start] = self._data[:start]
            self._data = grown
        self._ids[start : self.count] = ids
        self._data[start : self.count] = block
        if 2 * self.count > len(self._slots):
            size = len(self._slots)
            while size < 4 * self.count:
                size *= 2
            self._slots = np.full(size, -1, np.intp)
            self._link(0)
        else:
            self._link(start)

    def rows_of(self, wanted: npt.NDArray[np.bool_]) -> Rows:
        """Return the rows in the buckets that the mask selects."""
        return np.flatnonzero(wanted[buckets_of(self.table, self.ids)])

    def remove(self, rows: Rows) -> None:
        """Remove rows. Those after them move up."""
        if not len(rows):
            return
        kept = np.ones(self.count, np.bool_)
        kept[rows] = False
        ids, data = self.ids[kept], self.data[kept]
        self.__init__(self.table)  # type: ignore[misc]  # empty again
        self.insert(ids, data)

    def _first_slots(self, ids: Ids) -> Rows:
        return ((hashes_of(self.table, ids) >> _SHIFT) & np.uint64(len(self._slots) - 1)).astype(np.intp)

    def _link(self, start: int) -> None:
        """Enter the rows from `start` on into the slots. Of rows that want one slot, one gets it, the others go on."""
        mask = len(self._slots) - 1
        rows = np.arange(start, self.count, dtype=np.intp)
        at = self._first_slots(self._ids[start : self.count])
        while len(rows):
            free = self._slots[at] < 0
            self._slots[at[free]] = rows[free]
            going = self._slots[at] != rows
            rows, at = rows[going], (at[going] + 1) & mask
