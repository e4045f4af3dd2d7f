"""A framework's part in reading data. `ArrayTools` is enough for a framework that takes numpy's arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import numpy as np

from pliant.errors import BadInput
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, ReadPlan
from pliant.train.data.order import Samples


class ReadAhead(Protocol):
    """Data workers: processes that read parts ahead of training."""

    @property
    def depth(self) -> int: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    def start(self) -> None: ...
    def expect(self, parts: Sequence[MicroBatch]) -> None: ...
    def take(self, part: MicroBatch) -> LoadedMicroBatch: ...
    def close(self) -> None: ...


class ArrayTools:
    """Reading with numpy. A framework with data sets, samplers or tensors of its own overrides what differs."""

    # ------------------------------------------------------------------------------------------------ randomness

    def seed(self, key: tuple[int, int, int]) -> None:
        """Seed the generators that a data set may draw from. The third key is the framework's."""
        random.seed(key[0])
        np.random.seed(key[1] & 0xFFFFFFFF)

    @contextmanager
    def preserve(self) -> Iterator[None]:
        """Restore this process's generators at the end of the block."""
        python, arrays = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)

    # ------------------------------------------------------------------------------------------------- data sets

    def is_loader(self, dataset: Any) -> bool:
        """Return whether this is the framework's own loader, which divides the samples itself."""
        return False

    def is_iterable(self, dataset: Any) -> bool:
        """Return whether this can only be iterated, though it may seem to have samples by number."""
        return False

    def rows_of(self, dataset: Any) -> Callable[[Samples], Any] | None:
        """Return a function that returns the samples of many numbers at once, if the data is nothing but arrays."""
        if type(dataset) is np.ndarray:
            return lambda samples: dataset[samples]
        if type(dataset) is Arrays:
            return lambda samples: tuple(array[samples] for array in dataset.arrays)
        return None

    def reads_batches(self, dataset: Any) -> bool:
        """Return whether to read through `__getitems__`."""
        return callable(getattr(dataset, "__getitems__", None))

    def epoch_setters(self, dataset: Any) -> list[Callable[[int], object]]:
        """Return the `set_epoch` methods of a data set and of those inside of it."""
        return [dataset.set_epoch] if callable(getattr(dataset, "set_epoch", None)) else []

    def draws_nothing(self, dataset: Any) -> bool:
        """Return whether reading this data draws no random numbers, because it runs no user code."""
        return type(dataset) in (list, tuple, np.ndarray, Arrays)

    def collate(self, rows: list[Any]) -> Any:
        """Return a batch of samples: arrays, or the same containers with arrays in them."""
        first = rows[0]
        if isinstance(first, tuple | list):
            return tuple(self.collate([row[at] for row in rows]) for at in range(len(first)))
        if isinstance(first, dict):
            return {key: self.collate([row[key] for row in rows]) for key in first}
        try:
            return np.stack([np.asarray(row) for row in rows])
        except ValueError as error:
            raise ValueError(
                "the samples of a batch differ in shape and cannot be stacked: pass collate_fn= to job.train, such as "
                "one that pads them"
            ) from error

    def move(self, data: Any) -> Any:
        """Return a batch where the model expects it."""
        return data

    def content(self, thing: Any) -> Iterator[bytes] | None:
        """Yield the bytes of a tensor of the framework; None for anything else."""
        return None

    # -------------------------------------------------------------------------------------------------- samplers

    def is_sequential(self, sampler: Any) -> bool:
        return False

    def refuse_sampler(self, sampler: Any) -> None:
        """Raise BadInput for a sampler that divides the samples itself."""

    def seeded(self, sampler: Any, key: int) -> AbstractContextManager[None]:
        """Let a sampler draw from a generator with this key, within the block."""
        return nullcontext()

    # ---------------------------------------------------------------------------------------------- data workers

    def hide_worker(self) -> AbstractContextManager[None]:
        """Hide from user code that it runs in a data worker."""
        return nullcontext()

    def read_ahead(
        self, reader: Any, plan: Callable[[MicroBatch], ReadPlan], count: int, *, in_sequence: bool
    ) -> ReadAhead:
        """Return data workers that use this reader."""
        raise BadInput(
            f"num_workers={count} needs data workers, which pliant.torch alone has. Leave num_workers out: the samples "
            "are read in the training process."
        )


class Arrays:
    """A data set of arrays of equal length. A sample is a tuple with one row of each."""

    def __init__(self, *arrays: Any) -> None:
        self.arrays = tuple(np.asarray(array) for array in arrays)
        if not self.arrays or len({len(array) for array in self.arrays}) != 1:
            lengths = ", ".join(str(len(array)) for array in self.arrays)
            raise BadInput(f"A data set of arrays needs at least one, all of one length, got lengths {lengths or 0}.")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, sample: int) -> tuple[Any, ...]:
        return tuple(array[sample] for array in self.arrays)
