"""The order of data that is read in sequence: shards, each from its beginning to its end.

Several members read at the same time. If a step took the next samples of one sequence, every member would have to read
and drop the samples of the others. So the samples of an epoch form a row, shard after shard, and the row is cut into
*lanes*. A lane is a stretch of the row that one run of slots reads from its beginning to its end, a few samples in each
step. A lane moves to another member with its slots, and the new reader opens it at its position. Each sample is in one
lane at one place, so an epoch still holds every sample once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pliant.core.data.grid import Grid
from pliant.core.data.sample_order import Order
from pliant.train.data.order import Samples, take

LANES = 16
"""The most lanes of an epoch. Each lane is an open iterator in the member that owns its slots."""


def lane_positions(grid: Grid) -> Samples:
    """Return the place in the row for each position of an epoch: a permutation of `range(grid.samples)`."""
    lanes = min(grid.slots, LANES)
    edges = np.asarray([lane * grid.slots // lanes * grid.batch // grid.slots for lane in range(lanes + 1)])
    widths = np.diff(edges)
    full, rest = divmod(grid.samples, grid.batch)
    lengths = full * widths + np.diff(np.minimum(edges, rest))
    begins = np.cumsum(lengths) - lengths
    lane_of = np.repeat(np.arange(lanes), widths)
    within = np.arange(grid.batch) - edges[lane_of]
    steps = np.arange(-(-grid.samples // grid.batch))[:, None]
    row: Samples = (begins[lane_of] + within + steps * widths[lane_of]).reshape(-1)[: grid.samples].astype(np.int64)
    return row


class ShardOrder:
    """The samples of each epoch, for shards of these sizes. Samples are numbered through all shards.

    The shards of a pass over the data are shuffled by the seed, or stay in their own order. An epoch of another length
    than the data takes the next samples of a row of such passes.
    """

    def __init__(self, grid: Grid, sizes: Sequence[int], *, seed: int, shuffled: bool) -> None:
        self._sizes = np.asarray(sizes, dtype=np.int64)
        self._begins = np.cumsum(self._sizes) - self._sizes
        self._data = int(self._sizes.sum())
        self._samples = grid.samples
        self._lanes = lane_positions(grid)
        self._order = Order(seed, len(sizes)) if shuffled else None

    def __call__(self, epoch: int) -> Samples:
        first, start = divmod(epoch * self._samples, self._data)
        last = (epoch * self._samples + self._samples - 1) // self._data
        row = np.concatenate([self._row(number) for number in range(first, last + 1)])
        samples: Samples = row[start : start + self._samples][self._lanes]
        return samples

    def _row(self, number: int) -> Samples:
        """Return the samples of a pass over the data, shard after shard."""
        count = len(self._sizes)
        shards = np.arange(count) if self._order is None else take(self._order, number, range(count))
        return np.concatenate([np.arange(self._begins[at], self._begins[at] + self._sizes[at]) for at in shards])
