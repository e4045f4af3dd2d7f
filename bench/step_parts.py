"""Print where the time of a live step goes, part by part, beside DDP's step and a step without any reduction.

The step without a reduction is the floor: the same model, batch and optimizer, alone. S has 0.1 M parameters, GPT has
0.7 M in 159 tensors. Clocks at the parts cost some microseconds themselves. Prints a table and, as its last line, one
JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from training import scene

WORKER = Path(__file__).with_name("step_parts_worker.py")
STEPS = {"S": 60, "M": 12, "GPT": 20}  # in a block
PATIENCE_S = 300.0  # for one round


def measure(base: Path, model: str, world: int, rounds: int) -> dict[str, Any]:
    """Return the microseconds of a step: the parts of Pliant's in its median block, and the medians of the others."""
    with scene(base, model, world, WORKER, (rounds, STEPS[model])) as it:
        file = it.folder / "rounds"
        it.until("rounds", lambda: file.exists() and file.read_text().count("\n") == rounds, rounds * PATIENCE_S)
        found = [json.loads(line) for line in file.read_text().splitlines()]
    middle = sorted(found, key=lambda each: sum(each["pliant"].values()))[rounds // 2]
    row: dict[str, Any] = {"model": model, "world": world}
    row["parts"] = {part: round(1e6 * time) for part, time in middle["pliant"].items()}
    row["pliant"] = round(1e6 * sum(middle["pliant"].values()))
    for name in ("ddp", "no reduction"):
        row[name] = round(1e6 * statistics.median(each[name] for each in found))
    return row


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="S,GPT")
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12, help="blocks of each")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        for model in asked.models.split(","):
            base = Path(folder) / model
            base.mkdir()
            rows.append(measure(base, model, asked.world, asked.rounds))
    for row in rows:
        print(f"\n{row['model']} x {row['world']}, microseconds of a step, medians of {asked.rounds} blocks")
        for part, time in sorted(row["parts"].items(), key=lambda each: -each[1]):
            print(f"{time:8}  {part}")
        print(f"{row['pliant']:8}  Pliant, all parts")
        print(f"{row['ddp']:8}  DDP")
        print(f"{row['no reduction']:8}  no reduction")
    print(json.dumps({"ok": True, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
