"""The data of a job: its samples, their order, and the length of an epoch.

An order that user code draws must be the same on every member and after every restart. So order functions and samplers
draw from generators that are seeded by (seed, epoch), and a sampler's own generator is replaced while it draws.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.train.data.lanes import ShardOrder
from pliant.train.data.loader import (
    FUNCTION,
    SEQUENTIAL,
    SHUFFLED,
    OrderOfEpoch,
    SampleIndices,
    checked_order,
    epoch_seeds,
    order_name,
)
from pliant.train.data.order import Samples
from pliant.train.live.arguments import a
from pliant.train.live.data.loader import LiveLoader
from pliant.train.live.data.reader import check_readable
from pliant.train.live.data.shards import ShardDataset, is_sharded, shard_sizes
from pliant.train.live.data.stream import StreamDataset, beginning, count_items, is_stream
from pliant.train.live.data.tools import ArrayTools


@dataclass(frozen=True, slots=True)
class DataSource:
    """The data of a job: `length` samples, of which each epoch takes `samples` in `order`."""

    dataset: Any
    samples: int
    length: int
    order: str | OrderOfEpoch
    kind: str = FUNCTION

    def indices(self, grid: Grid, seed: int) -> SampleIndices:
        """Return the samples of every step of this grid."""
        return SampleIndices(grid, seed=seed, order=self.order, data=self.length, kind=self.kind)

    def loader(self, indices: SampleIndices, **options: Any) -> LiveLoader:
        """Return the loader of those samples."""
        return LiveLoader(self.dataset, indices, indices.grid, **options)


@dataclass(frozen=True, slots=True)
class ShardSource(DataSource):
    """Data in shards of these sizes, each of which is read in sequence."""

    sizes: tuple[int, ...] = ()

    def indices(self, grid: Grid, seed: int) -> SampleIndices:
        order = ShardOrder(grid, self.sizes, seed=seed, shuffled=self.order == SHUFFLED)
        return SampleIndices(grid, seed=seed, order=order, data=self.length, kind=self.kind)

    def loader(self, indices: SampleIndices, **options: Any) -> LiveLoader:
        dataset = ShardDataset(self.dataset, self.sizes, reach=indices.grid.batch)
        return LiveLoader(dataset, indices, indices.grid, **options)


@dataclass(frozen=True, slots=True)
class StreamSource(DataSource):
    """A stream, whose items are numbered as they come."""

    endless: bool = False
    seed: int = 0

    def loader(self, indices: SampleIndices, **options: Any) -> LiveLoader:
        keep = 2 * indices.grid.batch
        dataset = StreamDataset(
            self.dataset, self.samples, endless=self.endless, seed=self.seed, keep=keep, tools=options["tools"]
        )
        return LiveLoader(dataset, indices, indices.grid, **options)


def open_source(
    dataset: Any,
    *,
    order: str | OrderOfEpoch = SHUFFLED,
    sampler: Iterable[int] | None = None,
    samples_per_epoch: int | None = None,
    seed: int = 0,
    tools: ArrayTools,
) -> DataSource:
    """Return the data of a job, with the length of its epochs. Raises BadInput if the arguments do not fit.

    A function or a sampler sets the length of all epochs by that of the first, unless `samples_per_epoch` does.
    """
    if callable(getattr(dataset, "grow", None)):
        raise BadInput(
            "dataset grows, and live training needs epochs of a fixed length. Open it without growing=True, or train "
            "with a task queue (pliant.tasks)."
        )
    if is_sharded(dataset, tools) or (is_stream(dataset, tools) and not tools.is_loader(dataset)):
        _check_in_sequence(dataset, order, sampler)
        if is_sharded(dataset, tools):
            return _open_shards(dataset, str(order), samples_per_epoch)
        return _open_stream(dataset, samples_per_epoch, seed, tools)
    check_readable(dataset, tools)
    length = len(dataset)
    if length < 1:
        raise BadInput(f"dataset has no samples ({a(type(dataset).__name__)} of length 0). Pass one with samples.")
    if order != SHUFFLED and sampler is not None:
        raise BadInput("order= and sampler= cannot be combined: both give the indices of an epoch. Pass one of them.")
    if sampler is None and not callable(order):
        return DataSource(dataset, samples_per_epoch or length, length, order)
    if tools.is_sequential(sampler):
        return DataSource(dataset, samples_per_epoch or length, length, SEQUENTIAL)
    if sampler is None:
        assert callable(order)
        drawn = _DrawnOrder(order, FUNCTION, seed, length, samples_per_epoch, tools)
    else:
        draw = _draw_of(sampler, samples_per_epoch, seed, tools)
        kind = f"sampler {type(sampler).__name__}"
        drawn = _DrawnOrder(draw, kind, seed, length, samples_per_epoch, tools)
    samples = samples_per_epoch or len(drawn(0))
    if not samples:
        raise BadInput(f"{order_name(drawn.kind, 0)} returned no index: an epoch needs at least one sample")
    return DataSource(dataset, samples, length, drawn, drawn.kind)


def _check_in_sequence(dataset: Any, order: str | OrderOfEpoch, sampler: object) -> None:
    """Raise BadInput for an order that data in sequence cannot have."""
    kind = type(dataset).__name__
    if sampler is not None or order not in (SHUFFLED, SEQUENTIAL):
        raise BadInput(
            f"{kind} is read in sequence, so order= and sampler= cannot choose its samples: leave them out, or pass a "
            "data set with __len__ and __getitem__"
        )


def _open_shards(dataset: Any, order: str, samples_per_epoch: int | None) -> DataSource:
    sizes = shard_sizes(dataset)
    return ShardSource(dataset, samples_per_epoch or sum(sizes), sum(sizes), order, "shards", sizes)


def _open_stream(dataset: Any, samples_per_epoch: int | None, seed: int, tools: ArrayTools) -> DataSource:
    if isinstance(dataset, Iterator) and not tools.is_iterable(dataset):
        raise BadInput(
            f"{type(dataset).__name__} can be iterated only once: pass an IterableDataset whose __iter__ opens the "
            "stream anew"
        )
    kind = f"stream {beginning(dataset, seed, tools)}"
    samples = samples_per_epoch or count_items(dataset, seed, tools)
    if not samples:
        raise BadInput(f"dataset has no samples ({a(type(dataset).__name__)} without items). Pass one with samples.")
    return StreamSource(dataset, samples, samples, SEQUENTIAL, kind, endless=samples_per_epoch is not None, seed=seed)


class _DrawnOrder:
    """An order drawn by user code, with generators seeded for the epoch. It must return the same indices again.

    `limit` is the number of indices to use of each epoch; None for all of them.
    """

    def __init__(
        self, draw: OrderOfEpoch, kind: str, seed: int, length: int, limit: int | None, tools: ArrayTools
    ) -> None:
        self.kind = kind
        self._draw = draw
        self._seed = seed
        self._length = length
        self._limit = limit
        self._tools = tools
        self._first: Samples | None = None

    def __call__(self, epoch: int) -> Samples:
        name = order_name(self.kind, epoch)
        with self._tools.preserve():
            self._tools.seed(epoch_seeds(self._seed, epoch))
            given = self._draw(epoch)
            sized = given if hasattr(given, "__len__") else list(islice(given, self._limit))
        samples = checked_order(sized, name, self._length)[: self._limit]
        if epoch == 0:
            self._check_first(samples, name)
        return samples

    def _check_first(self, samples: Samples, name: str) -> None:
        if self._first is None:
            self._first = samples
        elif not np.array_equal(samples, self._first):
            raise BadInput(
                f"{name} returned other indices when it was called again, so the workers would disagree: draw from "
                "torch, numpy or random without a generator of your own; Pliant seeds them for each epoch"
            )


def _draw_of(sampler: Any, samples: int | None, seed: int, tools: ArrayTools) -> OrderOfEpoch:
    """Return the function that draws an epoch's indices from a sampler."""
    kind = type(sampler).__name__
    tools.refuse_sampler(sampler)
    if not hasattr(sampler, "__iter__"):
        raise BadInput(f"sampler must be a torch sampler or a list of indices, not {kind}: pass a function as order=")
    if not hasattr(sampler, "__len__") and samples is None:
        raise BadInput(f"{kind} has no length, so an epoch could be endless: pass samples_per_epoch=")

    def draw(epoch: int) -> Iterable[int]:
        if callable(set_epoch := getattr(sampler, "set_epoch", None)):
            set_epoch(epoch)
        # A key of its own, so that a sampler that draws from both generators does not get the same numbers twice.
        with tools.seeded(sampler, epoch_seeds(seed, epoch)[0]):
            return list(islice(sampler, samples))

    return draw
