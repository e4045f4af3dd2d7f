"""A worker of `bench/policies.py`: trains on the digits, and rank 0 writes a line for each step."""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import pliant.torch as pliant

BATCH, SLOTS, RATE = 128, 8, 0.1


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return the pictures for training and every fifth for the test."""
    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)
    test = torch.arange(len(y)) % 5 == 0
    return TensorDataset(x[~test], y[~test]), TensorDataset(x[test], y[test])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--alpha", type=float, required=True)
    parser.add_argument("--curve", type=Path, required=True)
    parser.add_argument("--pace-s", type=float, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    train, test = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def sums(batch: tuple[Tensor, Tensor]) -> dict[str, Any]:
        x, y = batch
        found = model(x)
        return {"loss": F.cross_entropy(found, y, reduction="sum"), "right": (found.argmax(1) == y).sum()}

    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        epochs = math.ceil(args.steps / (len(train) // BATCH))
        limits = {"epochs": epochs, "max_steps": args.steps}
        run = job.train(model, optimizer, train, batch_size=BATCH, slots=SLOTS, micro_batch=BATCH, **limits)
        own = run.average_models(args.alpha) if args.alpha else None
        for x, y in run:
            loss = F.cross_entropy(model(x) if own is None else own(x), y)
            run.backward(loss)
            run.log(loss=loss)
            if not (run.step() if own is None else own.step()):
                continue
            line = {"step": run.step_number, "size": run.size, "loss": round(run.metrics["loss"], 4)}
            if run.step_number % args.every == 0:
                totals = run.evaluate(sums, test, batch_size=90)
                line["test_loss"] = round(float(totals["loss"]) / len(test), 4)
                line["accuracy"] = round(float(totals["right"]) / len(test), 4)
                line["distance"] = 0.0 if own is None else round(own.distance, 4)
            time.sleep(args.pace_s)
            if run.rank == 0:
                with args.curve.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
