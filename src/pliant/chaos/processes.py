"""The job's processes on this machine, verified before they are touched.

The kernel reuses process ids. So a process is identified by its id and its start time, and a signal goes through a
pidfd that was opened before both were compared. The start time is read in clock ticks, because
`psutil.Process.create_time` depends on the wall clock: after a clock step, two processes would compute different
values.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class ProcessRef:
    """A process, by id and start time in clock ticks since boot."""

    pid: int
    start_ticks: int


def find_member(pid: int, job: str, member: str, mark: str, runner: int) -> ProcessRef | None:
    """Return the process if it is the worker of that member; None if it is not, or runs on another machine.

    The environment of a worker names its job and member. A worker forked from a template shows the environment of the
    template instead. It maps a file named `mark` plus the member's name, and descends from `runner`, the job's
    `pliant run` on this machine.
    """
    found = _process(pid)
    if found is None:
        return None
    environment = _environ(pid)
    named = environment.get("PLIANT_JOB") == job and environment.get("PLIANT_MEMBER") == member
    ours = named or (runner in _ancestors(pid) and _maps(pid, f"/memfd:{mark}{member[:200]} (deleted)"))
    return found if ours and is_alive(found) else None


def find_coordinator(pid: int, home: Path) -> ProcessRef | None:
    """Return the process if it is the coordinator that `pliant run` started for the job in that folder."""
    found = _process(pid)
    ours = found is not None and _environ(pid).get("PLIANT_HOME") == str(home.absolute())
    return found if found is not None and ours and is_alive(found) else None


def current_process() -> ProcessRef | None:
    return _process(os.getpid())


def is_alive(process: ProcessRef) -> bool:
    """Return whether the process still runs and its id was not reused."""
    return _start_ticks(process.pid) == process.start_ticks


def send_signal(process: ProcessRef, number: signal.Signals) -> bool:
    """Send a signal to this process and to no other; return False if it has ended."""
    try:
        with _open_pidfd(process) as pidfd:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


class SocketAccess:
    """Duplicates sockets of another process. Closing a duplicate leaves the original open."""

    def __init__(self, pidfd: int) -> None:
        self._pidfd = pidfd

    @contextmanager
    def socket(self, fd: int) -> Iterator[socket.socket]:
        """Yield a duplicate of that descriptor. Raise OSError if it is closed, is no socket, or access is denied."""
        duplicate = _libc.syscall(_PIDFD_GETFD, self._pidfd, fd, 0)
        if duplicate < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        try:
            found = socket.socket(fileno=duplicate)
        except OSError:
            os.close(duplicate)
            raise
        with found:
            yield found


@contextmanager
def open_sockets(process: ProcessRef) -> Iterator[SocketAccess]:
    """Yield access to the sockets of a process. Raise ProcessLookupError if it has ended.

    Root may do this. Other users may if `kernel.yama.ptrace_scope` is 0 and the process is theirs.
    """
    with _open_pidfd(process) as pidfd:
        yield SocketAccess(pidfd)


@contextmanager
def _open_pidfd(process: ProcessRef) -> Iterator[int]:
    pidfd = os.pidfd_open(process.pid)
    try:
        if not is_alive(process):
            raise ProcessLookupError(errno.ESRCH, "the process has ended")
        yield pidfd
    finally:
        os.close(pidfd)


def _process(pid: int) -> ProcessRef | None:
    start = _start_ticks(pid) if pid > 1 else None
    return None if start is None else ProcessRef(pid, start)


def _start_ticks(pid: int) -> int | None:
    """Return the start time; None if there is no such process or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _ancestors(pid: int) -> set[int]:
    with suppress(psutil.Error):
        return {parent.pid for parent in psutil.Process(pid).parents()}
    return set()


def _environ(pid: int) -> dict[str, str]:
    """Return the environment; empty if the process has ended or belongs to another user."""
    with suppress(psutil.Error):
        return psutil.Process(pid).environ()
    return {}


def _maps(pid: int, name: str) -> bool:
    # psutil reads smaps, which takes far longer than maps for a worker that has imported torch.
    try:
        return name in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
