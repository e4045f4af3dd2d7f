"""The CPU time and memory of workers, from /proc.

A worker's usage is that of its process group and of all its descendants. /proc is read once for all workers of an
agent. psutil would open several files of every process of the machine, and does not give process groups.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """The usage of a worker and its descendants. Shared memory counts for each process."""

    cpu_s: float
    rss_bytes: int
    threads: int
    processes: int
    state: str  # of the worker's own process: R, S, D (waits for a disk), T (stopped), Z (ended) ...


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    state: str
    parent: int
    group: int
    cpu_s: float  # its own, and of the children it has waited for
    threads: int
    rss_bytes: int


def usages(pids: Mapping[str, int], proc: Path = _PROC) -> dict[str, Usage]:
    """Return the usage of all workers by name. A worker that is gone has none."""
    found = _processes(proc)
    owners = {pid: name for name, pid in pids.items() if pid in found}
    mine: dict[str, list[_Process]] = {name: [] for name in owners.values()}
    known: dict[int, str | None] = dict(owners)
    for process in found.values():
        name = owners[process.group] if process.group in owners else _owner(process.pid, found, known)
        if name is not None:
            mine[name].append(process)
    return {name: _sum(found[pids[name]], group) for name, group in mine.items()}


def usage(pid: int, proc: Path = _PROC) -> Usage | None:
    """Return the usage of one worker; use `usages` for several."""
    return usages({"": pid}, proc).get("")


def is_stopped(pid: int, proc: Path = _PROC) -> bool:
    """Return whether a process is stopped (SIGSTOP). Cheap enough to ask several times a second."""
    try:
        return _parsed((proc / str(pid) / "stat").read_bytes()).state == "T"
    except (OSError, ValueError, IndexError, OverflowError):
        return False  # gone


def _owner(pid: int, found: Mapping[int, _Process], known: dict[int, str | None]) -> str | None:
    """Return the worker that a process descends from. `known` caches the answers."""
    way: list[int] = []
    while pid not in known:
        way.append(pid)
        known[pid] = None  # parents that changed during the reading must not form a circle
        parent = found[pid].parent
        if parent not in found:
            break
        pid = parent
    owner = known.get(pid)
    known.update(dict.fromkeys(way, owner))
    return owner


def _sum(worker: _Process, group: list[_Process]) -> Usage:
    return Usage(
        cpu_s=sum(each.cpu_s for each in group),
        rss_bytes=sum(each.rss_bytes for each in group),
        threads=sum(each.threads for each in group),
        processes=len(group),
        state=worker.state,
    )


def _processes(proc: Path) -> dict[int, _Process]:
    found = {}
    with os.scandir(proc) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                try:
                    with open(f"{proc}/{entry.name}/stat", "rb") as file:  # noqa: PTH123  # thousands of times
                        process = _parsed(file.read(1024))
                except (OSError, ValueError, IndexError, OverflowError):
                    continue  # gone meanwhile
                found[process.pid] = process
    return found


def _parsed(text: bytes) -> _Process:
    """`proc(5)`; a program's name is in brackets and may hold anything, brackets too."""
    pid, _, rest = text.partition(b" (")
    fields = rest.rpartition(b") ")[2].split()
    return _Process(
        pid=int(pid),
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        cpu_s=sum(map(int, fields[11:15])) * _TICK_S,
        threads=int(fields[17]),
        rss_bytes=int(fields[21]) * _PAGE,
    )
