"""Another process's sockets under numbers of ours: for root, or for its user where the system lets one trace others."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from pliant.chaos.processes import Process, is_alive

_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


class Reach:
    """Into one process. What is closed here stays open there."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    @contextmanager
    def socket(self, handle: int) -> Iterator[socket.socket]:
        """The socket of that number there. OSError if there is none, or it is none, or it is not allowed."""
        ours = _libc.syscall(_PIDFD_GETFD, self._pidfd, handle, 0)
        if ours < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        with _owned(ours) as found:
            yield found


@contextmanager
def into(process: Process) -> Iterator[Reach]:
    """For a block. OSError if it has ended."""
    pidfd = os.pidfd_open(process.pid)
    try:
        if not is_alive(process):
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        yield Reach(pidfd)
    finally:
        os.close(pidfd)


@contextmanager
def _owned(handle: int) -> Iterator[socket.socket]:
    try:
        found = socket.socket(fileno=handle)
    except OSError:
        os.close(handle)
        raise
    with found:
        yield found
