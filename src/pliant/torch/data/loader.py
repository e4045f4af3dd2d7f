"""Load the parts of a step: read, collate and move them to the model's device.

With `num_workers=0` a part is read when it is needed. Otherwise data workers read ahead the parts given to `expect`.
They keep running when the world changes; only the expected parts change.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.torch.data.dataset import DatasetReader, check_dataset
from pliant.torch.data.seeds import preserve_generators
from pliant.torch.data.shards import ShardDataset
from pliant.torch.data.stream import StreamDataset
from pliant.torch.data.workers import DataWorkerPool
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, SampleIndices


class Loader:
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
        pin_memory: bool = False,
        device: torch.device,
    ) -> None:
        check_dataset(dataset, indices.data)
        if indices.grid != grid:
            raise BadInput(f"the loader's grid is {grid}, but its order was made for {indices.grid}: use one grid")
        if num_workers < 0:
            raise BadInput(f"num_workers must be 0 (read in the training process) or more, not {num_workers}")
        self._indices = indices
        self._reader = DatasetReader(dataset, seed=seed, collate_fn=collate_fn)
        in_sequence = isinstance(dataset, ShardDataset | StreamDataset)
        plan = indices.plan_read
        self._pool = DataWorkerPool(self._reader, plan, num_workers, in_sequence=in_sequence) if num_workers else None
        self._device = device
        # Pinned memory helps only copies to a device.
        self._pin = pin_memory and device.type != "cpu"

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
        """Return a part with its batch on the device, expected or not. Raises SampleError if it cannot be read."""
        if self._pool is not None:
            loaded = self._pool.take(part)
        elif self._reader.draws:
            with preserve_generators():
                loaded = self._reader.read(self._indices.plan_read(part))
        else:
            loaded = self._reader.read(self._indices.plan_read(part))
        if self._device.type == "cpu":
            return loaded
        return dataclasses.replace(loaded, data=move_to_device(loaded.data, self._device, pin=self._pin))

    def close(self) -> None:
        """End the data workers, after success and failure alike. A second call does nothing."""
        if self._pool is not None:
            self._pool.close()


def move_to_device(data: Any, device: torch.device, *, pin: bool = False) -> Any:
    """Return the data with every tensor on the device and all containers rebuilt.

    Objects with a `to` method are moved by it. Other objects that are not containers stay as they are.
    """
    if isinstance(data, torch.Tensor):
        if pin and data.device.type == "cpu":
            return data.pin_memory().to(device, non_blocking=True)
        return data.to(device)
    if isinstance(data, str | bytes | bytearray | int | float) or data is None:
        return data
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, tuple):
        values = [move_to_device(value, device, pin=pin) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    if isinstance(data, MutableMapping):
        return _refilled(data, {key: move_to_device(value, device, pin=pin) for key, value in data.items()})
    if isinstance(data, MutableSequence):
        return _refilled(data, dict(enumerate([move_to_device(value, device, pin=pin) for value in data])))
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        new = copy.copy(data)
        for field in dataclasses.fields(data):
            # Works for frozen dataclasses, too: no other code has the copy yet.
            object.__setattr__(new, field.name, move_to_device(getattr(data, field.name), device, pin=pin))
        return new
    return data


def _refilled(container: Any, values: dict[Any, Any]) -> Any:
    new = copy.copy(container)
    for key, value in values.items():
        new[key] = value
    return new
