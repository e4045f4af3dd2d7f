"""Rows of one table: their values and their optimizer's slots, found by id."""

from __future__ import annotations

import numpy as np

from pliant.ps.tables.growing_array import GrowingArray
from pliant.ps.tables.hashing import Buckets, Floats, Ids, initial_values
from pliant.ps.tables.row_index import RowIndex, Rows
from pliant.ps.tables.spec import Table


class RowTable:
    """The rows of one table that one server has. A row has its values first, then its slots."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._index = RowIndex(table)
        self._data = GrowingArray(np.float32, table.width)

    @property
    def count(self) -> int:
        return self._index.count

    def sizes(self) -> Rows:
        """Return the number of rows of each bucket."""
        return self._index.counts

    def pull(self, ids: Ids) -> Floats:
        """Return the values of rows, also of those that do not exist yet."""
        rows = self._index.find(ids)
        if (rows >= 0).all() and len(rows):
            return np.ascontiguousarray(self._data.values[rows, : self.table.dim])
        values = initial_values(self.table, ids)
        known = rows >= 0
        values[known] = self._data.values[rows[known], : self.table.dim]
        return values

    def update(self, ids: Ids, gradients: Floats, scale: Floats) -> None:
        """Apply gradients to rows. The ids must differ."""
        rows = self._find_or_create(ids, None)
        block = self._data.values[rows]
        self.table.optimizer.update(block, self.table.dim, gradients, scale)
        self._data.values[rows] = block

    def add(self, ids: Ids, values: Floats) -> None:
        """Add values to rows; those that do not exist begin with 0."""
        rows = self._find_or_create(ids, np.zeros_like(values))
        self._data.values[rows, : self.table.dim] += values

    def create_missing(self, ids: Ids, values: Floats) -> None:
        """Create the rows that do not exist, with these values."""
        self._find_or_create(ids, values)

    def insert(self, ids: Ids, block: Floats) -> Rows:
        """Add rows that do not exist, with their slots, and return their numbers. The ids must differ."""
        rows = self._index.add(ids)
        self._data.reserve(self._index.end)
        self._data.values[rows] = block
        return rows

    def extract(self, buckets: Buckets) -> tuple[Ids, Floats]:
        """Return copies of the ids of buckets, and of their rows with their slots."""
        rows = self._index.rows_of(buckets)
        return self._index.ids_of(rows), self._data.values[rows]

    def remove(self, buckets: Buckets) -> None:
        """Remove the rows of buckets. `compact` gives their memory back."""
        self._index.remove(buckets)

    def compact(self, limit: int) -> bool:
        """Move up to `limit` rows together and give memory back; False if most of it is in use."""
        moved = self._index.compact(limit)
        if moved is None:
            return False
        old, new = moved
        self._data.values[new] = self._data.values[old]
        self._data.shrink(max(2 * self._index.end, 1))
        return True

    def _find_or_create(self, ids: Ids, values: Floats | None) -> Rows:
        """Return the row of each id, and create those that do not exist, with these values or the initial ones."""
        rows = self._index.find(ids)
        missing = rows < 0
        if missing.any():
            new = ids[missing]
            block = np.zeros((len(new), self.table.width), np.float32)
            block[:, : self.table.dim] = initial_values(self.table, new) if values is None else values[missing]
            rows[missing] = self.insert(new, block)
        return rows
