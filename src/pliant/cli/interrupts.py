"""Ctrl-C while the program is still being imported: it ends the process without a traceback."""

from __future__ import annotations

import signal
import threading


class DefaultInterrupts:
    """For a block, let SIGINT end the process at once. Nothing is started yet that would have to be cleaned up."""

    def __enter__(self) -> None:
        self._before = None
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is signal.default_int_handler:
                signal.signal(signal.SIGINT, signal.SIG_DFL)

    def __exit__(self, *_: object) -> None:
        if self._before is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._before)
