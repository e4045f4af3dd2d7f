"""Train a wide-and-deep recommender whose embeddings and dense parameters are on parameter servers.

    pliant run --job ads --workers 1:4 --target 2 --ps 2 examples/wide_and_deep.py

Kill a worker or a server with kill -9 while it runs. `pliant audit ads` accounts for every record, and `pliant events
ads` shows the losses of the evaluations. The records are generated like those of Criteo's set: 13 numbers, 26
categories with Zipf ids, and a click that depends on both.
"""

import argparse

import numpy as np
import torch
from torch import nn

import pliant.tasks
from pliant.ps import Adagrad, Adam, Ftrl, PushPolicy, Table
from pliant.torch.tables import ServerEmbedding, ServerVariables, push_gradients

NUMBERS, CATEGORIES = 13, 26
DIM, ROW = 8, 64


class Clicks:
    """Generated records: numbers, ids and a click. The record of a number is always the same."""

    def __init__(self, length: int, first: int = 0, ids: int = 20_000) -> None:
        self.length, self.first, self.ids = length, first, ids

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray, float]:
        rng = np.random.default_rng(self.first + number)
        numbers = rng.standard_normal(NUMBERS).astype(np.float32)
        ranks = np.minimum(rng.zipf(1.3, CATEGORIES), self.ids)
        ids = ranks + np.arange(CATEGORIES) * self.ids  # each category has ids of its own
        effects = np.sin(ids * 12.9898) * 0.6
        score = effects.sum() / 2 + numbers[:4].sum() / 2 + effects[0] * effects[1] * 4
        return numbers, ids.astype(np.int64), float(rng.random() < 1 / (1 + np.exp(-score)))


def collate(records: list[tuple[np.ndarray, np.ndarray, float]]) -> tuple[torch.Tensor, ...]:
    numbers, ids, clicks = zip(*records, strict=True)
    return torch.from_numpy(np.stack(numbers)), torch.from_numpy(np.stack(ids)), torch.tensor(clicks)


TABLES = (
    Table("embedding", DIM, Adagrad(0.05), scale=0.05),
    Table("wide", 1, Ftrl(0.1, l1=0.001)),
    Table("deep", ROW, Adam(0.002)),
)


class WideAndDeep:
    """The model. Its parameters are in the tables of a run."""

    def __init__(self, run: pliant.tasks.TaskRun) -> None:
        self._layers = nn.Sequential(nn.Linear(NUMBERS + CATEGORIES * DIM, 32), nn.ReLU(), nn.Linear(32, 1))
        self._embedding, self._wide = ServerEmbedding(run, "embedding"), ServerEmbedding(run, "wide")
        self._deep = ServerVariables(run, "deep", self._layers, ROW)
        self.parts = (self._embedding, self._wide, self._deep)

    def loss(self, numbers: torch.Tensor, ids: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
        """Pull the parameters that a batch needs, and return its mean loss."""
        self._deep.pull()
        features = torch.cat([numbers, self._embedding(ids).flatten(1)], dim=1)
        score = self._layers(features).squeeze(1) + self._wide(ids).sum(dim=(1, 2))
        return nn.functional.binary_cross_entropy_with_logits(score, clicks)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=40_000)
    options.add_argument("--records-per-shard", type=int, default=1000)
    options.add_argument("--batch-size", type=int, default=100)
    options.add_argument("--epochs", type=int, default=1)
    options.add_argument("--grads-to-wait", type=int, default=1)
    options.add_argument("--staleness-max", type=int, default=None)
    given = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with pliant.tasks.join() as job:
        run = job.train(
            Clicks(given.records),
            batch_size=given.batch_size,
            records_per_shard=given.records_per_shard,
            epochs=given.epochs,
            evaluation=Clicks(2000, first=1 << 40),
            collate=collate,
            tables=TABLES,
            pushes=PushPolicy(given.grads_to_wait, given.staleness_max, staleness_rates=given.grads_to_wait == 1),
        )
        model = WideAndDeep(run)
        for batch in run:
            if run.evaluating:
                with torch.no_grad():
                    run.add(loss=model.loss(*batch).item() * len(batch[2]))
                continue
            while True:
                model.loss(*batch).backward()  # type: ignore[no-untyped-call]
                if push_gradients(run, *model.parts):
                    break


if __name__ == "__main__":
    main()
