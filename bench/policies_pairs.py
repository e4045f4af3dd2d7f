"""A worker of `bench/policies.py` that averages in pairs: one worker writes the curve of its own model.

One step is a batch of 128 records of all workers together: each worker has its part of it in a batch of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from policies_worker import BATCH, RATE, digits
from torch import nn

import pliant.tasks
from pliant.torch.pairs import ModelArrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--curve", type=Path, required=True)
    parser.add_argument("--pace-s", type=float, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    train, test = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def point(step: int) -> dict[str, float]:
        x, y = test.tensors
        with torch.no_grad():
            found = model(x)
            loss, right = F.cross_entropy(found, y), (found.argmax(1) == y).float().mean()
        return {"step": step, "test_loss": round(float(loss), 4), "accuracy": round(float(right), 4)}

    epochs = math.ceil(args.steps * BATCH / len(train))
    own = torch.empty(0)
    points, last = [], 0.0
    with pliant.tasks.join() as job:
        run = job.train(
            train,
            batch_size=BATCH // args.workers,
            records_per_shard=BATCH,
            epochs=epochs,
            average=ModelArrays(model),
            save_every_s=1.0,
        )
        step = 0
        for batch in run:
            x, y = (torch.stack([record[at] for record in batch]) for at in (0, 1))
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.average()
            step, last = step + 1, float(loss.detach())
            own = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            if step % args.every == 0 and step < args.steps:
                points.append(point(step) | {"loss": round(last, 4)})
            time.sleep(args.pace_s)
    distance = float((own - nn.utils.parameters_to_vector(model.parameters()).detach()).norm())
    lines = [each | {"size": args.workers, "distance": round(distance, 4)} for each in points]
    lines.append(point(args.steps) | {"loss": round(last, 4), "size": args.workers, "distance": round(distance, 4)})
    temporary = args.curve.with_name(f"{job.member}.jsonl")
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    temporary.replace(args.curve)


if __name__ == "__main__":
    main()
