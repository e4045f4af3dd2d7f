"""Measure how long a worker waits while parameter servers come and go: 2, then 4, then 1, with real processes.

One worker pulls and pushes batches of Zipf ids without a pause. Agents with servers join, and are drained. Prints the
time of each change and the longest batch in it, and ends with one JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from agents import Agents, until

from pliant.core.supervisor.state import is_server

WORKER = Path(__file__).with_name("resharding_worker.py")
QUIET_S = 10.0  # the time of the undisturbed batches


def has(agents: Agents, servers: int) -> bool:
    """Return whether so many servers have every row, with its copies."""
    status = agents.status()
    if status is None or not status.tables_whole:
        return False
    return sum(is_server(each.id) for each in status.members) == servers


def batches_of(agents: Agents, servers: int, change: Callable[[], None]) -> tuple[float, list[float]]:
    """Make a change, wait until so many servers have all rows, and return its seconds and those of each batch."""
    began = time.time()
    change()
    until(f"{servers} servers with all rows", lambda: has(agents, servers))
    ended = time.time()
    until("the batch after it", lambda: agents.stamps()[0][-1][0] > ended)
    return ended - began, [seconds for at, seconds in agents.stamps()[0] if at > began]


def measure(agents: Agents) -> dict[str, float]:
    agents.begin("--workers", "1", "--ps", "1")
    agents.add("second", "--nproc-per-node", "0", "--ps", "1")
    until("two servers with all rows", lambda: has(agents, 2) and bool(agents.stamps()))
    since = time.time()
    until("undisturbed batches", lambda: time.time() > since + QUIET_S)
    quiet = [seconds for at, seconds in agents.stamps()[0] if at > since]
    found = {
        "batch_p50_ms": round(statistics.median(quiet) * 1e3, 1),
        "batch_longest_ms": round(max(quiet) * 1e3, 1),
    }
    print(f"undisturbed: median {found['batch_p50_ms']} ms, longest {found['batch_longest_ms']} ms", flush=True)

    def come() -> None:
        agents.add("third", "--nproc-per-node", "0", "--ps", "2")

    def leave() -> None:
        agents.drain("second")
        agents.drain("third")

    for name, servers, change in (("2_to_4", 4, come), ("4_to_1", 1, leave)):
        seconds, batches = batches_of(agents, servers, change)
        found |= {
            f"{name}_s": round(seconds, 1),
            f"{name}_batch_p50_ms": round(statistics.median(batches) * 1e3, 1),
            f"{name}_stall_ms": round(max(batches) * 1e3, 1),
        }
        print(f"{name}: {seconds:.1f} s, {len(batches)} batches, the longest {max(batches) * 1e3:.0f} ms", flush=True)
    return found


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rows", type=int, default=1_000_000)
    options.add_argument("--dim", type=int, default=32)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="pliant-bench-resharding-") as base:
        agents = Agents(Path(base), WORKER, str(given.rows), str(given.dim))
        try:
            found = measure(agents)
        finally:
            agents.close()
    size = given.rows * given.dim * 4 * 2  # with the slot of Adagrad
    print(json.dumps({"ok": True, "load": round(os.getloadavg()[0], 1), "table_mb": round(size / 1e6), **found}))


if __name__ == "__main__":
    main()
