"""The control groups of the nodes: a group for each node, below one for the lab, removed after it.

Both versions of control groups are supported. Version 1 has a tree for each controller.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "pliant-kube-"
_OURS = re.compile(rf"{PREFIX}(\d+)")


def is_unified() -> bool:
    """Return whether this machine has version 2 alone."""
    return (MOUNT / "cgroup.controllers").exists()


def trees() -> list[Path]:
    """The roots of all hierarchies."""
    if is_unified():
        return [MOUNT]
    return [path for path in sorted(MOUNT.iterdir()) if path.is_dir() and not path.is_symlink()]


def make(group: str) -> None:
    """Make a group, `lab/node`, in every hierarchy, with the controllers that a kubelet needs."""
    for tree in trees():
        folder = tree
        for part in group.split("/"):
            _delegate(folder)
            folder = folder / part
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # empty in a new group of version 1: no process may enter
                if not is_unified() and (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())
        _delegate(folder)


def remove(group: str) -> bool:
    """Remove a group with all below it, as far as no process is in it. Return whether nothing is left."""
    for tree in trees():
        folder = tree / group
        if folder.is_dir():
            for path in sorted((p for p in folder.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                with suppress(OSError):
                    path.rmdir()
            with suppress(OSError):
                folder.rmdir()
    return not any((tree / group).exists() for tree in trees())


def remove_abandoned() -> None:
    """Remove the groups of labs whose process has ended without removing them."""
    for tree in trees():
        for path in tree.glob(f"{PREFIX}*"):
            found = _OURS.fullmatch(path.name)
            if found is not None and not Path(f"/proc/{found.group(1)}").exists():
                remove(path.name)


def _delegate(folder: Path) -> None:
    """Let the children of a group of version 2 have controllers."""
    control = folder / "cgroup.subtree_control"
    if is_unified():
        for controller in (folder / "cgroup.controllers").read_text().split():
            with suppress(OSError):  # some cannot be delegated; the kubelet names one that it misses
                control.write_text(f"+{controller}")
