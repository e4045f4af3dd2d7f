"""Measure what a step costs beside raw DDP, with its defaults and with `gradient_as_bucket_view`, and torchft.

S has 0.1 M parameters, M has 10 M, GPT has 0.7 M in 159 tensors. The same processes train with each of them in turn, in
blocks, so that all see the same machine. torchft takes part if it is installed. Prints a table and, as its last line,
one JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from overhead_worker import LIGHTHOUSE
from training import scene

WORKER = Path(__file__).with_name("overhead_worker.py")
STEPS = {"S": 60, "M": 12, "GPT": 20}  # in a block
ROUNDS = 12
PATIENCE_S = 900.0  # for one round
# In a process of its own, because it logs every quorum.
SERVE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=int(sys.argv[1]), quorum_tick_ms=10)
print(server.address(), flush=True)
sys.stdin.read()
"""


def measure(base: Path, model: str, world: int, rounds: int, steps: int) -> dict[str, Any]:
    """Return the median time of a step by system, in ms, and the ratios of Pliant's to the others', block by block."""
    with scene(base, model, world, WORKER, (rounds, steps)) as it:
        file = it.folder / "rounds"

        def lines() -> list[str]:
            return file.read_text().splitlines() if file.exists() else []

        for number in range(1, rounds + 1):
            it.until(f"round {number}", lambda number=number: len(lines()) >= number, PATIENCE_S)  # type: ignore[misc]
            print(f"{model} world {world}, round {number}: {lines()[number - 1]}", flush=True)
        found: list[dict[str, float]] = [json.loads(line) for line in lines()]
    row: dict[str, Any] = {"model": model, "world": world}
    row["ms"] = {name: round(1e3 * statistics.median(each[name] for each in found), 2) for name in found[0]}
    ratios = {name: [each["pliant"] / each[name] for each in found] for name in found[0] if name != "pliant"}
    row["ratio"] = {name: round(statistics.median(each), 3) for name, each in ratios.items()}
    row["quartiles"] = {
        name: [round(at, 3) for at in statistics.quantiles(each)] for name, each in ratios.items() if rounds > 1
    }
    return row


@contextmanager
def lighthouse(world: int) -> Iterator[None]:
    """Run torchft's lighthouse, if it is installed, and give its address to the workers."""
    if importlib.util.find_spec("torchft") is None:
        yield
        return
    command = [sys.executable, "-c", SERVE, str(world)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        os.environ[LIGHTHOUSE] = server.stdout.readline().strip()
        try:
            yield
        finally:
            server.stdin.close()  # it ends
            del os.environ[LIGHTHOUSE]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="S,M,GPT")
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="blocks of each system")
    parser.add_argument("--steps", type=int, help="steps in a block (default: 60 for S, 12 for M, 20 for GPT)")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        for model in asked.models.split(","):
            for world in map(int, asked.worlds.split(",")):
                base = Path(folder) / f"{model}{world}"
                base.mkdir()
                with lighthouse(world):
                    rows.append(measure(base, model, world, asked.rounds, asked.steps or STEPS[model]))
    print()
    print(f"ms of a step, medians of {asked.rounds} blocks, and the median ratio of Pliant's step to it")
    for row in rows:
        ratios = {name: f" ({ratio})" for name, ratio in row["ratio"].items()}
        print(f"{row['model']} x {row['world']}: ", end="")
        print(", ".join(f"{name} {ms}{ratios.get(name, '')}" for name, ms in row["ms"].items()))
    print(json.dumps({"ok": True, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
