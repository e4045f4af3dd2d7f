"""When the state may be read by others: between a boundary and the next apply, and never in between (rule 3)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pliant.core.data.ledger import Lineage


class StateLock:
    """The training thread opens it at a boundary and shuts it before it changes the state; donors read in between.

    Shutting waits for whoever reads: that is what a join costs where sending takes longer than the step. A reader that
    cannot go on is cut off by whoever closes its connection.
    """

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._label: tuple[Lineage, int | Callable[[], int]] | None = None
        self._readers = 0
        self._closed = False

    def allow_reads(self, lineage: Lineage, state: int | Callable[[], int]) -> None:
        """The state is that of this lineage, with this hash, until `shut`. A function gives it to whoever asks."""
        with self._moved:
            self._label = (lineage, state)
            self._moved.notify_all()

    def block_reads(self) -> None:
        """Returns once nobody reads; nobody can until it is opened again."""
        with self._moved:
            self._label = None
            self._moved.wait_for(lambda: not self._readers)

    def close(self) -> None:
        """For good: whoever waits is sent away."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    @contextmanager
    def reading(self) -> Iterator[tuple[Lineage, int] | None]:
        """Waits until the state can be read, then keeps it so. None: there will be none any more."""
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
