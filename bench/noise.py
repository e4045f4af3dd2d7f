"""Measure what a NoiseScale costs: trainings with and without one, in turns, by the CPU time of a step.

    python bench/noise.py [--rounds 5] [--steps 30]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

import torch
import torch.nn.functional as F

import pliant.torch as pliant

WIDTH, BATCH, ITEMS = 512, 128, 4


def step_cpu_ms(steps: int, *, measured: bool, deterministic: bool) -> float:
    """Return the median CPU time of a step, in a world of one with several items."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(each for _ in range(4) for each in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())),
        torch.nn.Linear(WIDTH, 8),
    )
    data = torch.utils.data.TensorDataset(torch.randn(BATCH * steps, WIDTH), torch.randint(0, 8, (BATCH * steps,)))
    state = {"noise": pliant.NoiseScale()} if measured else {}
    times = []
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run = job.train(
            model,
            optimizer,
            data,
            batch_size=BATCH,
            slots=ITEMS,
            micro_batch=BATCH // ITEMS,
            state=state,
            deterministic=deterministic,
        )
        before = time.process_time()
        for x, y in run:
            run.backward(F.cross_entropy(model(x), y))
            if run.step():
                now = time.process_time()
                times.append((now - before) * 1e3)
                before = now
    return statistics.median(times[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {"ok": True, "parameters": 4 * (WIDTH * WIDTH + WIDTH) + WIDTH * 8 + 8, "items": ITEMS}
    for deterministic in (False, True):
        pairs = []
        for _ in range(args.rounds):
            plain = step_cpu_ms(args.steps, measured=False, deterministic=deterministic)
            pairs.append((plain, step_cpu_ms(args.steps, measured=True, deterministic=deterministic)))
        name = "deterministic" if deterministic else "floating"
        ratio = statistics.median(with_it / plain for plain, with_it in pairs)
        plain, with_it = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:14} step {plain:8.2f} ms   with a noise scale {with_it:8.2f} ms   ratio {ratio:.3f}")
        result[name] = {"step_cpu_ms": round(plain, 3), "measured_cpu_ms": round(with_it, 3), "ratio": round(ratio, 3)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
