"""State between two processes of one machine: the donor copies it where the joiner can read it, such as on a GPU.

The donor copies its state at once and trains on. The joiner reads the copy, and then asks the donor to release it. A
joiner that took too long is told that the copy is gone, and discards what it read. Nothing passes through a socket but
the tree, the label and the handle of the copy.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pliant.core.data.ledger import LedgerLine

HELD_S = 30.0  # a copy that no joiner released is dropped after this time, at the next step


class SharedCopy(Protocol):
    """A copy of a state that other processes of this machine can read until it is closed."""

    @property
    def handle(self) -> bytes:
        """The name under which they open it."""

    def close(self) -> None:
        """Release the memory."""


class SharedMemory(Protocol):
    """A kind of memory in which processes of one machine share copies. The framework's adapter provides it."""

    def copy(self, arrays: Sequence[Any]) -> SharedCopy | None:
        """Copy the arrays now, one after another; None if there is no room. Any thread may call it."""

    def read(self, handle: bytes, nbytes: Sequence[int]) -> tuple[Any, ...]:
        """Return the contents of the arrays of another process's copy. Raises OSError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class SharedRequest:
    """A request for a shared copy of the state, by a process of this machine."""

    machine: str


@dataclass(frozen=True, slots=True)
class SharedPreface:
    """The donor's ledger lines that are not durable yet, the tree, and the copy: its handle and its id."""

    lines: tuple[LedgerLine, ...]
    tree: bytes
    handle: bytes
    copy_id: str


class HeldCopies:
    """The copies that a donor holds for joiners. Any thread may hold and release; the training thread drops them."""

    def __init__(self, held_s: float = HELD_S, now: Callable[[], float] = time.monotonic) -> None:
        self._held_s = held_s
        self._now = now
        self._lock = threading.Lock()
        self._copies: dict[str, tuple[SharedCopy, float]] = {}  # with the time until which it is held
        self._released: list[SharedCopy] = []

    def hold(self, copy: SharedCopy) -> str:
        """Hold a copy until it is released, or for a limited time. Return the id to release it with."""
        copy_id = secrets.token_hex(8)
        with self._lock:
            self._copies[copy_id] = (copy, self._now() + self._held_s)
        return copy_id

    def release(self, copy_id: str) -> bool:
        """Release a copy. Return whether it was still held: if not, what was read of it is worth nothing."""
        with self._lock:
            held = self._copies.pop(copy_id, None)
            if held is not None:
                self._released.append(held[0])
        return held is not None

    def drop(self) -> None:
        """Free the copies that were released, or not in time. The training thread calls it between two steps."""
        if not self._copies and not self._released:
            return
        now = self._now()
        with self._lock:
            late = [copy_id for copy_id, (_, until) in self._copies.items() if now >= until]
            dropped = [*self._released, *(self._copies.pop(copy_id)[0] for copy_id in late)]
            self._released.clear()
        for copy in dropped:
            copy.close()


def this_machine() -> str:
    """Return a name that processes of this machine share, and those of no other one; empty if there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
