"""SIGTERM, heard at once: also while the training thread is inside a collective and runs no Python code."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class TermNotice:
    """While it is in use, SIGTERM calls `heard` on a thread of its own, and that is all. In the main thread only."""

    def __init__(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._handler_before = signal.signal(signal.SIGTERM, _nothing)
        self._thread = threading.Thread(target=self._listen, name="pliant-notice", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while numbers := os.read(self._read, 64):
            if signal.SIGTERM in numbers:
                self._heard()

    def close(self) -> None:
        """Put everything back."""
        signal.signal(signal.SIGTERM, self._handler_before)
        signal.set_wakeup_fd(self._wakeup_before, warn_on_full_buffer=False)
        os.close(self._write)
        self._thread.join(1.0)
        os.close(self._read)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A handler must be there for the number to be written."""
