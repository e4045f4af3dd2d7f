"""A linear model over rows of a table, computed with numpy: what every framework's tables must give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pliant.ps import SGD, PushPolicy, Table
from pliant.ps.access import LocalRows, TableAccess
from pliant.ps.tables.hashing import initial_values

RATE, STEPS, DIM = 0.1, 6, 3
TABLES = [Table("ads", DIM, SGD(RATE), scale=0.5), Table("deep", 4, SGD(RATE), scale=0.0)]
IDS = np.asarray([[1, 2], [2, 2], [900, 5], [5, 1]])
LABELS = np.asarray([[1.0], [0.0], [-1.0], [2.0]], np.float32)
KERNEL = np.linspace(-1.0, 1.0, 2 * DIM, dtype=np.float32).reshape(-1, 1)
BIAS = np.zeros(1, np.float32)


class StaleOnce:
    """The tables of one process, which take every third push for too old."""

    def __init__(self) -> None:
        self._rows = TableAccess("w", TABLES, PushPolicy(), LocalRows(TABLES, PushPolicy()))
        self.pushes = 0

    def pull(self, table: str, ids: npt.ArrayLike) -> Any:
        return self._rows.pull(table, ids)

    def push(self, gradients: Mapping[str, tuple[npt.ArrayLike, npt.ArrayLike]]) -> bool:
        self.pushes += 1
        return self.pushes % 3 != 0 and self._rows.push(gradients)

    def create(self, table: str, ids: npt.ArrayLike, values: npt.ArrayLike) -> None:
        self._rows.create(table, ids, values)


def expected() -> tuple[list[float], npt.NDArray[np.float32]]:
    """Return the losses of all steps, and the rows of the ids 0 to 5 after them."""
    unique = np.unique(IDS)
    rows = dict(zip(unique.tolist(), initial_values(TABLES[0], unique.astype(np.int64)), strict=True))
    kernel: Any = KERNEL.copy()
    bias: Any = BIAS.copy()
    losses = []
    for _ in range(STEPS):
        features = np.stack([np.concatenate([rows[number] for number in record]) for record in IDS.tolist()])
        error = features @ kernel + bias - LABELS
        losses.append(float((error**2).mean()))
        slope = 2 * error / len(LABELS)
        backward = (slope @ kernel.T).reshape(len(IDS), 2, DIM)
        kernel, bias = kernel - RATE * features.T @ slope, bias - RATE * slope.sum(0)
        for record, gradient in zip(IDS.tolist(), backward, strict=True):
            for number, each in zip(record, gradient, strict=True):
                rows[number] = rows[number] - RATE * each
    return losses, np.stack([rows[number] for number in unique.tolist()])


def require_equal(losses: list[float], run: StaleOnce) -> None:
    wanted, rows = expected()
    np.testing.assert_allclose(losses, wanted, rtol=1e-4)
    np.testing.assert_allclose(run.pull("ads", np.unique(IDS)), rows, rtol=1e-4, atol=1e-6)
    assert run.pushes > STEPS, "some pushes were too old"
