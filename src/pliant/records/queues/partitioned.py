"""Records of a queue with partitions, such as Kafka's topics or Redis streams, for a task queue that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pliant.core.tasks.partitions import OffsetRange
from pliant.errors import BadInput


class RecordQueue(Protocol):
    """A queue of your own. Each record has an offset in its partition, one higher than that of the record before it.

    Every worker has a queue object of its own. `partitions` and `is_complete` are called in another thread than `read`.
    Raise OSError for a failure that may pass.
    """

    def partitions(self) -> Mapping[str, tuple[int, int]]:
        """Return, by name, the first offset that the partition keeps, and the offset after its last record."""

    def read(self, partition: str, start: int, stop: int) -> Iterable[tuple[int, Any]]:
        """Return the records from offset `start` to before `stop`, each with its offset."""

    def is_complete(self) -> bool:
        """Return whether no more records will come."""


class QueueRecords:
    """The records of a queue, as data for `job.train` and `job.predict`. Workers take ranges of offsets in turn.

    A job begins with the oldest records that the queue keeps. `transform` is called with each record.
    """

    def __init__(self, queue: RecordQueue, transform: Callable[[Any], Any] | None = None) -> None:
        self._queue, self._transform = queue, transform
        self.complete = False
        self.partitions: tuple[OffsetRange, ...] = ()

    def grow(self) -> None:
        """Look for new records. Raises BadInput if a partition has lost its newest ones."""
        complete = self._queue.is_complete()  # first, so that records before the end are seen
        found = tuple(OffsetRange(name, *offsets) for name, offsets in sorted(self._queue.partitions().items()))
        stops = {each.partition: each.stop for each in found}
        for each in self.partitions:
            if (stop := stops.get(each.partition, 0)) < each.stop:
                raise BadInput(
                    f"Partition {each.partition} had records up to offset {each.stop - 1}, and now ends before offset "
                    f"{stop}. It was deleted or set back. Start a job of its own for the new records."
                )
        self.partitions, self.complete = found, complete

    def __len__(self) -> int:
        """Return the number of records that the queue had at the last look."""
        return sum(map(len, self.partitions))

    def read_offsets(self, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
        """Read ranges of offsets in turn. Raises BadInput if the queue does not have all of them any more."""
        for each in ranges:
            wanted = each.start
            for offset, record in self._queue.read(each.partition, each.start, each.stop):
                if offset != wanted:
                    break
                wanted += 1
                yield record if self._transform is None else self._transform(record)
            if wanted != each.stop:
                raise BadInput(self._missing(OffsetRange(each.partition, wanted, each.stop)))

    def _missing(self, lost: OffsetRange) -> str:
        first, stop = self._queue.partitions().get(lost.partition, (0, 0))
        kept = f"offsets {first} to {stop - 1}" if stop > first else "none"
        return (
            f"The queue does not have all of {lost} any more; it has {kept}. Keep records longer than jobs need them."
        )
