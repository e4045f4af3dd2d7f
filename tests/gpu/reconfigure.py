"""`make reconfigure`: let a worker join and leave hundreds of times, and check that those that stay do not grow.

The descriptors, sockets, threads and memory of the workers that stay and of the coordinator are read after each pair of
changes. On a GPU, so is the memory that all processes together use there.
"""

from __future__ import annotations

import json
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import torch

from gpu.job import running

SETTLING = ("descriptors", "sockets", "threads")
SETTLED_S = 0.4  # without a change: a figure is settled
SETTLED_MAX_S = 5.0
LOOK_S = 0.05
WARM = 4  # pairs of changes before the first figures
ROOM = {"descriptors": 2, "sockets": 2, "threads": 2, "rss_mb": 40, "gpu_mb": 64}  # what may come and go

_pause = threading.Event()  # never set


def usage(pid: int) -> dict[str, int]:
    """Return the descriptors, sockets, threads and MB of memory of a process."""
    base = Path(f"/proc/{pid}")
    targets = []
    for entry in (base / "fd").iterdir():
        try:
            targets.append(str(entry.readlink()))
        except FileNotFoundError:
            continue  # closed meanwhile
    status = dict(line.split(":", 1) for line in (base / "status").read_text().splitlines())
    return {
        "descriptors": len(targets),
        "sockets": sum(target.startswith("socket:") for target in targets),
        "threads": int(status["Threads"]),
        "rss_mb": int(status["VmRSS"].split()[0]) // 1024,
    }


def gpu_used_mb() -> int:
    """Return the GPU's memory that is in use, by all processes."""
    free, total = torch.cuda.mem_get_info()
    return (total - free) >> 20


def reconfigure(folder: Path, device: str, changes: int, limit_s: float) -> dict[str, Any]:
    """Alternate between two and three workers. Return the figures of those that stay, first, last and at most."""
    began = time.monotonic()
    pauses: dict[str, list[float]] = {"join": [], "leave": []}
    with running(folder, "reconfigure", 2, device, "--pace", "0.005") as job:
        job.until_size(2)
        staying = job.pids()
        seen: list[dict[str, dict[str, int]]] = []
        for pair in range(changes // 2):
            if time.monotonic() - began > limit_s:
                break
            pauses["join"].append(job.change(3, lambda: job.resize(3)))
            pauses["leave"].append(job.change(2, lambda: job.resize(2)))
            left = [member for member in staying if member not in job.pids()]
            for member in left:
                del staying[member]
            assert staying, "no worker of the first world is left"
            if pair >= WARM:
                seen.append({member: _settled_usage(pid, device) for member, pid in staying.items()})
            if pair % 10 == 9:
                print(f"  {2 * pair + 2} changes: {json.dumps(seen[-1]) if seen else ''}", flush=True)
        lost = sorted(job.lost())
        job.finish()
        job.result()
        audit_ok = job.is_audit_clean()
    assert seen, f"{len(pauses['leave'])} pairs of changes in {limit_s:g} s are too few: {WARM} are warm-up"
    grown = {member: growth([each[member] for each in seen]) for member in staying}
    return {
        "changes": 2 * len(pauses["leave"]),
        "join_s": _middle_and_most(pauses["join"]),
        "leave_s": _middle_and_most(pauses["leave"]),
        "lost": lost,
        "audit_ok": audit_ok,
        "grown": sorted({f"{name} of {member}" for member, found in grown.items() for name in found["grown"]}),
        "staying": grown,
    }


def _settled_usage(pid: int, device: str) -> dict[str, int]:
    """Return the usage once it stays the same for a while: old groups are disposed of in the background."""
    until, found, since = time.monotonic() + SETTLED_MAX_S, usage(pid), time.monotonic()
    while time.monotonic() < min(until, since + SETTLED_S):
        _pause.wait(LOOK_S)
        fresh = usage(pid)
        if {name: fresh[name] for name in SETTLING} != {name: found[name] for name in SETTLING}:
            since = time.monotonic()
        found = fresh
    return found | ({"gpu_mb": gpu_used_mb()} if device == "cuda" else {})


def growth(seen: list[dict[str, int]]) -> dict[str, Any]:
    """Compare the end with the beginning. A figure has grown if the lowest of the last fifth exceeds the first fifth's
    highest by more than `ROOM`."""
    fifth = max(len(seen) // 5, 1)
    first, last = seen[:fifth], seen[-fifth:]
    return {
        "first": first[0],
        "last": last[-1],
        "most": {name: max(each[name] for each in seen) for name in seen[0]},
        "grown": [
            name
            for name in seen[0]
            if min(each[name] for each in last) > max(each[name] for each in first) + ROOM[name]
        ],
    }


def _middle_and_most(values: list[float]) -> list[float]:
    return [round(statistics.median(values), 3), max(values)] if values else []


def broken_by(found: dict[str, Any]) -> list[str]:
    """Return what a run must not show."""
    wrong = [f"{name} grew" for name in found["grown"]] + [f"{member} was lost" for member in found["lost"]]
    return wrong + ([] if found["audit_ok"] else ["the audit is not clean"])


@click.command()
@click.option("--changes", default=500, show_default=True, help="Number of joins and leaves together.")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cuda", "cpu"]))
@click.option("--limit-s", default=3600.0, show_default=True, help="Begin no further change after this time.")
def main(changes: int, device: str, limit_s: float) -> None:
    """Run it, and print one JSON object at the end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    folder = Path(tempfile.mkdtemp(prefix="pliant-reconfigure-"))
    began = time.monotonic()
    found = reconfigure(folder, device, changes, limit_s)
    wrong = broken_by(found)
    if wrong:
        print(f"the files of the run are in {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - began, 1)
    print(json.dumps({"ok": not wrong, "broken": wrong, **found, "seconds": seconds}), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
