"""PyTorch's part in reading data: its generators, data sets, samplers, tensors and data workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data._utils import worker

from pliant.errors import BadInput
from pliant.torch.data.devices import move_to_device
from pliant.torch.data.seeds import preserve_generators, seed_for_reading
from pliant.torch.data.workers import DataWorkerPool
from pliant.train.data.loader import MicroBatch, ReadPlan
from pliant.train.data.order import Samples
from pliant.train.live.data.reader import DatasetReader
from pliant.train.live.data.tools import ArrayTools

CPU = torch.device("cpu")


class TorchTools(ArrayTools):
    """Reading for a model on `device`."""

    def __init__(self, device: torch.device = CPU, *, pin_memory: bool = False) -> None:
        self._device = device
        self._pin = pin_memory and device.type != "cpu"  # pinned memory helps only copies to a device

    def seed(self, key: tuple[int, int, int]) -> None:
        seed_for_reading(key)

    @contextmanager
    def preserve(self) -> Iterator[None]:
        with preserve_generators():
            yield

    def is_loader(self, dataset: Any) -> bool:
        return isinstance(dataset, DataLoader)

    def is_iterable(self, dataset: Any) -> bool:
        return isinstance(dataset, IterableDataset)

    def rows_of(self, dataset: Any) -> Callable[[Samples], Any] | None:
        """Return the look-up of a plain TensorDataset: a batch is one look-up in each tensor."""
        if type(dataset) is not TensorDataset:  # a subclass may override __getitem__
            return None
        tensors = dataset.tensors
        if not all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors):
            return None

        def rows(samples: Samples) -> list[torch.Tensor]:
            taken = torch.from_numpy(samples)
            return [tensor.index_select(0, taken) for tensor in tensors]

        return rows

    def reads_batches(self, dataset: Any) -> bool:
        return _reads_batches(dataset)

    def epoch_setters(self, dataset: Any) -> list[Callable[[int], object]]:
        return _epoch_setters(dataset)

    def draws_nothing(self, dataset: Any) -> bool:
        return _draws_nothing(dataset)

    def collate(self, rows: list[Any]) -> Any:
        """Collate as torch does, but never in /dev/shm, which is small in most containers.

        torch would use it in a data worker, so the worker's information is hidden meanwhile. Batches travel in memory
        of their own (see shared_memory.py).
        """
        with self.hide_worker():
            try:
                return default_collate(rows)
            except RuntimeError as error:
                if "equal size" not in str(error):
                    raise
                raise ValueError(
                    "the samples of a batch differ in shape and cannot be stacked: pass collate_fn= to job.train, such "
                    "as one that pads them"
                ) from error

    def move(self, data: Any) -> Any:
        return data if self._device.type == "cpu" else move_to_device(data, self._device, pin=self._pin)

    def content(self, thing: Any) -> Iterator[bytes] | None:
        return _content(thing) if isinstance(thing, torch.Tensor) else None

    def is_sequential(self, sampler: Any) -> bool:
        return isinstance(sampler, SequentialSampler)

    def refuse_sampler(self, sampler: Any) -> None:
        kind = type(sampler).__name__
        if isinstance(sampler, DistributedSampler):
            raise BadInput(
                f"{kind} divides the samples among workers, which Pliant does itself: remove it, or pass the sampler "
                "that you use with one worker"
            )
        if isinstance(sampler, BatchSampler):
            raise BadInput(f"{kind} yields whole batches: pass its sampler as sampler= and its size as batch_size=")

    @contextmanager
    def seeded(self, sampler: Any, key: int) -> Iterator[None]:
        if not hasattr(sampler, "generator"):
            yield
            return
        own = sampler.generator
        sampler.generator = torch.Generator().manual_seed(key)
        try:
            yield
        finally:
            sampler.generator = own

    @contextmanager
    def hide_worker(self) -> Iterator[None]:
        info, worker._worker_info = worker._worker_info, None
        try:
            yield
        finally:
            worker._worker_info = info

    def read_ahead(
        self, reader: DatasetReader, plan: Callable[[MicroBatch], ReadPlan], count: int, *, in_sequence: bool
    ) -> DataWorkerPool:
        return DataWorkerPool(reader, plan, count, in_sequence=in_sequence)


def _content(tensor: torch.Tensor) -> Iterator[bytes]:
    yield repr((tensor.dtype, tuple(tensor.shape))).encode()
    if tensor.layout is torch.strided and tensor.device.type == "cpu":
        yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _reads_batches(dataset: Any) -> bool:
    """Return whether to read through `__getitems__`.

    torch's wrappers always have it, and read sample by sample if their data lacks it. In that case Pliant reads sample
    by sample itself, so that each gets its own seed.
    """
    if type(dataset) is Subset:
        return _reads_batches(dataset.dataset)
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return any(_reads_batches(part) for part in (parts.values() if isinstance(parts, dict) else parts))
    return callable(getattr(dataset, "__getitems__", None))


def _epoch_setters(dataset: Any) -> list[Callable[[int], object]]:
    """Return the `set_epoch` methods of a data set, and of those inside torch's wrappers."""
    if callable(method := getattr(dataset, "set_epoch", None)):
        return [method]
    inner: list[Any] = []
    if isinstance(dataset, Subset):
        inner = [dataset.dataset]
    elif isinstance(dataset, ConcatDataset):
        inner = dataset.datasets
    elif isinstance(dataset, StackDataset):
        inner = list(dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets)
    return [method for each in inner for method in _epoch_setters(each)]


def _draws_nothing(dataset: Any) -> bool:
    """Return whether reading this data draws no random numbers, because it runs no user code."""
    if type(dataset) is Subset:
        return _draws_nothing(dataset.dataset) and type(dataset.indices) in (list, tuple, range)
    if type(dataset) is ConcatDataset:
        return all(map(_draws_nothing, dataset.datasets))
    return type(dataset) in (list, tuple, TensorDataset, torch.Tensor, np.ndarray)
