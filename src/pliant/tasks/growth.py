"""Growing data: a thread of each worker looks for new records, and reports them to the queue."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

from pliant.core.tasks.partitions import OffsetRange
from pliant.errors import PliantError

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks for new records


class GrowingData(Protocol):
    """Data by number, to which records are added. Records keep their numbers, on all workers alike."""

    complete: bool
    """True once `grow` has found the last records."""

    def grow(self) -> None:
        """Take in records that were added. It is called in a thread of its own, while others read."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...


class PartitionedData(Protocol):
    """Growing data whose records have offsets in partitions. The coordinator numbers them as they come."""

    complete: bool
    partitions: tuple[OffsetRange, ...]
    """The offsets that each partition has, as `grow` found them."""

    def grow(self) -> None:
        """As of growing data."""

    def read_offsets(self, ranges: Sequence[OffsetRange]) -> Iterator[Any]:
        """Read ranges of offsets in turn."""

    def __len__(self) -> int: ...


class GrowthReport(Protocol):
    """The queue, as far as growing data is concerned."""

    def grow(self, records: int, *, complete: bool, error: str = "", partitions: tuple[OffsetRange, ...] = ()) -> None:
        """Report the records, or the offsets in partitions, that this worker sees."""


def is_growing(data: object) -> TypeGuard[GrowingData | PartitionedData]:
    return callable(getattr(data, "grow", None)) and hasattr(data, "complete")


def is_partitioned(data: object) -> TypeGuard[PartitionedData]:
    return is_growing(data) and hasattr(data, "read_offsets")


class _Seen(NamedTuple):
    records: int
    complete: bool
    partitions: tuple[OffsetRange, ...] = ()


class GrowthWatch:
    """Looks for new records until they are complete, or until it is closed."""

    def __init__(self, data: GrowingData | PartitionedData, queue: GrowthReport) -> None:
        self._data, self._queue = data, queue
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pliant-growth", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        reported = None
        while not self._closed.is_set():
            try:
                self._data.grow()
            except PliantError as error:
                self._queue.grow(0, complete=False, error=error.why)
                return
            except OSError as error:
                log.warning("new records could not be looked for: %s; trying again", error)
            found = self._seen()
            # The coordinator takes offsets of a queue by and by, so they are reported again and again.
            if found != reported or found.partitions:
                self._queue.grow(found.records, complete=found.complete, partitions=found.partitions)
                reported = found
            if found.complete and not found.partitions:
                return
            self._closed.wait(LOOK_S)

    def _seen(self) -> _Seen:
        partitions = self._data.partitions if is_partitioned(self._data) else ()
        return _Seen(0 if partitions else len(self._data), self._data.complete, partitions)
