"""Train DeepFM live: the embeddings are on parameter servers, and the members average the gradients of the dense part.

    pliant run --job ctr --workers 1:4 --target 2 --ps 2 --mode live examples/deep_fm.py

Kill a worker or a server with kill -9 while it runs, or `pliant resize ctr 3`. All members take each step together, so
the dense part has the same bits on each of them. `pliant audit ctr` shows that every record is in exactly one step.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from wide_and_deep import CATEGORIES, NUMBERS, Clicks, collate

import pliant.torch as pliant
from pliant.ps import Adagrad, Ftrl, Table
from pliant.torch.tables import ServerEmbedding, push_gradients

DIM = 8
TABLES = (Table("embedding", DIM, Adagrad(0.1), scale=0.05), Table("linear", 1, Ftrl(0.1, l1=0.001)))


class DeepFm(nn.Module):
    """The dense part. The rows of a batch are arguments: no member has the tables."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = nn.Sequential(nn.Linear(NUMBERS + CATEGORIES * DIM, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, rows: Tensor, linear: Tensor) -> Tensor:
        """Return the score of each record."""
        pairs = (rows.sum(1).square() - rows.square().sum(1)).sum(1) / 2
        deep: Tensor = self.deep(torch.cat([numbers, rows.flatten(1)], dim=1)).squeeze(1)
        return deep + pairs + linear.sum(dim=(1, 2))


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=40_000)
    options.add_argument("--batch-size", type=int, default=256)
    options.add_argument("--epochs", type=int, default=1)
    given = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DeepFm()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            Clicks(given.records),
            batch_size=given.batch_size,
            slots=8,  # items of a step, on all members together
            epochs=given.epochs,
            collate_fn=collate,
            tables=TABLES,
        )
        embedding, linear = ServerEmbedding(run, "embedding"), ServerEmbedding(run, "linear")

        def losses(batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
            numbers, ids, clicks = batch
            score = model(numbers, embedding(ids), linear(ids))
            return {"loss": F.binary_cross_entropy_with_logits(score, clicks, reduction="sum")}

        for batch in run:
            loss = losses(batch)["loss"] / len(batch[2])
            loss.backward()  # type: ignore[no-untyped-call]
            push_gradients(run, embedding, linear)
            run.log(loss=loss)
            if run.step() and (run.step_number % 50 == 0 or run.step_number == run.total_steps):
                test = Clicks(2000, first=1 << 40)
                found = run.evaluate(losses, test, batch_size=200, collate_fn=collate)["loss"] / len(test)
                if run.rank == 0:
                    done = f"step {run.step_number} of {run.total_steps}, {run.size} workers"
                    print(f"{done}, loss {run.metrics['loss']:.4f}, of the test {found:.4f}", flush=True)


if __name__ == "__main__":
    main()
