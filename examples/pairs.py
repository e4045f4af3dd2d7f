"""Train a classifier of digits with pair averaging: workers average their models in pairs, and wait for none.

    pliant run --job pairs --workers 1:4 --target 3 examples/pairs.py

Kill a worker with kill -9 while it runs: the others train on, and `pliant audit pairs` counts what may be repeated.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import pliant.tasks
from pliant.torch.pairs import ModelArrays


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--batch-s", type=float, default=0.02, help="pretend that a batch takes so long")
    given = options.parse_args()
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train = [(x[number], y[number]) for number in range(len(x)) if number % 5]
    test_x, test_y = x[::5], y[::5]

    def collate(records: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return torch.stack([x for x, _ in records]), torch.stack([y for _, y in records])

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pliant.tasks.join() as job:
        run = job.train(
            train,
            batch_size=32,
            records_per_shard=128,
            epochs=given.epochs,
            collate=collate,
            average=ModelArrays(model),
            save_every_s=2.0,
        )
        for pictures, labels in run:
            optimizer.zero_grad()
            F.cross_entropy(model(pictures), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            run.average()
            time.sleep(given.batch_s)
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean()
    print(f"{job.member}: accuracy {accuracy:.3f} with the mean of all models")


if __name__ == "__main__":
    main()
