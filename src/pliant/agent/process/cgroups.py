"""The limits of this process's control groups: CPUs and memory.

A container usually sees all CPUs and the whole memory of its machine, and may use some of them.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from pathlib import Path

ROOT = Path("/")
UNLIMITED = 1 << 60


def usable_cpus(root: Path = ROOT) -> int:
    """Return the number of CPUs for workers, at least 1. A quota of 1.5 CPUs counts as 2."""
    bound = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs that the control groups of this process grant, by version 1 or 2; None if there is no limit."""
    quotas = [_quota(folder) for folder in _folders(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that the control groups of this process grant; None if there is no limit."""
    limits = [_memory(folder) for folder in _folders(root, "memory")]
    return min((limit for limit in limits if limit is not None), default=None)


def memory_kills(root: Path = ROOT) -> int:
    """Return how many processes in the control group of this process the kernel has killed for lack of memory."""
    for folder in reversed(_folders(root, "memory")):
        for name in ("memory.events", "memory.oom_control"):
            for line in _read(folder / name).splitlines():
                key, _, count = line.partition(" ")
                if key == "oom_kill" and count.isdecimal():
                    return int(count)
    return 0


class MemoryKills:
    """The kernel's kills for lack of memory that no end of a worker explains yet. Safe from any thread."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._seen = memory_kills(root)

    def explain(self, code: int) -> str:
        """Return why a process with this exit status was killed; empty if the kernel killed none for lack of memory.

        If the process ended otherwise, the kernel killed one of its children, such as a data worker.
        """
        with self._lock:
            kills = memory_kills(self._root)
            if code != -signal.SIGKILL or kills <= self._seen:
                self._seen = kills
                return ""
            self._seen += 1
        limit = memory_limit(self._root)
        allowed = "of its machine" if limit is None else f"(limit {limit / 2**20:,.0f} MiB)"
        return f"out of memory {allowed}"


def _folders(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and of those above it, the topmost first, by version 1 or 2.

    In a container the mount itself is the group.
    """
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mount = _mount_v1(root, controllers, controller) if controllers else root / "sys/fs/cgroup"
        parts = [part for part in group.split("/") if part not in ("", "..")]
        found += [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return found


def _mount_v1(root: Path, controllers: str, controller: str) -> Path:
    """Return the hierarchy of a controller, which may share one with others, as `cpu` does with `cpuacct`."""
    folder = root / "sys/fs/cgroup"
    return next((path for path in (folder / controllers, folder / controller) if path.is_dir()), folder / controller)


def _quota(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    if len(fields) == 2:
        return _ratio(*fields)
    return _ratio(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())


def _memory(folder: Path) -> int | None:
    """Return a group's limit. Version 1 has a huge number where there is none."""
    texts = [_read(folder / name).strip() for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(text) for text in texts if text.isdecimal() and int(text) < UNLIMITED]
    return min(limits, default=None)


def _ratio(quota: str, period: str) -> float | None:
    """Return quota divided by period; None for `max`, for -1, and for a file that is not there."""
    if not (quota.isdecimal() and period.isdecimal()) or not int(period):
        return None
    return int(quota) / int(period) or None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
