"""Read parts from a map-style data set.

The same reader runs in the training process (`num_workers=0`) and in data workers. It counts and hashes the samples
where it reads them, so that a mistake between the plan and the data set shows in the ledger.

A data set may draw random numbers, mostly for augmentation. Before every `dataset[i]` the generators of `random`, numpy
and the framework are seeded with a key of (seed, epoch, sample). So a sample does not depend on the process that reads
it or on what was read before. Generators that a data set creates itself are not seeded.

The reader calls `set_epoch` of a data set before it reads the first sample of an epoch, in each process that reads.
Data workers read ahead into the next epoch, and a recovery may go back to the last one. So every part has its epoch,
and the reader compares it with the one that it set last.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

from pliant.errors import BadInput
from pliant.train.data.loader import (
    LoadedMicroBatch,
    MicroBatch,
    ReadPlan,
    SampleError,
    digest_read,
    epoch_seeds,
    micro_batch_seeds,
    sample_seeds,
    slot_ends,
)
from pliant.train.data.order import Samples
from pliant.train.live.data.tools import ArrayTools

Digest = Callable[[MicroBatch, Samples | Sequence[int], Iterable[int]], int]
"""`digest_read`, or a faster function with the same result."""


def check_readable(dataset: Any, tools: ArrayTools) -> None:
    """Raise BadInput, with what to do, unless samples can be read by number. Call it first."""
    kind = type(dataset).__name__
    if tools.is_loader(dataset):
        raise BadInput("pass the data set itself, not a DataLoader: Pliant divides and loads the samples")
    if tools.is_iterable(dataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(
            f"{kind} is no data set: pass one with __len__ and __getitem__, an IterableDataset, or one with shards and "
            "read(shard, start)"
        )
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise BadInput(f"{kind} is a mapping of {', '.join(map(repr, list(dataset)[:5]))}: pass one of its data sets")


def check_dataset(dataset: Any, samples: int, tools: ArrayTools) -> None:
    """Raise BadInput unless this many samples can be read by number."""
    check_readable(dataset, tools)
    if len(dataset) != samples:
        raise BadInput(f"the data set has {len(dataset)} samples, but the job was set up for {samples}")


class DatasetReader:
    """A reader of parts. Create one for each data set, before data workers are forked."""

    def __init__(
        self,
        dataset: Any,
        *,
        seed: int,
        tools: ArrayTools,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        digest: Digest = digest_read,
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self._tools = tools
        self._digest = digest
        self._collate = tools.collate if collate_fn is None else collate_fn
        self._rows = tools.rows_of(dataset) if collate_fn is None else None
        self._batched = tools.reads_batches(dataset)
        self._draws_reading = not tools.draws_nothing(dataset)
        self._draws_collating = collate_fn is not None
        self._set_epoch = tools.epoch_setters(dataset)
        self._epoch: int | None = None  # the last one set

    def read(self, plan: ReadPlan) -> LoadedMicroBatch:
        """Read a part and collate it. Any exception of the data set is raised as SampleError."""
        if self._rows is not None:
            taken = plan.samples
            digest = self._digest(plan.micro_batch, taken, slot_ends(plan.sizes))
            return LoadedMicroBatch(plan.micro_batch, self._rows(taken), len(taken), digest)
        if self._set_epoch and plan.epoch != self._epoch:
            self._begin_epoch(plan)
        rows, read, ends = self._read_batch(plan) if self._batched else self._read_each(plan)
        with _naming_samples(plan, plan.micro_batch.slots, read):
            if self._draws_collating:
                self._tools.seed(micro_batch_seeds(self.seed, plan.micro_batch))
            data = self._collate(rows)
        return LoadedMicroBatch(plan.micro_batch, data, len(read), self._digest(plan.micro_batch, read, ends))

    def _begin_epoch(self, plan: ReadPlan) -> None:
        with _naming_samples(plan, plan.micro_batch.slots, plan.samples.tolist()):
            for set_epoch in self._set_epoch:
                self._tools.seed(epoch_seeds(self.seed, plan.epoch))
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
                    self._tools.seed(sample_seeds(self.seed, plan.epoch, sample, position))
                try:
                    rows.append(self.dataset[sample])
                except Exception as error:  # why: a data set is user code and may raise anything
                    raise SampleError(plan.micro_batch, (slot,), (sample,), traceback.format_exc()) from error
                read.append(sample)
            ends.append(len(read))
            at += size
        return rows, read, ends

    def _read_batch(self, plan: ReadPlan) -> tuple[list[Any], list[int], Sequence[int]]:
        asked = plan.samples.tolist()
        with _naming_samples(plan, plan.micro_batch.slots, asked):
            if self._draws_reading:
                self._tools.seed(micro_batch_seeds(self.seed, plan.micro_batch))
            rows = self.dataset.__getitems__(asked)
            if len(rows) != len(asked):
                raise ValueError(f"__getitems__ was asked for {len(asked)} samples and gave {len(rows)}")
        return rows, asked, slot_ends(plan.sizes)


@contextmanager
def _naming_samples(plan: ReadPlan, slots: tuple[int, ...], samples: list[int]) -> Iterator[None]:
    """Convert an exception of user code into one that names the samples it was called with."""
    try:
        yield
    except Exception as error:  # why: a data set and a collate function are user code and may raise anything
        raise SampleError(plan.micro_batch, slots, tuple(samples), traceback.format_exc()) from error
