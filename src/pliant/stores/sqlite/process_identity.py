"""Whether a process that wrote its name down still runs. From /proc; where there is none, nobody can tell."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessIdentity", "has_exited", "current_process"]

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One life of one process. A process id comes again, so its start counts too, and the boot it counts from.

    `pids` names the space that process ids are counted in: two containers have the same boot, and each a
    process 1. An empty text or a 0 stands for what could not be learned.
    """

    boot: str
    pids: str
    pid: int
    started: int


def current_process() -> ProcessIdentity:
    """Call when writing down who holds something."""
    pid = os.getpid()
    return ProcessIdentity(_boot(), _pids(), pid, _started(pid) or 0)


def has_exited(life: ProcessIdentity) -> bool:
    """Call to learn that a process is surely gone; False where it runs or where that cannot be told."""
    boot = _boot()
    if not boot or not life.boot:
        return False
    if life.boot != boot:
        return True
    if not life.pids or life.pids != _pids() or not life.started:
        return False  # it may run where we cannot see it
    return _started(life.pid) != life.started


def _boot() -> str:
    return _read(_PROC / "sys/kernel/random/boot_id").strip()


def _pids() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started, in ticks since the boot; None if there is none, or a dead one not yet buried."""
    # The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
