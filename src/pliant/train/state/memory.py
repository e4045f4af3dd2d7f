"""Memory for copies of large states."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

Memory: TypeAlias = mmap.mmap | bytearray

HUGE_PAGE_BYTES = 2 << 20


def allocate(nbytes: int) -> Memory:
    """Allocate memory that returns to the system as soon as it is unused.

    Fresh memory costs five times as much as the copy into it, with a page fault for every 4 KiB. Huge pages reduce that
    to one for every 2 MiB.
    """
    if nbytes < HUGE_PAGE_BYTES:
        return bytearray(nbytes)
    room = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # without huge pages it takes longer
        room.madvise(mmap.MADV_HUGEPAGE)
    return room


class PreparedMemory:
    """Memory of some sizes, allocated and written to in advance. One thread prepares it, others take it."""

    def __init__(self) -> None:
        self._pieces: dict[int, list[Memory]] = {}

    def prepare(self, sizes: Sequence[int], stop: threading.Event) -> None:
        """Drop what is left, and allocate a piece of each size, until `stop` is set."""
        self._pieces = {}
        for nbytes in sizes:
            if nbytes and not stop.is_set():
                piece = allocate(nbytes)
                view = memoryview(piece)
                for start in range(0, nbytes, HUGE_PAGE_BYTES):  # other threads may run in between
                    pages = view[start : start + HUGE_PAGE_BYTES : mmap.PAGESIZE]
                    pages[:] = bytes(len(pages))  # the system gives memory when it is written to
                self._pieces.setdefault(nbytes, []).append(piece)

    def take(self, nbytes: int) -> Memory:
        """Return a prepared piece of that size, or a new one."""
        pieces = self._pieces.get(nbytes)
        return pieces.pop() if pieces else allocate(nbytes)

    def drop(self) -> None:
        """Drop what is left."""
        self._pieces = {}
