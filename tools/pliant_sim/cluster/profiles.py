"""Speeds by size, from Pollux's published measurements of six models (docs/internals/scheduling.md names the files).

A job's global batch is fixed. With n workers on k machines, each computes ceil(batch / n) samples of a step, in several
passes if its memory is too small. The time of a step is the measured time of one pass, with the gradient exchange, and
the measured compute time of each further pass. Between two measured shapes it is interpolated.
"""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from math import ceil
from pathlib import Path

PER_NODE = 4  # GPUs of a machine in these measurements
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
LOCAL_MAX = {"yolov3": 8}  # samples that fit into the memory of a GPU, where the files have more
SIZE_MAX = {"ncf": 1}  # the authors never give it a second GPU

Shape = tuple[int, int]  # machines, workers
Times = tuple[float, float]  # of a step, and of its gradient exchange alone


class Profile:
    """One model: the steps it trains for and the time of each, by batch and shape."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self._table: dict[Shape, list[tuple[int, Times]]] = {}
        rows: dict[Shape, dict[int, list[Times]]] = defaultdict(lambda: defaultdict(list))
        for row in _rows(folder / "placements.csv"):
            nodes = [int(digit) for digit in row["placement"]]
            rows[len(nodes), sum(nodes)][int(row["local_bsz"])].append(_times(row))
        for row in _rows(folder / "scalability.csv"):
            rows[int(row["num_nodes"]), int(row["num_replicas"])][int(row["local_bsz"])].append(_times(row))
        for shape, by_local in rows.items():
            self._table[shape] = [(local, _mean(times)) for local, times in sorted(by_local.items())]
        self._by_nodes: dict[int, list[int]] = defaultdict(list)
        for machines, workers in sorted(self._table):
            self._by_nodes[machines].append(workers)
        self._local_min = min(points[0][0] for points in self._table.values())
        self._local_max = LOCAL_MAX.get(self.name) or max(points[-1][0] for points in self._table.values())
        self._steps: dict[int, int] = {}
        for path in folder.glob("validation-*.csv"):
            epochs = list(_rows(path))
            self._steps[int(path.stem.split("-")[1])] = int(epochs[EPOCHS[self.name] - 1]["iteration"])
        self.steps_a_second = cache(self._steps_a_second)

    def steps(self, batch: int) -> int:
        """Return the number of steps until the end, as measured with this batch."""
        return self._steps[batch]

    def size_max(self, batch: int) -> int:
        """Return the largest useful number of workers: each has the smallest measured number of samples."""
        return SIZE_MAX.get(self.name) or min(64, max(1, batch // self._local_min))

    def _steps_a_second(self, batch: int, machines: int, workers: int) -> float:
        local = ceil(batch / workers)
        passes = ceil(local / self._local_max)
        step, exchange = self._at(machines, workers, ceil(local / passes))
        return 1 / (step + (passes - 1) * (step - exchange))

    def _at(self, machines: int, workers: int, local: int) -> Times:
        if (machines, workers) in self._table:
            return _between_points(self._table[machines, workers], local)
        known = sorted(self._by_nodes)
        if machines in self._by_nodes:
            return self._between_workers(machines, workers, local)
        at = bisect_left(known, machines)
        below, above = known[at - 1], known[min(at, len(known) - 1)]
        a, b = self._between_workers(below, workers, local), self._between_workers(above, workers, local)
        return _blend(a, b, (machines - below) / (above - below)) if above > below else a

    def _between_workers(self, machines: int, workers: int, local: int) -> Times:
        known = self._by_nodes[machines]
        at = bisect_left(known, workers)
        below, above = known[max(0, at - 1)], known[min(at, len(known) - 1)]
        a = _between_points(self._table[machines, below], local)
        b = _between_points(self._table[machines, above], local)
        return _blend(a, b, (workers - below) / (above - below)) if above > below else a


def read_profiles(folder: Path) -> Mapping[str, Profile]:
    """Read the profile of every model below `folder`."""
    return {name: Profile(folder / name) for name in EPOCHS}


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _times(row: dict[str, str]) -> Times:
    return float(row["step_time"]), float(row["sync_time"])


def _mean(times: list[Times]) -> Times:
    return sum(step for step, _ in times) / len(times), sum(sync for _, sync in times) / len(times)


def _blend(a: Times, b: Times, part: float) -> Times:
    part = min(1.0, max(0.0, part))
    return a[0] + (b[0] - a[0]) * part, a[1] + (b[1] - a[1]) * part


def _between_points(points: list[tuple[int, Times]], local: int) -> Times:
    at = bisect_left(points, (local, (0.0, 0.0)))
    if at == len(points):  # beyond the measured numbers of samples: compute time grows with them
        last, (step, exchange) = points[-1]
        return exchange + (step - exchange) * local / last, exchange
    right, fast = points[at]
    if at == 0 or right == local:
        return fast
    left, slow = points[at - 1]
    return _blend(slow, fast, (local - left) / (right - left))
