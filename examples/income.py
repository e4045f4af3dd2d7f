"""A model module: predict from a census record whether a person earns much, with occupations in a table.

    python examples/income.py data 20000
    pliant train --model-def examples/income.py --data data/train.csv --validation-data data/held-out.csv \
        --workers 1:4 --target 2 --output models
    pliant evaluate --model-def examples/income.py --data data/held-out.csv --model models/income
    pliant predict --model-def examples/income.py --data data/held-out.csv --model models/income --output predictions

The first command writes generated records. Kill a worker or a server with kill -9 while the others run: no record is
lost, and each has one prediction.
"""

import argparse
import csv
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pliant.ps import Adagrad, Adam, Table
from pliant.torch.tables import ServerEmbedding

OCCUPATIONS, DIM = 500, 8


class Income(nn.Module):
    """A small network over age, hours and the embedding of the occupation."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.occupations = ServerEmbedding(run, "occupations")
        self.layers = nn.Sequential(nn.Linear(2 + DIM, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        inputs = torch.cat([features["numbers"], self.occupations(features["occupation"])], dim=1)
        scores: Tensor = self.layers(inputs).squeeze(1)
        return scores


def custom_model(run: Any) -> nn.Module:
    torch.manual_seed(0)
    return Income(run)


def tables() -> list[Table]:
    return [Table("occupations", DIM, Adagrad(0.1))]


def optimizer() -> Adam:
    return Adam(0.01)


def loss(labels: Tensor, outputs: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, labels)


def eval_metrics_fn() -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    return {"accuracy": lambda labels, outputs: ((outputs > 0) == (labels > 0)).float()}


def feed(records: list[dict[str, str]], mode: str) -> Any:
    numbers = [[float(each["age"]) / 50 - 1, float(each["hours"]) / 40 - 1] for each in records]
    occupation = torch.tensor([int(each["occupation"]) for each in records])
    features = {"numbers": torch.tensor(numbers), "occupation": occupation}
    if mode == "predict":
        return features
    return features, torch.tensor([float(each["earns_much"]) for each in records])


def write_records(path: Path, count: int, seed: int) -> None:
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "hours", "occupation", "earns_much"])
        for _ in range(count):
            age, hours, occupation = draw.randint(18, 80), draw.randint(5, 70), draw.randrange(OCCUPATIONS)
            score = (hours - 38) / 10 + (age - 45) / 30 + 2 * math.sin(occupation * 12.9898)
            writer.writerow([age, hours, occupation, int(draw.random() < 1 / (1 + math.exp(-2 * score)))])


def main() -> None:
    options = argparse.ArgumentParser(description="Write generated records for this module.")
    options.add_argument("folder", type=Path)
    options.add_argument("records", type=int)
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    write_records(given.folder / "train.csv", given.records, seed=1)
    write_records(given.folder / "held-out.csv", max(given.records // 10, 1), seed=2)


if __name__ == "__main__":
    main()
