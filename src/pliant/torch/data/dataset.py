"""Reading a part from a map-style data set: which protocol the data set speaks, and the randomness it sees.

The same reader runs in the training process (`num_workers=0`) and in data workers. It counts and digests the
samples where it reads them, so that a mistake on the way from the plan to the data set shows in the ledger.

A data set may draw random numbers, for augmentation mostly. Before every `dataset[i]` the generators of
`random`, numpy and torch are seeded with a key of (seed, epoch, sample), so that what a sample looks like does
not depend on who reads it or on what was read before. Generators that a data set makes for itself are its own
affair.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from torch.utils.data._utils import worker

from pliant.errors import BadInput
from pliant.torch.data.seeds import seed_for_reading
from pliant.train.data.loader import (
    LoadedMicroBatch,
    ReadPlan,
    SampleError,
    digest_read,
    micro_batch_seeds,
    sample_seeds,
    slot_ends,
)


def check_dataset(dataset: Any, samples: int) -> None:
    """Raise BadInput, with what to do, unless the data can be read by number. Call it before anything is begun."""
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise BadInput("pass the data set itself, not a DataLoader: Pliant deals out its samples and loads them")
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"{kind} has no numbered samples, and only those can be dealt out anew when the world changes: "
            "pass a map-style data set, with __len__ and __getitem__; for a stream, write it to files first "
            "and read the records by number"
        )
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise BadInput(f"{kind} is a mapping of {', '.join(map(repr, list(dataset)[:5]))}: pass one of its data sets")
    if len(dataset) != samples:
        raise BadInput(f"the data set has {len(dataset)} samples, but the job was set up for {samples}")


class DatasetReader:
    """Reads parts. Make one per data set, before data workers are forked."""

    def __init__(self, dataset: Any, *, seed: int, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        plain = collate_fn is None or collate_fn is default_collate
        self._collate = _collate if plain or collate_fn is None else collate_fn
        self._tensors = _tensors_of(dataset) if plain else None
        self._batched = _reads_batches(dataset)
        self._draws_reading = not _draws_nothing(dataset)
        self._draws_collating = not plain

    @property
    def draws(self) -> bool:
        """Whether reading reseeds this process's generators: put them back after reading in a training process."""
        return self._draws_reading or self._draws_collating

    def read(self, plan: ReadPlan) -> LoadedMicroBatch:
        """Read a part and collate it. Whatever the data set raises comes out as SampleError."""
        if self._tensors is not None:
            taken = torch.from_numpy(plan.samples)
            data: Any = [tensor.index_select(0, taken) for tensor in self._tensors]
            return LoadedMicroBatch(
                plan.micro_batch, data, len(taken), digest_read(plan.micro_batch, taken.numpy(), slot_ends(plan.sizes))
            )
        rows, read, ends = self._read_batch(plan) if self._batched else self._read_each(plan)
        with _naming_samples(plan, plan.micro_batch.slots, read):
            if self._draws_collating:
                seed_for_reading(micro_batch_seeds(self.seed, plan.micro_batch))
            data = self._collate(rows)
        return LoadedMicroBatch(plan.micro_batch, data, len(read), digest_read(plan.micro_batch, read, ends))

    def _read_each(self, plan: ReadPlan) -> tuple[list[Any], list[int], list[int]]:
        rows: list[Any] = []
        read: list[int] = []
        ends: list[int] = []
        # Python's own integers: data sets index lists, build file names and compare with them.
        samples = plan.samples.tolist()
        at = 0
        for slot, size in zip(plan.micro_batch.slots, plan.sizes, strict=True):
            for sample in samples[at : at + size]:
                if self._draws_reading:
                    seed_for_reading(sample_seeds(self.seed, plan.epoch, sample))
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
    """Turn an error in user code that concerns several samples into one that names them."""
    try:
        yield
    except Exception as error:  # why: a data set and a collate function are user code and may raise anything
        raise SampleError(plan.micro_batch, slots, tuple(samples), traceback.format_exc()) from error


def _collate(rows: list[Any]) -> Any:
    """Collate as torch does; but torch makes the batch in /dev/shm if it finds itself in a data worker, and it is
    small in most containers. What a data worker sends goes another way (see parcels), so it is not told.
    """
    info, worker._worker_info = worker._worker_info, None
    try:
        return default_collate(rows)
    finally:
        worker._worker_info = info


def _tensors_of(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """Give the tensors of a data set that is nothing but tensors: a batch of it is one look-up in each."""
    # A subclass may do anything in __getitem__, so only the class itself will do.
    if type(dataset) is not TensorDataset:
        return None
    tensors = dataset.tensors
    plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors)
    return tensors if plain else None


def _reads_batches(dataset: Any) -> bool:
    """Tell whether to read through `__getitems__`.

    torch's wrappers always have it, and go sample by sample inside where their data has not. Then we do that
    ourselves: every sample gets its own randomness.
    """
    if type(dataset) is Subset:
        return _reads_batches(dataset.dataset)
    if type(dataset) is StackDataset:
        parts = dataset.datasets
        return any(_reads_batches(part) for part in (parts.values() if isinstance(parts, dict) else parts))
    return callable(getattr(dataset, "__getitems__", None))


def _draws_nothing(dataset: Any) -> bool:
    """Tell whether reading this data draws no random numbers, because none of its code is the user's."""
    if type(dataset) is Subset:
        return _draws_nothing(dataset.dataset) and type(dataset.indices) in (list, tuple, range)
    if type(dataset) is ConcatDataset:
        return all(map(_draws_nothing, dataset.datasets))
    return type(dataset) in (list, tuple, TensorDataset, torch.Tensor, np.ndarray)
