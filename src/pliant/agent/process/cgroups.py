"""The number of CPUs that this process may use: those it is bound to, or fewer by the quota of its control group.

A container usually sees all CPUs of its machine, and has a quota for some of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path("/")


def usable_cpus(root: Path = ROOT) -> int:
    """Return the number of CPUs for workers, at least 1. A quota of 1.5 CPUs counts as 2."""
    bound = len(os.sched_getaffinity(0))
    quota = cpu_quota(root)
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs that the control groups of this process grant, by version 1 or 2; None if there is no limit."""
    quotas = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        names = controllers.split(",")
        if not controllers:
            quotas += _along(root / "sys/fs/cgroup", group, _quota_v2)
        elif "cpu" in names:
            quotas += _along(_mount_v1(root, controllers), group, _quota_v1)
    return min(quotas, default=None)


def _mount_v1(root: Path, controllers: str) -> Path:
    """Return the hierarchy of the `cpu` controller, which may share one with others such as `cpuacct`."""
    folder = root / "sys/fs/cgroup"
    return next((path for path in (folder / controllers, folder / "cpu") if path.is_dir()), folder / "cpu")


def _along(mount: Path, group: str, quota_of: Callable[[Path], float | None]) -> list[float]:
    """Return the quotas of a group and of those above it. In a container the mount itself is the group."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    folders = [mount.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]
    return [quota for folder in folders if (quota := quota_of(folder)) is not None]


def _quota_v2(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    return _ratio(*fields) if len(fields) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip())


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
