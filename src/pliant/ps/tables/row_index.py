"""The row numbers of the ids of one table, found through open addressing, whole batches at a time.

Each bucket has a region of slots of its own. So its rows are listed and forgotten without a look at those of others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.ps.tables.growing_array import GrowingArray
from pliant.ps.tables.hashing import BUCKET_BITS, Buckets, Hashes, Ids, bucket_of, hashes_of
from pliant.ps.tables.spec import Table

Rows = npt.NDArray[np.intp]

FREE = -1
NO_ROWS: Rows = np.empty(0, np.intp)


class RowIndex:
    """Rows have numbers from 0 on. Numbers of rows that were removed are used again."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.counts: Rows = np.zeros(BUCKETS, np.intp)  # rows of each bucket
        self.end = 0  # above all numbers in use
        self._ids = GrowingArray(np.int64)  # by row
        self._free = NO_ROWS  # numbers below `end` that are not in use
        self._slots = GrowingArray(np.intp)
        self._slots.values[0] = FREE  # the region of all buckets without rows
        self._slots_end = 1
        self._first: Rows = np.zeros(BUCKETS, np.intp)  # slot of each bucket's region
        self._mask: Rows = np.zeros(BUCKETS, np.intp)  # its size, less 1
        self._spare: dict[int, list[int]] = {}  # by size: regions that no bucket has

    @property
    def count(self) -> int:
        return self.end - len(self._free)

    def ids_of(self, rows: Rows) -> Ids:
        """Return the ids of rows."""
        found: Ids = self._ids.values[rows]
        return found

    def find(self, ids: Ids) -> Rows:
        """Return the row of each id; -1 for an id without a row."""
        slots = self._find_slots(ids)
        return np.where(slots >= 0, self._slots.values[slots], FREE)

    def add(self, ids: Ids) -> Rows:
        """Give rows to ids that have none, and return them. The ids must differ."""
        reused = self._free[len(self._free) - min(len(ids), len(self._free)) :]
        self._free = self._free[: len(self._free) - len(reused)]
        begun = np.arange(self.end, self.end + len(ids) - len(reused))
        rows = np.concatenate([reused, begun])
        self.end += len(begun)
        self._ids.reserve(self.end)
        self._ids.values[rows] = ids
        hashes = hashes_of(self._table, ids)
        self.counts += np.bincount(bucket_of(hashes), minlength=BUCKETS)
        full = np.flatnonzero(2 * self.counts > self._mask + 1)
        if len(full):
            moved = self.rows_of(full)
            self._enlarge(full)
            hashes = np.concatenate([hashes_of(self._table, self.ids_of(moved)), hashes])
            self._link(np.concatenate([moved, rows]), hashes)
        else:
            self._link(rows, hashes)
        return rows

    def rows_of(self, buckets: Buckets) -> Rows:
        """Return the rows of buckets."""
        used = buckets[self._mask[buckets] > 0]
        if not len(used):
            return NO_ROWS
        slots = self._slots.values
        first, size = self._first[used].tolist(), (self._mask[used] + 1).tolist()
        found = np.concatenate([slots[at : at + length] for at, length in zip(first, size, strict=True)])
        return found[found >= 0]

    def remove(self, buckets: Buckets) -> None:
        """Remove the rows of buckets."""
        rows = self.rows_of(buckets)
        if not len(rows):
            return
        self._free = np.concatenate([self._free, rows])
        self._release(buckets)
        self.counts[buckets] = 0

    def compact(self, limit: int) -> tuple[Rows, Rows] | None:
        """Move up to `limit` rows from the end to free numbers; return the old and the new ones.

        None: at least half of the numbers are in use.
        """
        if 2 * len(self._free) <= self.end:
            return None
        cut = self.end - min(limit, (self.end + 1) // 2)
        above = self._free >= cut
        used = np.ones(self.end - cut, np.bool_)
        used[self._free[above] - cut] = False
        old = cut + np.flatnonzero(used)
        below = self._free[~above]
        new, self._free = below[len(below) - len(old) :], below[: len(below) - len(old)]
        ids = self.ids_of(old)
        self._slots.values[self._find_slots(ids)] = new
        self._ids.values[new] = ids
        self.end = cut
        self._ids.shrink(max(2 * cut, 1))
        return old, new

    # ---------------------------------------------------------------------------------------------- slots

    def _find_slots(self, ids: Ids) -> Rows:
        """Return the slot of each id; -1 for an id without a row."""
        found = np.full(len(ids), FREE, np.intp)
        slots, known_ids = self._slots.values, self._ids.values
        first, offset, mask = self._places(hashes_of(self._table, ids))
        left = np.arange(len(ids))
        while len(left):
            at = first + offset
            rows = slots[at]
            known = rows >= 0
            equal = known & (known_ids[rows] == ids[left])
            found[left[equal]] = at[equal]
            going = known & ~equal
            left, first, mask = left[going], first[going], mask[going]
            offset = (offset[going] + 1) & mask
        return found

    def _places(self, hashes: Hashes) -> tuple[Rows, Rows, Rows]:
        """Return the region of each hash, the offset in it where a search begins, and the mask of offsets."""
        buckets = bucket_of(hashes)
        mask = self._mask[buckets]
        return self._first[buckets], (hashes >> np.uint64(BUCKET_BITS)).astype(np.intp) & mask, mask

    def _link(self, rows: Rows, hashes: Hashes) -> None:
        """Enter rows into the slots. Of rows that want one slot, one gets it, the others go on."""
        slots = self._slots.values
        first, offset, mask = self._places(hashes)
        while len(rows):
            at = first + offset
            free = slots[at] < 0
            slots[at[free]] = rows[free]
            going = slots[at] != rows
            rows, first, mask = rows[going], first[going], mask[going]
            offset = (offset[going] + 1) & mask

    def _enlarge(self, buckets: Buckets) -> None:
        """Give buckets empty regions with room for twice their rows."""
        self._release(buckets)
        sizes = [1 << (4 * count - 1).bit_length() for count in self.counts[buckets].tolist()]
        begun = []
        for size in sizes:
            if spare := self._spare.get(size):
                begun.append(spare.pop())
            else:
                begun.append(self._slots_end)
                self._slots_end += size
        self._slots.reserve(self._slots_end)
        slots = self._slots.values
        for at, size in zip(begun, sizes, strict=True):
            slots[at : at + size] = FREE
        self._first[buckets] = begun
        self._mask[buckets] = np.asarray(sizes) - 1

    def _release(self, buckets: Buckets) -> None:
        for at, mask in zip(self._first[buckets].tolist(), self._mask[buckets].tolist(), strict=True):
            if mask:
                self._spare.setdefault(mask + 1, []).append(at)
        self._first[buckets] = self._mask[buckets] = 0
