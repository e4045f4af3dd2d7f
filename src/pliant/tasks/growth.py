"""Growing data: a thread of each worker looks for new records, and reports them to the queue."""

from __future__ import annotations

import logging
import threading
from typing import Any, Protocol, TypeGuard

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


class GrowthReport(Protocol):
    """The queue, as far as growing data is concerned."""

    def grow(self, records: int, *, complete: bool, error: str = "") -> None:
        """Report the records that this worker sees."""


def is_growing(data: object) -> TypeGuard[GrowingData]:
    return callable(getattr(data, "grow", None)) and hasattr(data, "complete")


class GrowthWatch:
    """Looks for new records until they are complete, or until it is closed."""

    def __init__(self, data: GrowingData, queue: GrowthReport) -> None:
        self._data, self._queue = data, queue
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pliant-growth", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        reported = (-1, False)
        while not self._closed.is_set():
            try:
                self._data.grow()
            except PliantError as error:
                self._queue.grow(len(self._data), complete=False, error=error.why)
                return
            except OSError as error:
                log.warning("new records could not be looked for: %s; trying again", error)
            found = (len(self._data), self._data.complete)
            if found != reported:
                self._queue.grow(found[0], complete=found[1])
                reported = found
            if found[1]:
                return
            self._closed.wait(LOOK_S)
