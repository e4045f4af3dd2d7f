"""Arrays that grow and shrink without a copy of their content."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


class GrowingArray:
    """An array of rows in anonymous memory. The system moves its pages, so a larger array costs no copy.

    New rows have the bytes 0. Use it from one thread at a time, and take `values` anew after each change of the size.
    """

    def __init__(self, dtype: npt.DTypeLike, columns: int | None = None) -> None:
        self._dtype = np.dtype(dtype)
        self._columns = columns
        self._row_bytes = self._dtype.itemsize * (1 if columns is None else columns)
        self._memory = _new_memory(mmap.PAGESIZE)
        self.values: npt.NDArray[Any] = self._view()

    def __len__(self) -> int:
        return len(self.values)

    def reserve(self, rows: int) -> None:
        """Have room for so many rows. Pages that no row uses yet take no memory."""
        if rows > len(self):
            self._resize(max(rows, 2 * len(self)))

    def shrink(self, rows: int) -> None:
        """Forget the rows from this one on, and give their pages back."""
        if rows < len(self):
            self._resize(rows)

    def _resize(self, rows: int) -> None:
        size = _pages(rows * self._row_bytes)
        self.values = np.empty(0, self._dtype)  # memory that an array shows cannot move
        try:
            self._memory.resize(size)
        except BufferError:  # an array of a caller shows it
            before, self._memory = self._memory, _new_memory(size)
            kept = min(size, len(before))
            self._memory[:kept] = memoryview(before)[:kept]
        self.values = self._view()

    def _view(self) -> npt.NDArray[Any]:
        rows = len(self._memory) // self._row_bytes
        flat = np.frombuffer(self._memory, self._dtype, rows * self._row_bytes // self._dtype.itemsize)
        return flat if self._columns is None else flat.reshape(rows, self._columns)


def _pages(size: int) -> int:
    return max(-(-size // mmap.PAGESIZE), 1) * mmap.PAGESIZE


def _new_memory(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
