"""The loop over the batches of a task queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol, cast

from pliant.core.data.sample_order import MASK_64
from pliant.core.tasks.model import HeldShard, ShardKind, TaskTerms, digest_key
from pliant.core.tasks.partitions import OffsetRange, cut
from pliant.errors import BadInput, PliantError
from pliant.ps.access import ArrayLike, Gradients, TableAccess
from pliant.ps.tables.hashing import Floats
from pliant.tasks.growth import LOOK_S, PartitionedData, is_growing, is_partitioned
from pliant.tasks.left import LeftQueue
from pliant.tasks.pairs import Averaging
from pliant.tasks.source import ShardFeed
from pliant.train.data.order import digest_range


class MapStyle(Protocol):
    """Data by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...


TaskData = MapStyle | PartitionedData


class TaskRun:
    """Iterate over it to get batches. A batch counts as processed when the next one is asked for.

    `kind` is that of the current batch: `train`, `evaluate` or `predict`. `numbers` are the numbers of its records in
    the data, `epoch` is its epoch, or the number of the evaluation. `offsets` are those of its records in a queue with
    partitions. `complete` is True once all shards of the job are done.
    """

    def __init__(
        self,
        source: ShardFeed,
        terms: TaskTerms,
        data: dict[ShardKind, TaskData],
        batch_size: int,
        collate: Callable[[list[Any]], Any] | None,
        tables: TableAccess | None = None,
        averaging: Averaging | None = None,
    ) -> None:
        self._tables, self._averaging = tables, averaging
        self._averaged = False  # in the current batch
        self._source, self._terms, self._data = source, terms, data
        self._batch_size, self._collate = batch_size, collate
        self.kind = terms.kind
        self.epoch = 0
        self.numbers = range(0)
        self.offsets: tuple[OffsetRange, ...] = ()
        self.complete = False
        self._shard: HeldShard | None = None  # the current one
        self._upto = self._digest = 0  # of the current shard: processed records, and the digest of all that were read
        self._sums: dict[str, float] = {}

    @property
    def evaluating(self) -> bool:
        """True while the batch is for evaluation: do not train on it, and pass sums to `add`."""
        return self.kind is ShardKind.EVALUATE

    def add(self, **sums: float) -> None:
        """Add totals over the records of this batch, such as the sum of their losses.

        The coordinator adds up the totals of an evaluation, and reports them divided by its number of records.
        """
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)

    def pull(self, table: str, ids: ArrayLike) -> Floats:
        """Return the rows of a table by their ids, as float32 values in the shape of the ids and one more dimension."""
        return self._access().pull(table, ids)

    def push(self, gradients: Gradients) -> bool:
        """Apply gradients to rows, by table: `{"ads": (ids, gradients)}`. Gradients of equal ids are added up.

        Returns True once both copies of every row have them. False: too many updates came between (`staleness_max`),
        and nothing or only a part was applied; pull and compute the batch again.
        """
        return self._access().push(gradients)

    def create(self, table: str, ids: ArrayLike, values: ArrayLike) -> None:
        """Create rows with these values, such as those of dense variables. Rows that exist stay as they are."""
        self._access().create(table, ids, values)

    def _access(self) -> TableAccess:
        if self._tables is None:
            raise BadInput("This run has no tables. Pass tables=[Table(...)] to job.train or job.predict.")
        return self._tables

    def average(self) -> None:
        """Average the model with that of another worker. Call it once for each batch, after the optimizer's step.

        It does not wait: without a model of the partner that is newer than the one before, it only publishes this one.
        """
        if self._averaging is None:
            raise BadInput("This run does not average models. Pass average=... to job.train.")
        self._averaging.average()
        self._averaged = True

    def __iter__(self) -> Iterator[Any]:
        if self._averaging is not None:
            self._averaging.begin()
        while (shard := self._source.next_shard()) is not None:
            yield from self.batches(shard)
        if not self._source.finished:
            raise LeftQueue(*self._source.left)
        if self._averaging is not None:
            self._averaging.finish()
        self.complete = True

    def batches(self, shard: HeldShard) -> Iterator[Any]:
        """Iterate over the batches of one shard, and report it."""
        self._shard, self._upto, self._digest, self._sums = shard, shard.start, 0, {}
        yield from self._batches(shard)
        self._shard = None

    def _batches(self, shard: HeldShard) -> Iterator[Any]:
        found = self._terms.range_of(shard.kind, shard.number)
        self.kind, self.epoch = shard.kind, found.epoch
        stop = self._stop_of(shard, found.stop)
        key, records = digest_key(shard.kind, found.epoch), _read(self._data[shard.kind], shard, stop)
        while self._upto < stop:
            batch = list(islice(records, self._batch_size))
            if not batch:
                why = f"the data ended at record {self._upto}, and the queue was opened with {stop} or more"
                raise PliantError(f"{why}: its length changed. Restore the data, or start the job under another name.")
            self.numbers = range(self._upto, self._upto + len(batch))
            read_before = self._upto - shard.start
            self.offsets = tuple(cut(shard.offsets, read_before, read_before + len(batch)))
            read = digest_range(key, self.numbers.start, self.numbers.stop)
            self._averaged = False
            yield batch if self._collate is None else self._collate(batch)
            if self._averaging is not None and not self._averaged:
                raise BadInput(
                    "The model was not averaged in this batch. Call run.average() after the optimizer's step."
                )
            self._upto, self._digest = self.numbers.stop, (self._digest + read) & MASK_64
            if self._upto < stop:
                self._source.advance(shard, self._upto, self._digest)
            if self._source.must_stop(shard):
                if self._upto == stop:
                    break
                return
        self._source.complete(shard, stop - shard.start, self._digest, tuple(sorted(self._sums.items())))

    def _stop_of(self, shard: HeldShard, stop: int) -> int:
        """Return the end of a shard. Of growing data, wait until this worker sees its records; the last may be short.

        Where the shard was returned meanwhile, it ends where it begins.
        """
        data = self._data[shard.kind]
        if shard.offsets:
            return shard.start + sum(map(len, shard.offsets))
        if shard.kind is ShardKind.EVALUATE or not is_growing(data):
            return stop
        pause = threading.Event()
        while not data.complete and len(data) < stop:
            if self._source.must_stop(shard):
                return shard.start
            pause.wait(LOOK_S)
        return min(stop, len(data))

    def report_exception(self, error: str) -> None:
        """Report that user code raised in the current batch."""
        if self._shard is not None:
            self._source.fail(self._shard, self._upto, self._digest, error)


def _read(data: TaskData, shard: HeldShard, stop: int) -> Iterator[Any]:
    """Read the records of a shard in sequence, in the quickest way that the data has."""
    if is_partitioned(data):
        return data.read_offsets(shard.offsets)
    if shard.offsets:
        raise BadInput("the data of this job is a queue with partitions. Pass the same queue to every worker.")
    return _read_numbers(cast("MapStyle", data), shard.start, stop)


def _read_numbers(data: MapStyle, start: int, stop: int) -> Iterator[Any]:
    if callable(read := getattr(data, "read", None)):
        return iter(read(start, stop))
    return (data[number] for number in range(start, stop))


def check_data(name: str, data: Any) -> int:
    """Return the number of records. Raises BadInput unless they can be read by number."""
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise BadInput(
            f"{name} must have a length and records by number, as open_records returns; got {type(data).__name__}"
        )
    if is_growing(data):
        raise BadInput(f"{name} grows, and an evaluation needs data of a fixed length. Open it without growing=True.")
    if not len(data):
        raise BadInput(f"{name} has no records")
    return len(data)
