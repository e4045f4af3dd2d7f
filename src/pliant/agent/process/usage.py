"""What workers use of the machine, from /proc, and whether they are stuck.

A worker's usage is that of its process group and of everything that descends from it. One look at /proc is for all
workers of an agent, however many there are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pliant import settings

STALL_S = settings.STALL_S
WINDOW_S = 10.0  # over so long the share of a core is taken: clocks count in hundredths of a second
IDLE = 0.01  # less than this share of a core is no work: threads that only look whether there is some use as much

_PROC = Path("/proc")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a worker and all it started. Memory that several of its processes share is counted for each of them."""

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
    cpu_s: float  # its own, and of the children it has buried
    threads: int
    rss_bytes: int


def usages(pids: Mapping[str, int], proc: Path = _PROC) -> dict[str, Usage]:
    """Of all workers, by name, in one look. A worker that is gone has none."""
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
    """Of one worker; for several, `usages` looks once."""
    return usages({"": pid}, proc).get("")


def _owner(pid: int, found: Mapping[int, _Process], known: dict[int, str | None]) -> str | None:
    """The worker that a process descends from. What is learned on the way up is kept in `known`."""
    way: list[int] = []
    while pid not in known:
        way.append(pid)
        known[pid] = None  # parents that changed while we read must not lead us in a circle
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
                except (OSError, ValueError, IndexError):
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


# --------------------------------------------------------------------------------------------------------------- stuck


@dataclass(frozen=True, slots=True)
class Sample:
    """What a worker had used and written at a moment of the agent's own clock."""

    at: float
    cpu_s: float
    written: int
    state: str = "S"


@dataclass(frozen=True, slots=True)
class Progress:
    """What is remembered of a worker's samples. Fold them with `progressed`."""

    moved_at: float  # when it last computed or wrote something, as far as we saw
    stopped_at: float | None  # since when it is stopped (SIGSTOP); None: it is not
    window: Sample  # what is compared with
    state: str


def progressed(before: Progress | None, sample: Sample) -> Progress:
    """Call with every sample of a worker, in order. The first counts as movement: it has just been started."""
    stopped = before.stopped_at if before is not None else None
    stopped = (sample.at if stopped is None else stopped) if sample.state == "T" else None
    if before is None:
        return Progress(sample.at, stopped, sample, sample.state)
    window = before.window
    elapsed_s = sample.at - window.at
    used = sample.cpu_s - window.cpu_s
    # CPU time falls when a process that nobody buried is gone: something ended, so something happened.
    moved = sample.written != window.written or used < 0 or used >= IDLE * max(WINDOW_S, elapsed_s)
    if moved:
        return Progress(sample.at, stopped, sample, sample.state)
    if elapsed_s >= WINDOW_S:
        window = sample
    return replace(before, stopped_at=stopped, window=window, state=sample.state)


def stuck(workers: Mapping[str, Progress], now: float, stall_s: float = STALL_S, *, all_here: bool = True) -> str:
    """Why these workers of one agent are stuck, in a sentence; empty if they are not.

    They are if none of them has computed or written anything for so long: one alone may wait for others, all do not,
    unless there are more of them on other machines (`all_here` says that there are not).
    A worker that was stopped that long is, whatever the others do: those that wait for it may be busy waiting.
    While a debugger holds one of them they are not: somebody is looking already.
    """
    if any(each.state == "t" for each in workers.values()):
        return ""
    still = {name: now - each.stopped_at for name, each in workers.items() if each.stopped_at is not None}
    held = {name: for_s for name, for_s in still.items() if for_s >= stall_s}
    if held:
        return "; ".join(f"{name} has been stopped (SIGSTOP) for {for_s:.0f} s" for name, for_s in held.items())
    if not workers or not all_here:
        return ""
    quiet_s = now - max(each.moved_at for each in workers.values())
    if quiet_s < stall_s:
        return ""
    who = "the worker here has neither" if len(workers) == 1 else f"none of the {len(workers)} workers here has"
    verb = "computed nor written" if len(workers) == 1 else "computed or written"
    states = "".join(f"; {name} {_STATES[each.state]}" for name, each in workers.items() if each.state in _STATES)
    return f"{who} {verb} anything for {quiet_s:.0f} s{states}"


_STATES = {
    "T": "is stopped (SIGSTOP)",
    "D": "waits for a disk or a device",
    "Z": "has ended and is not buried",
}
