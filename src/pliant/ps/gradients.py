"""Gradients of tables as the frameworks' adapters collect them, and dense variables in the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class RowRun(Protocol):
    """A run with tables: of a task queue, or live."""

    def pull(self, table: str, ids: npt.ArrayLike) -> Floats: ...

    def push(self, gradients: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> bool: ...


class TableRun(RowRun, Protocol):
    """The run of a task queue, which can keep dense variables in tables too."""

    def create(self, table: str, ids: npt.ArrayLike, values: npt.ArrayLike) -> None: ...


class TableGradients:
    """Gradients of rows, by table, until they are pushed together."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[Ids, Floats]]] = {}

    def add(self, table: str, ids: Ids, values: Floats) -> None:
        """Add gradients in the shape of the ids and one more dimension."""
        rows = np.asarray(values, np.float32).reshape(-1, values.shape[-1])
        self._found.setdefault(table, []).append((np.asarray(ids).reshape(-1), rows))

    def push(self, run: RowRun) -> bool:
        """Push all gradients at once. False: they were too old; compute the batch again."""
        joined: dict[str, tuple[npt.ArrayLike, npt.ArrayLike]] = {
            table: (np.concatenate([ids for ids, _ in parts]), np.concatenate([rows for _, rows in parts]))
            for table, parts in self._found.items()
        }
        return run.push(joined)


class DenseRows:
    """Arrays of fixed shapes in rows of `dim` numbers, with the ids 0, 1 and so on."""

    def __init__(self, table: str, shapes: Sequence[tuple[int, ...]], dim: int) -> None:
        self.table = table
        self._shapes, self._dim = tuple(shapes), dim
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        self.ids: Ids = np.arange(-(-sum(self._sizes) // dim), dtype=np.int64)

    def pack(self, arrays: Sequence[npt.ArrayLike]) -> Floats:
        """Return arrays as rows. The last row is filled up with zeros."""
        flat = np.zeros(len(self.ids) * self._dim, np.float32)
        at = 0
        for array, size in zip(arrays, self._sizes, strict=True):
            flat[at : at + size] = np.asarray(array, np.float32).reshape(-1)
            at += size
        return flat.reshape(-1, self._dim)

    def unpack(self, rows: Floats) -> list[Floats]:
        """Return the arrays of rows."""
        flat, found, at = rows.reshape(-1), [], 0
        for shape, size in zip(self._shapes, self._sizes, strict=True):
            found.append(flat[at : at + size].reshape(shape))
            at += size
        return found
