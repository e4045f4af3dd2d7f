"""Measure three workers beside one that is slower: a task queue, live training, and a queue with a deadline.

A record takes a worker 2 ms, in which it uses no processor, and the slow one 4 times as long. In the last run it takes
longer for a batch than a shard may go without progress. Prints records a second of each way beside those that the
workers could do, and ends with one JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from agents import Agents, until
from slow_worker_script import BATCH, RECORD_S

SCRIPT = Path(__file__).with_name("slow_worker_script.py")
FAST = 3
SECONDS = 20.0
DEADLINE_S = 4.0
TIMES = 4  # how much slower the slow worker is
WARM = 6  # batches that each worker computes at first; a live one computes two before it joins
STUCK = 2 * DEADLINE_S / (RECORD_S * BATCH)  # so much slower, a batch takes two deadlines


def all_work(agents: Agents, batches: int) -> bool:
    """Return whether all workers have computed so many batches."""
    stamps = agents.stamps()
    return len(stamps) == FAST + 1 and min(map(len, stamps)) >= batches


def measure(base: Path, mode: str, times: float, deadline_s: float) -> dict[str, float]:
    """Return the records a second, and those of the slow worker, beside what the workers could do."""
    agents = Agents(base, SCRIPT, mode, str(deadline_s))
    try:
        agents.begin("--workers", f"1:{FAST + 1}", "--target", str(FAST + 1), "--nproc-per-node", str(FAST))
        agents.add("slow", "--nproc-per-node", "1", BENCH_TIMES=str(times))
        until("work by all", lambda: all_work(agents, WARM))
        began = time.time()
        until("the end of the measurement", lambda: time.time() > began + SECONDS)
        ended = time.time()
        done = [sum(records for at, records in each if began < at <= ended) for each in agents.stamps()]
        status = agents.status()
    finally:
        agents.close()
    possible = (FAST + 1 / times) / RECORD_S
    found = {
        "records_per_s": round(sum(done) / (ended - began)),
        "possible_per_s": round(possible),
        "share": round(sum(done) / (ended - began) / possible, 3),
        "of_slowest": round(min(done) / (ended - began)),
    }
    if status is not None and status.tasks is not None:
        found["returned"] = status.tasks.returned
    return found


def main() -> None:
    runs: dict[str, dict[str, float]] = {}
    ways = (("queue", "queue", TIMES, 300.0), ("live", "live", TIMES, 300.0), ("deadline", "queue", STUCK, DEADLINE_S))
    with tempfile.TemporaryDirectory(prefix="pliant-bench-slow-") as base:
        for name, mode, times, deadline_s in ways:
            runs[name] = measure(Path(base, name), mode, times, deadline_s)
            print(name, runs[name], flush=True)
    print(json.dumps({"ok": True, "load": round(os.getloadavg()[0], 1), **runs}))


if __name__ == "__main__":
    main()
