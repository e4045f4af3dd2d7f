"""`make chaos-lm`: train examples/gpt.py alone, and with 8, then 1, then 3 workers; compare loss and memory.

The last line is one JSON object; the exit status is 1 if the losses or the memory differ too much.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from driven import Driven, Ended

from pliant.core import messages as m
from pliant.core.messages.describe import describe
from pliant.core.model.job import Target

HERE = Path(__file__).parent
EPOCHS, STEPS = 8, 64
SHRINK_AT, GROW_AT = 12, 24  # durable steps at which the job is resized

# Sums of bfloat16 products depend on how a batch is cut, and eight workers cut it differently from one, so each
# gradient differs in its last bits (of 8). Over 64 steps the difference is about that of another micro-batch on a
# single worker, which is measured and printed as well.
LOSS_TOLERANCE = 0.001

MEMORY_TOLERANCE_MB = 8.0  # kept by allocators and a transfer of the state

LOSS = re.compile(r"validation loss ([\d.]+), of the average ([\d.]+)")
PEAK = re.compile(r"peak memory with (\d+) workers: ([\d.]+) MB")


@dataclass
class Seen:
    """The figures that the script printed."""

    losses: tuple[float, float] = (0.0, 0.0)  # at the end: of the weights and of their average
    peaks: list[tuple[int, float]] = field(default_factory=list)  # by size of the world, in MB

    def line(self, text: str) -> None:
        if found := LOSS.search(text):
            self.losses = float(found[1]), float(found[2])
        elif found := PEAK.search(text):
            self.peaks.append((int(found[1]), float(found[2])))

    def peak(self, size: int) -> float:
        return max(mb for workers, mb in self.peaks if workers == size)


def alone(micro_batch: int, seed: int) -> Seen:
    """Run the script alone."""
    print(f"Alone, at most {micro_batch} lines at once:", flush=True)
    words = [HERE / "gpt.py", "--epochs", EPOCHS, "--micro-batch", micro_batch, "--seed", seed]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PLIANT_")}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env={**env, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True)
    seen = Seen()
    for line in done.stdout.splitlines():
        seen.line(line)
    print(f"  validation loss {seen.losses[0]:.6f}, peak memory {seen.peak(1):.1f} MB", flush=True)
    return seen


def elastic(home: Path, micro_batch: int, seed: int) -> tuple[Seen, dict[str, object]]:
    """Run the script with 8, then 1, then 3 workers, and return its figures and the audit."""
    print("Elastically, with 8, then 1, then 3 workers:", flush=True)
    seen, steps = Seen(), home / "steps"
    steps.mkdir()
    (steps / "slow").write_text("0.2", encoding="ascii")

    def on_event(event: m.Event) -> None:
        if isinstance(event, m.WorldFormed | m.TargetChanged | m.MemberGone):
            print(f"  step {job.step}: {describe(event)}", flush=True)

    def on_line(_source: str, text: str) -> None:
        seen.line(text)
        if LOSS.search(text):
            print(f"  {text}", flush=True)

    words = [HERE / "stretched.py", steps, STEPS, HERE / "gpt.py"]
    words += ["--epochs", EPOCHS, "--micro-batch", micro_batch, "--seed", seed]
    with Driven(home, "gpt", ["--workers", "1:8"], list(map(str, words)), on_event, on_line) as job:
        job.wait_for(lambda: len(job.world) == 8 and job.step >= SHRINK_AT)
        job.send(m.Resize(Target(1)))
        job.wait_for(lambda: len(job.world) == 1 and job.step >= GROW_AT)
        job.send(m.Resize(Target(3)))
        job.wait_for(job.trains_with(3))
        job.wait_for(job.settled(8))
        (steps / "slow").unlink()
        status = job.wait_for_end()
        audit = json.loads(job.ask("audit", "gpt", "--json"))
    return seen, {**audit, "ok": audit["ok"] and status == 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    seed = parser.parse_args().seed
    lone, uncut = alone(16, seed), alone(128, seed)
    home = Path(tempfile.mkdtemp(prefix="pliant-chaos-lm-"))
    try:
        seen, audit = elastic(home, 16, seed)
    except Ended as error:
        print(f"{error}; the output of the workers is in {home}/jobs/gpt/logs\n{json.dumps({'ok': False})}")
        return 1
    apart = max(abs(here / there - 1) for here, there in zip(seen.losses, lone.losses, strict=True))
    rounding = max(abs(here / there - 1) for here, there in zip(uncut.losses, lone.losses, strict=True))
    more_mb = seen.peak(1) - seen.peak(8)
    print(f"\nvalidation loss: alone {lone.losses[0]:.6f}, elastic {seen.losses[0]:.6f}")
    print(
        f"                 {apart:.4%} apart, {LOSS_TOLERANCE:.1%} allowed; another micro-batch alone: {rounding:.4%}"
    )
    print(f"peak memory:     one of eight {seen.peak(8):.1f} MB, alone after that {seen.peak(1):.1f} MB")
    print(
        f"                 {more_mb:.1f} MB more, {MEMORY_TOLERANCE_MB:.0f} allowed; alone without micro-batches: "
        f"{uncut.peak(1) - lone.peak(1):.1f} MB more"
    )
    ok = bool(audit["ok"]) and apart <= LOSS_TOLERANCE and more_mb <= MEMORY_TOLERANCE_MB
    facts = {
        "ok": ok,
        "loss_alone": lone.losses[0],
        "loss_elastic": seen.losses[0],
        "loss_apart": round(apart, 6),
        "loss_apart_by_rounding": round(rounding, 6),
        "peak_mb_of_eight": seen.peak(8),
        "peak_mb_alone": seen.peak(1),
        "peak_mb_more_without_micro_batch": round(uncut.peak(1) - lone.peak(1), 1),
        "samples": audit["samples"],
        "lost": audit["lost"],
        "repeated": audit["repeated"],
    }
    print(json.dumps(facts))
    if ok:
        shutil.rmtree(home)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
