"""Processes that end with their parent, and processes that clean up after it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import TracebackType
from typing import Self

_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, however that ends. Call it in the child, with the parent's pid."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


class CleanupProcess:
    """A child that outlives this process, as a context manager: `python -m MODULE FD ARGS`.

    FD is the read end of a pipe whose write end only this process holds. The pipe closes however this process ends,
    `kill -9` included; the child cleans up then.
    """

    def __init__(self, module: str, *args: str, end_s: float) -> None:
        self._end_s = end_s
        theirs, self._ours = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs), *args],
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # signals from the terminal are not for it
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self._ours)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(self._end_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    def write(self, line: str) -> None:
        """Send a line to the child. Raises BrokenPipeError if it has ended."""
        os.write(self._ours, line.encode())


def ignore_stop_signals() -> None:
    """Keep this process running when a user stops its parent. Unlike SIG_IGN, its children do not inherit it."""
    for each in _STOP_SIGNALS:
        signal.signal(each, lambda *_: None)
