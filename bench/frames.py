"""Measure a step of JAX, Keras and TensorFlow with Pliant beside the framework's own, and compilations of a change.

Alone: a compiled JAX step with its update, `model.fit` of Keras, a traced TensorFlow step. With two workers: JAX's
`pmean` over gloo and TensorFlow's MultiWorkerMirroredStrategy; Keras has none on several processes. Both run at once
and take turns, in blocks. Then a worker joins, one leaves and, of two, one is killed. Every worker counts what it
compiles after its first step.
Prints a table and, as its last line, one JSON object. Timings are reported, not judged: it fails if a worker compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaunch_agents import free_port
from training import Scene, scene

WORKER = Path(__file__).with_name("frames_worker.py")
ROUNDS = 8
STEPS = {"S": 40, "M": 8}  # in a block
PATIENCE_S = 300.0
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
QUIET = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Case:
    """A framework, and what it runs on; `base` is Keras' backend."""

    name: str
    framework: str
    base: str
    worlds: tuple[int, ...]


CASES = (
    Case("jax", "jax", "jax", (1, 2)),
    Case("keras-jax", "keras", "jax", (1,)),
    Case("keras-tensorflow", "keras", "tensorflow", (1,)),
    Case("tensorflow", "tensorflow", "tensorflow", (1, 2)),
)


@contextmanager
def itself(folder: Path, world: int, output: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run the framework's own training beside."""
    env = {**os.environ, "BENCH_FOLDER": str(folder), "BENCH_WORLD": str(world)}
    port, running = free_port(), []
    with output.open("wb") as file:
        for rank in range(world):
            command = [sys.executable, str(WORKER), str(rank), str(port)]
            running.append(subprocess.Popen(command, env=env, stdout=file, stderr=file))
        try:
            yield running
        finally:
            for process in running:
                process.kill()
                process.wait()


def compilations(it: Scene) -> int:
    return sum(int(file.read_text() or 0) for file in it.folder.glob("*.compiled"))


def measure(base: Path, case: Case, model: str, world: int, rounds: int, chance: random.Random) -> dict[str, Any]:
    os.environ |= {**ONE_THREAD, **QUIET, "KERAS_BACKEND": case.base, "BENCH_FRAMEWORK": case.framework}
    os.environ |= {"BENCH_MODEL": model, "BENCH_ROUNDS": str(rounds), "BENCH_STEPS": str(STEPS[model])}
    with scene(base, model, world, WORKER, (rounds, STEPS[model])) as it:
        (it.folder / "turn").write_text("pliant")
        with itself(it.folder, world, base / "own_output") as own:

            def blocks(name: str) -> list[float]:
                file = it.folder / f"{name}.rounds"
                return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

            def done() -> bool:
                if len(blocks("own")) < rounds and any(process.poll() is not None for process in own):
                    raise RuntimeError(
                        f"the framework's own training ended: {(base / 'own_output').read_text()[-2000:]}"
                    )
                return len(blocks("own")) == rounds and len(blocks("pliant")) == rounds

            it.until("all blocks", done, PATIENCE_S)
            ours, theirs = blocks("pliant"), blocks("own")
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        row: dict[str, Any] = {"case": case.name, "model": model, "world": world}
        row |= {"own_ms": median_ms(theirs), "pliant_ms": median_ms(ours), "ratio": round(statistics.median(ratios), 3)}
        row["quartiles"] = [round(each, 3) for each in statistics.quantiles(ratios)] if rounds > 1 else []
        changes = ("join", "leave", "kill") if world > 1 else ("join", "leave")
        row["load"] = round(os.getloadavg()[0], 1)
        row["pause_ms"] = {kind: round(1e3 * it.change(kind, chance), 1) for kind in changes}
        row["compiled"] = compilations(it)
    print(row, flush=True)
    return row


def median_ms(seconds: list[float]) -> float:
    return round(1e3 * statistics.median(seconds), 2)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs every `finally`, so that no process remains
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", default=",".join(names), help="some of: %(default)s")
    parser.add_argument("--models", default="S,M")
    parser.add_argument("--worlds", default="1,2")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="blocks of each system")
    asked = parser.parse_args()
    chance, rows = random.Random(asked.seed), []
    worlds = [int(world) for world in asked.worlds.split(",")]
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder:
        for case in (each for each in CASES if each.name in asked.cases.split(",")):
            for model in asked.models.split(","):
                for world in (each for each in case.worlds if each in worlds):
                    base = Path(tempfile.mkdtemp(dir=folder))
                    rows.append(measure(base, case, model, world, asked.rounds, chance))
    print(f"\nms of a step, medians of {asked.rounds} blocks; the pause of each change; compilations")
    for row in rows:
        print(
            f"{row['case']:18}{row['model']} x {row['world']}: own {row['own_ms']}, Pliant {row['pliant_ms']}", end=""
        )
        pauses = ", ".join(f"{kind} {ms} ms" for kind, ms in row["pause_ms"].items())
        print(f" ({row['ratio']}); {pauses}; {row['compiled']} compiled")
    compiled = sum(row["compiled"] for row in rows)
    print(json.dumps({"ok": not compiled, "compiled": compiled, "seed": asked.seed, "rows": rows}))
    return 1 if compiled else 0


if __name__ == "__main__":
    sys.exit(main())
