"""The lock that lets donors read the state only between a boundary and the next apply (rule 3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pliant.core.data.ledger import Lineage


class StateLock:
    """The training thread allows reads at a boundary, and blocks them before it changes the state.

    Blocking waits for the readers: that is the cost of a join where sending takes longer than the step. A reader that
    hangs is ended by closing its connection.
    """

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._label: tuple[Lineage, int | Callable[[], int]] | None = None
        self._readers = 0
        self._closed = False
        self.when_blocked: Callable[[], None] = lambda: None  # called by the training thread before each change

    def allow_reads(self, lineage: Lineage, state: int | Callable[[], int]) -> None:
        """Label the state with this lineage and hash until `block_reads`. A function computes the hash on demand."""
        with self._moved:
            self._label = (lineage, state)
            self._moved.notify_all()

    def block_reads(self) -> None:
        """Return once no thread reads; new readers wait until reads are allowed again."""
        with self._moved:
            self._label = None
            while self._readers:
                self._moved.wait()
        self.when_blocked()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Allow reads again at the end of the block, which leaves the state as it was, if they were allowed before."""
        label = self._label
        yield
        if label is not None:
            self.allow_reads(*label)

    def close(self) -> None:
        """Send all waiting readers away, for good."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    @contextmanager
    def reading(self) -> Iterator[tuple[Lineage, int] | None]:
        """Wait until the state may be read, then keep it readable. Yields None after `close`."""
        with self._moved:
            self._moved.wait_for(lambda: self._label is not None or self._closed)
            label = self._label
            if label is not None:
                self._readers += 1
        try:
            yield None if label is None else (label[0], label[1]() if callable(label[1]) else label[1])
        finally:
            if label is not None:
                with self._moved:
                    self._readers -= 1
                    self._moved.notify_all()
