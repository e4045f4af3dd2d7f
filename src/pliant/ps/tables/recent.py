"""The newest updates of a server, for other copies that lack the last ones.

A bucket's trail is a hash of all updates that it applied, in their order. Two copies with the same trail are equal. A
copy with a trail that this server's bucket once had becomes equal by the updates since then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.ps.tables.hashing import Buckets

if TYPE_CHECKING:
    from pliant.ps.tables.table_copy import Mask, Update

UPDATES_MAX = 512
BYTES_MAX = 16 << 20

Trails = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Entry:
    number: int
    update: Update
    buckets: Buckets  # those that applied it
    before: Trails  # of these buckets
    nbytes: int


class RecentUpdates:
    """The updates that were applied last, up to a number and a size."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self._nbytes = self._count = 0
        self._valid_from: npt.NDArray[np.int64] = np.zeros(BUCKETS, np.int64)  # the first update since a bucket came

    def add(self, update: Update, buckets: Buckets, before: Trails) -> None:
        nbytes = sum(part.ids.nbytes + part.values.nbytes for part in update.parts)
        self._entries.append(_Entry(self._count, update, buckets, before, nbytes))
        self._count, self._nbytes = self._count + 1, self._nbytes + nbytes
        while len(self._entries) > UPDATES_MAX or self._nbytes > BYTES_MAX:
            self._nbytes -= self._entries.popleft().nbytes

    def replaced(self, buckets: Buckets) -> None:
        """Note that buckets do not continue from the updates so far: a copy replaced them, or they were dropped."""
        self._valid_from[buckets] = self._count

    def since(self, buckets: Buckets, trails: Trails) -> tuple[Buckets, Iterator[tuple[Update, Mask]]]:
        """Return the buckets that once had these trails, and the updates since then with the buckets that need them."""
        wanted: Trails = np.zeros(BUCKETS, np.uint64)
        wanted[buckets] = trails
        start = np.full(BUCKETS, self._count, np.int64)
        for entry in self._entries:
            found = (entry.before == wanted[entry.buckets]) & (wanted[entry.buckets] != 0)
            found &= entry.number >= self._valid_from[entry.buckets]
            start[entry.buckets[found]] = entry.number
        return buckets[start[buckets] < self._count], self._after(start)

    def _after(self, start: npt.NDArray[np.int64]) -> Iterator[tuple[Update, Mask]]:
        for entry in self._entries:
            mask: Mask = np.zeros(BUCKETS, np.bool_)
            mask[entry.buckets] = start[entry.buckets] <= entry.number
            if mask.any():
                yield entry.update, mask
