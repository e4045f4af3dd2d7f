"""Identify a process across restarts, to detect that the holder of a store has exited.

Reads /proc. Without it, `has_exited` is always False. psutil does not serve here: its start time of a process is a
wall-clock time that moves when the clock is set, and two processes must agree on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessIdentity", "current_process", "has_exited"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One run of one process. Process ids are reused, so the start time and the boot belong to it.

    `pid_namespace` tells containers apart, which share a boot and each have a process 1. An empty text or a 0 stands
    for a value that could not be read.
    """

    boot_id: str
    pid_namespace: str
    pid: int
    start_ticks: int


def current_process() -> ProcessIdentity:
    pid = os.getpid()
    return ProcessIdentity(_boot_id(), _pid_namespace(), pid, _start_ticks(pid) or 0)


def has_exited(process: ProcessIdentity) -> bool:
    """Return True if the process has certainly exited; False if it runs, or if that cannot be determined."""
    boot_id = _boot_id()
    if not boot_id or process.boot_id != boot_id:
        return False  # it may run on another machine that shares the file
    if not process.pid_namespace or process.pid_namespace != _pid_namespace() or not process.start_ticks:
        return False  # it may run in a namespace that this process cannot see
    return _start_ticks(process.pid) != process.start_ticks


def _boot_id() -> str:
    return _read(_PROC / "sys/kernel/random/boot_id").strip()


def _pid_namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot; None for no process, and for a zombie."""
    # The second field is the program's name in parentheses, which may itself contain spaces and parentheses.
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
