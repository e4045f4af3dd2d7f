"""Data in shards that are read in sequence, each from any start: every sample has a number.

The source has `shards`, the number of samples of each shard, and `read(shard, start)`, which returns an iterator over
the samples of a shard from position `start` on. `ShardDataset` reads samples by number from open iterators.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from pliant.errors import BadInput
from pliant.train.live.data.tools import ArrayTools

OPEN_MAX = 64
"""The most open iterators of one process. The one that was not used for the longest time is closed."""


def is_sharded(dataset: Any, tools: ArrayTools) -> bool:
    """Return whether the data set can be opened at a shard and a position."""
    by_number = hasattr(dataset, "__getitem__") and not tools.is_iterable(dataset)
    return not by_number and hasattr(dataset, "shards") and callable(getattr(dataset, "read", None))


def shard_sizes(dataset: Any) -> tuple[int, ...]:
    """Return the number of samples of each shard. Raises BadInput if `shards` holds something else."""
    kind, shards = type(dataset).__name__, dataset.shards
    try:
        sizes = tuple(int(size) for size in shards)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{kind}.shards must be a list with the number of samples of each shard, got {shards!r}."
        ) from error
    if any(size < 0 for size in sizes):
        raise BadInput(f"{kind}.shards has a shard of {min(sizes)} samples: a shard has 0 or more.")
    if not sum(sizes):
        raise BadInput(f"dataset has no samples ({kind} has {len(sizes)} shards, all empty). Pass one with samples.")
    return sizes


class ShardDataset:
    """The samples of all shards, by number. Fast where samples are read in sequence.

    An iterator that is at most `reach` samples behind is read on to the sample; otherwise the shard is opened there.
    """

    def __init__(self, source: Any, sizes: Sequence[int], reach: int) -> None:
        self.source = source
        self._sizes = sizes
        self._ends = list(accumulate(sizes))
        self._reach = reach
        self._open: dict[tuple[int, int], Iterator[Any]] = {}  # by shard and next position, least recently used first

    def __len__(self) -> int:
        return self._ends[-1]

    def set_epoch(self, epoch: int) -> None:
        """Forget open iterators, whose samples may depend on the epoch, and pass the epoch on."""
        while self._open:
            _close(self._open.popitem()[1])
        if callable(set_epoch := getattr(self.source, "set_epoch", None)):
            set_epoch(epoch)

    def __getitem__(self, sample: int) -> Any:
        shard = bisect_right(self._ends, sample)
        at = sample - (self._ends[shard] - self._sizes[shard])
        start = self._nearest(shard, at)
        samples = self._open.pop((shard, start)) if start is not None else iter(self.source.read(shard, at))
        for position in range(at if start is None else start, at):
            self._next(samples, shard, position)
        found = self._next(samples, shard, at)
        if at + 1 == self._sizes[shard]:
            self._check_end(samples, shard)
        else:
            self._open[shard, at + 1] = samples
            if len(self._open) > OPEN_MAX:
                _close(self._open.pop(next(iter(self._open))))
        return found

    def _nearest(self, shard: int, at: int) -> int | None:
        """Return the position of the open iterator that reaches this sample first, if one does."""
        if (shard, at) in self._open:
            return at
        behind = [start for other, start in self._open if other == shard and at - self._reach <= start < at]
        return max(behind, default=None)

    def _next(self, samples: Iterator[Any], shard: int, position: int) -> Any:
        for sample in samples:
            return sample
        raise ValueError(
            f"shard {shard} ended after {position} samples, but {type(self.source).__name__}.shards says "
            f"{self._sizes[shard]}"
        )

    def _check_end(self, samples: Iterator[Any], shard: int) -> None:
        for _ in samples:
            raise ValueError(
                f"shard {shard} has more than the {self._sizes[shard]} samples that "
                f"{type(self.source).__name__}.shards says"
            )


def _close(samples: Iterator[Any]) -> None:
    """Close an iterator that will not be read to its end: a generator closes its files."""
    if callable(close := getattr(samples, "close", None)):
        close()
