"""Load the parts of a step: read, collate and move them to where the model is.

With `num_workers=0` a part is read when it is needed. Otherwise data workers read ahead the parts given to `expect`.
They keep running when the world changes; only the expected parts change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, SampleIndices, digest_read
from pliant.train.live.data.reader import DatasetReader, check_dataset
from pliant.train.live.data.shards import ShardDataset
from pliant.train.live.data.stream import StreamDataset
from pliant.train.live.data.tools import ArrayTools


class LiveLoader:
    """A loader of the parts of a job's steps. Create one for each data set and member."""

    def __init__(
        self,
        dataset: Any,
        indices: SampleIndices,
        grid: Grid,
        *,
        seed: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        tools: ArrayTools,
    ) -> None:
        check_dataset(dataset, indices.data, tools)
        if indices.grid != grid:
            raise BadInput(f"the loader's grid is {grid}, but its order was made for {indices.grid}: use one grid")
        if num_workers < 0:
            raise BadInput(f"num_workers must be 0 (read in the training process) or more, not {num_workers}")
        self._indices = indices
        self._tools = tools
        # Data workers would not see a change of the batch, which the faster digest depends on.
        digest = digest_read if num_workers else indices.digest_read
        self._reader = DatasetReader(dataset, seed=seed, tools=tools, collate_fn=collate_fn, digest=digest)
        in_sequence = isinstance(dataset, ShardDataset | StreamDataset)
        plan = indices.plan_read
        self._pool = tools.read_ahead(self._reader, plan, num_workers, in_sequence=in_sequence) if num_workers else None

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the data workers; empty before `start` and after `close`."""
        return () if self._pool is None else self._pool.pids

    def start(self) -> None:
        """Fork the data workers. Call it in the main thread, before a thread, a socket or a group exists."""
        if self._pool is not None:
            self._pool.start()

    @property
    def reads_ahead(self) -> int:
        """The number of parts that `expect` can read ahead; 0 without data workers."""
        return self._pool.depth if self._pool is not None else 0

    def expect(self, parts: Sequence[MicroBatch]) -> None:
        """Set the parts that will be loaded next, in order. Call it at every boundary and after every change.

        Parts that were read ahead and are not among them are dropped.
        """
        if self._pool is not None:
            self._pool.expect(parts)

    def load(self, part: MicroBatch) -> LoadedMicroBatch:
        """Return a part with its batch on the device, expected or not. Raises SampleError if it cannot be read.

        Reading may reseed the generators of this process: seed them before user code draws from them.
        """
        if self._pool is not None:
            loaded = self._pool.take(part)
        else:
            loaded = self._reader.read(self._indices.plan_read(part))
        moved = self._tools.move(loaded.data)
        return loaded if moved is loaded.data else dataclasses.replace(loaded, data=moved)

    def close(self) -> None:
        """End the data workers, after success and failure alike. A second call does nothing."""
        if self._pool is not None:
            self._pool.close()
