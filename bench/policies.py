"""Train a small network by each policy of KungFu's experiments, with real workers, and print the curves.

    python bench/policies.py [--steps 600]

Plain SGD with one worker, the same with a schedule of sizes, and synchronous model averaging and pair averaging with
2, 4 and 8 workers: scikit-learn's digits, one batch and one rate for all of them. The curve of pair averaging is that
of one worker's own model, and its last point is the final mean. The last line is one JSON object. Curves are reported,
not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

PLIANT = str(Path(sys.executable).with_name("pliant"))
WORKER = Path(__file__).with_name("policies_worker.py")
PAIRS_WORKER = Path(__file__).with_name("policies_pairs.py")
ALPHA = 0.1
POINTS = 6  # of each curve
PATIENCE_S = 240.0
PACE_S = 0.05
PAIRS_PACE_S = 0.02


@dataclass(frozen=True, slots=True)
class Policy:
    """A training: its sizes for `pliant run`, and the share of model averaging, 0 for plain SGD."""

    workers: str
    alpha: float = 0.0
    schedule: str | None = None
    pace_s: float = 0.0  # of a step, so that new workers have time to start, and partners to answer
    pairs: int = 0  # workers that average in pairs; 0: none do


def policies(steps: int) -> dict[str, Policy]:
    """Return the trainings by name. The schedule changes the size after each third of the steps."""
    averaging = {f"averaging, {size} workers": Policy(f"{size}:{size}", ALPHA) for size in (2, 4, 8)}
    scheduled = Policy("1:4", schedule=f"0:2,{steps // 3}:4,{2 * steps // 3}:1", pace_s=PACE_S)
    pairs = {f"pairs, {size} workers": Policy(f"{size}:{size}", pairs=size, pace_s=PAIRS_PACE_S) for size in (2, 4, 8)}
    return {"plain SGD": Policy("1:1"), "plain SGD, scheduled": scheduled, **averaging, **pairs}


def train(name: str, policy: Policy, steps: int, base: Path) -> dict[str, Any]:
    """Return the curve of a training, its sizes and its duration."""
    base.mkdir()
    curve = base / "curve.jsonl"
    options = ["--job", "bench", "--mode", "tasks" if policy.pairs else "live", "--workers", policy.workers]
    if policy.schedule is not None:
        options += ["--schedule", policy.schedule]
    given = [
        "--steps",
        str(steps),
        "--every",
        str(steps // POINTS),
        "--curve",
        str(curve),
        "--pace-s",
        str(policy.pace_s),
    ]
    given += ["--workers", str(policy.pairs)] if policy.pairs else ["--alpha", str(policy.alpha)]
    worker = PAIRS_WORKER if policy.pairs else WORKER
    began = time.perf_counter()
    done = subprocess.run(
        [PLIANT, "run", *options, str(worker), *given],
        env={**os.environ, "PLIANT_HOME": str(base / "home"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name}: pliant run ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    lines = [json.loads(line) for line in curve.read_text(encoding="utf-8").splitlines()]
    sizes = [[next(group)["step"], size] for size, group in groupby(lines, key=lambda line: line["size"])]
    points = [
        {key: line[key] for key in ("step", "loss", "test_loss", "accuracy", "distance")}
        for line in lines
        if "accuracy" in line
    ]
    return {"sizes": sizes, "points": points, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    steps = parser.parse_args().steps
    if steps % (2 * POINTS) or steps < 1:
        sys.exit(f"--steps must be a multiple of {2 * POINTS}, got {steps}.")
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, policy) in enumerate(policies(steps).items()):
            found[name] = train(name, policy, steps, Path(folder) / str(number))
            print(f"{name}: sizes from step {found[name]['sizes']}, {found[name]['seconds']} s", flush=True)
    marks = [point["step"] for point in found["plain SGD"]["points"]]
    print("| test loss, accuracy after step | " + " | ".join(map(str, marks)) + " | distance |")
    print("|---" * (len(marks) + 2) + "|")
    for name, each in found.items():
        by_step = {point["step"]: f"{point['test_loss']:.3f}, {point['accuracy']:.3f}" for point in each["points"]}
        cells = [by_step.get(mark, "-") for mark in marks]
        print(f"| {name} | " + " | ".join(cells) + f" | {each['points'][-1]['distance']:.2f} |")
    print(json.dumps({"ok": True, "steps": steps, "alpha": ALPHA, "policies": found}))


if __name__ == "__main__":
    main()
