"""Read parts from a map-style data set.

The same reader runs in the training process (`num_workers=0`) and in data workers. It counts and hashes the samples
where it reads them, so that a mistake between the plan and the data set shows in the ledger.

A data set may draw random numbers, mostly for augmentation. Before every `dataset[i]` the generators of `random`, numpy
and torch are seeded with a key of (seed, epoch, sample). So a sample does not depend on the process that reads it or on
what was read before. Generators that a data set creates itself are not seeded.

The reader calls `set_epoch` of a data set before it reads the first sample of an epoch, in each process that reads.
Data workers read ahead into the next epoch, and a recovery may go back to the last one. So every part has its epoch,
and the reader compares it with the one that it set last.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from pliant.errors import BadInput
from pliant.torch.data.seeds import seed_for_reading
from pliant.torch.data.stream import no_worker_info
from pliant.train.data.loader import (
    LoadedMicroBatch,
    ReadPlan,
    SampleError,
    digest_read,
    epoch_seeds,
    micro_batch_seeds,
    sample_seeds,
    slot_ends,
)


def check_readable(dataset: Any) -> None:
    """Raise BadInput, with what to do, unless samples can be read by number. Call it first."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise BadInput("pass the data set itself, not a DataLoader: Pliant divides and loads the samples")
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"{kind} is no data set: pass one with __len__ and __getitem__, an IterableDataset, or one with shards and "
            "read(shard, start)"
        )
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise BadInput(f"{kind} is a mapping of {', '.join(map(repr, list(dataset)[:5]))}: pass one of its data sets")


def check_dataset(dataset: Any, samples: int) -> None:
    """Raise BadInput unless this many samples can be read by number."""
    check_readable(dataset)
    if len(dataset) != samples:
        raise BadInput(f"the data set has {len(dataset)} samples, but the job was set up for {samples}")


class DatasetReader:
    """A reader of parts. Create one for each data set, before data workers are forked."""

    def __init__(self, dataset: Any, *, seed: int, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        plain = collate_fn is None or collate_fn is default_collate
        self._collate = _collate if plain or collate_fn is None else collate_fn
        self._tensors = _tensors_of(dataset) if plain else None
        self._batched = _reads_batches(dataset)
        self._draws_reading = not _draws_nothing(dataset)
        self._draws_collating = not plain
        self._set_epoch = _epoch_setters(dataset)
        self._epoch: int | None = None  # the last one set

    @property
    def draws(self) -> bool:
        """True if reading reseeds this process's generators. Then restore them after reading in a training process."""
        return self._draws_reading or self._draws_collating

    def read(self, plan: ReadPlan) -> LoadedMicroBatch:
        """Read a part and collate it. Any exception of the data set is raised as SampleError."""
        if self._tensors is not None:
            taken = torch.from_numpy(plan.samples)
            data: Any = [tensor.index_select(0, taken) for tensor in self._tensors]
            return LoadedMicroBatch(
                plan.micro_batch, data, len(taken), digest_read(plan.micro_batch, taken.numpy(), slot_ends(plan.sizes))
            )
        if self._set_epoch and plan.epoch != self._epoch:
            self._begin_epoch(plan)
        rows, read, ends = self._read_batch(plan) if self._batched else self._read_each(plan)
        with _naming_samples(plan, plan.micro_batch.slots, read):
            if self._draws_collating:
                seed_for_reading(micro_batch_seeds(self.seed, plan.micro_batch))
            data = self._collate(rows)
        return LoadedMicroBatch(plan.micro_batch, data, len(read), digest_read(plan.micro_batch, read, ends))

    def _begin_epoch(self, plan: ReadPlan) -> None:
        with _naming_samples(plan, plan.micro_batch.slots, plan.samples.tolist()):
            for set_epoch in self._set_epoch:
                seed_for_reading(epoch_seeds(self.seed, plan.epoch))
                set_epoch(plan.epoch)
        self._epoch = plan.epoch

    def _read_each(self, plan: ReadPlan) -> tuple[list[Any], list[int], list[int]]:
        rows: list[Any] = []
        read: list[int] = []
        ends: list[int] = []
        # Python integers: data sets index lists, build file names and compare with them.
        samples = plan.samples.tolist()
        at = 0
        positions = repeat(None) if plan.positions is None else iter(plan.positions.tolist())
        for slot, size in zip(plan.micro_batch.slots, plan.sizes, strict=True):
            for sample, position in zip(samples[at : at + size], positions, strict=False):
                if self._draws_reading:
                    seed_for_reading(sample_seeds(self.seed, plan.epoch, sample, position))
                try:
                    rows.append(self.dataset[sample])
                except Exception as error:  # why: a data set is user code and may raise anything
                    raise SampleError(plan.micro_batch, (slot,), (sample,), traceback.format_exc()) from error
                read.append(sample)
            ends.append(len(read))
            at += size
        return rows, read, ends

    def _read_batch(self, plan: ReadPlan) -> tuple[list[Any], list[int], list[int]]:
        asked = plan.samples.tolist()
        with _naming_samples(plan, plan.micro_batch.slots, asked):
            if self._draws_reading:
                seed_for_reading(micro_batch_seeds(self.seed, plan.micro_batch))
            rows = self.dataset.__getitems__(asked)
            if len(rows) != len(asked):
                raise ValueError(f"__getitems__ was asked for {len(asked)} samples and gave {len(rows)}")
        return rows, asked, list(slot_ends(plan.sizes))


@contextmanager
def _naming_samples(plan: ReadPlan, slots: tuple[int, ...], samples: list[int]) -> Iterator[None]:
    """Convert an exception of user code into one that names the samples it was called with."""
    try:
        yield
    except Exception as error:  # why: a data set and a collate function are user code and may raise anything
        raise SampleError(plan.micro_batch, slots, tuple(samples), traceback.format_exc()) from error


def _collate(rows: list[Any]) -> Any:
    """Collate as torch does, but never in /dev/shm, which is small in most containers.

    torch would use it in a data worker, so the worker's information is hidden meanwhile. Batches travel in memory of
    their own (see shared_memory.py).
    """
    with no_worker_info():
        try:
            return default_collate(rows)
        except RuntimeError as error:
            if "equal size" not in str(error):
                raise
            raise ValueError(
                "the samples of a batch differ in shape and cannot be stacked: pass collate_fn= to job.train, such as "
                "one that pads them"
            ) from error


def _tensors_of(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors of a plain TensorDataset, from which a batch is one look-up in each; else None."""
    # A subclass may override __getitem__.
    if type(dataset) is not TensorDataset:
        return None
    tensors = dataset.tensors
    plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors)
    return tensors if plain else None


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
