"""The pushes that workers wrote down, beside those that the servers saved."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pliant.core.ps.model import BUCKETS
from pliant.ps.saving import SavedTables, newest_set

TABLE = "counts"  # its rows are the records
BEGUN, ACKNOWLEDGED, REFUSED = "begun", "acknowledged", "refused"

Counts = npt.NDArray[np.int64]


class PushLog:
    """The pushes of one worker, in a file that outlives it."""

    def __init__(self, folder: Path, member: str) -> None:
        self._path = folder / f"{member}.pushes"

    def begun(self, records: range) -> None:
        self._write(BEGUN, records)

    def answered(self, records: range, *, applied: bool) -> None:
        self._write(ACKNOWLEDGED if applied else REFUSED, records)

    def _write(self, word: str, records: range) -> None:
        with self._path.open("a") as file:
            file.write(f"{word} {records.start} {records.stop}\n")


class Pushes:
    """The number of pushes of each record that all workers of a job began, and that were acknowledged."""

    def __init__(self, folder: Path, records: int) -> None:
        self.batches: Counter[str] = Counter()
        self.begun: Counts = np.zeros(records, np.int64)
        self.acknowledged: Counts = np.zeros(records, np.int64)
        for path in folder.glob("*.pushes"):
            for line in path.read_text().splitlines():
                word, start, stop = line.split()
                self.batches[word] += 1
                if word in (BEGUN, ACKNOWLEDGED):
                    counts = self.begun if word == BEGUN else self.acknowledged
                    counts[int(start) : int(stop)] += 1


def saved_counts(checkpoints: Path, records: int, grads_to_wait: int) -> Counts:
    """Return how often the gradients of each record were applied, by the newest saved tables.

    A row's slot has the sum of its gradients, of 1 each, whatever the learning rate was. A mean of several pushes has
    its share of 1. Gradients that wait for more pushes count as well.
    """
    saved = SavedTables(str(checkpoints), newest_set(str(checkpoints)))
    copy = saved._copy.extract(np.arange(BUCKETS))
    counts = np.zeros(records, np.float64)
    ids, rows = copy["rows"][TABLE]
    counts[ids] = rows[:, 1] * grads_to_wait
    ids, sums = copy["sums"].get(TABLE, (ids[:0], rows[:0]))
    counts[ids] += sums[:, 0]
    return counts.round().astype(np.int64)
