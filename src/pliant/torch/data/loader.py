"""The loader: parts of a step, read, collated and brought to the model's device.

With `num_workers=0` a part is read when it is asked for. With more, data workers read ahead what `expect`
names, and go on doing so through every change of the world: only what they are asked for changes.
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
from pliant.torch.data.workers import DataWorkerPool
from pliant.train.data.loader import LoadedMicroBatch, MicroBatch, SampleIndices


class Loader:
    """Reads the parts of a job's steps from a data set. Make one per data set and member."""

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
        check_dataset(dataset, grid.samples)
        if indices.grid != grid:
            raise BadInput(f"the loader's grid is {grid}, but its order was made for {indices.grid}: use one grid")
        if num_workers < 0:
            raise BadInput(f"num_workers must be 0 (read in the training process) or more, not {num_workers}")
        self._indices = indices
        self._reader = DatasetReader(dataset, seed=seed, collate_fn=collate_fn)
        self._pool = DataWorkerPool(self._reader, indices.plan_read, num_workers) if num_workers else None
        self._device = device
        # Pinned memory is for copies to a device; a batch that stays where it is gains nothing from it.
        self._pin = pin_memory and device.type != "cpu"

    @property
    def pids(self) -> tuple[int, ...]:
        """The data workers' processes; none before `start` and after `close`."""
        return () if self._pool is None else self._pool.pids

    def start(self) -> None:
        """Fork the data workers. Call it in the main thread, before a thread, a socket or a group exists (H20)."""
        if self._pool is not None:
            self._pool.start()

    @property
    def reads_ahead(self) -> int:
        """How many parts there is use for in `expect`; 0: each is read when it is asked for."""
        return self._pool.depth if self._pool is not None else 0

    def expect(self, parts: Sequence[MicroBatch]) -> None:
        """Say what will be asked for next, in order. Call it at every boundary, and after every change.

        What was read ahead and is not among these parts is dropped, and never served later.
        """
        if self._pool is not None:
            self._pool.expect(parts)

    def load(self, part: MicroBatch) -> LoadedMicroBatch:
        """Give a part, its batch on the device; expected or not, it is read. SampleError if it cannot be."""
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
        """End the data workers. Call it when training is over, however it ended; again does nothing."""
        if self._pool is not None:
            self._pool.close()


def move_to_device(data: Any, device: torch.device, *, pin: bool = False) -> Any:
    """Give the same data with every tensor in it on the device, containers rebuilt as they were.

    Objects that know how to move themselves (they have `to`) are asked to; others that are no containers stay.
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
            # Frozen ones too: the copy is ours until it is handed out.
            object.__setattr__(new, field.name, move_to_device(getattr(data, field.name), device, pin=pin))
        return new
    return data


def _refilled(container: Any, values: dict[Any, Any]) -> Any:
    new = copy.copy(container)
    for key, value in values.items():
        new[key] = value
    return new
