"""Lightning: a module, a checkpoint callback, and `fit` from the last checkpoint. For torchrun."""

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from pace import report
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*does not have many workers.*")


class Classifier(lightning.LightningModule):
    """A classifier: is the first half of the numbers the larger one?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Report(Callback):
    """Says on every process that a step is done."""

    def on_train_batch_end(self, trainer: Any, *more: Any) -> None:
        report(trainer.global_step, trainer.global_rank, trainer.world_size)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("output"))
    args = parser.parse_args()

    lightning.seed_everything(0)
    x = torch.randn(512, 20)
    dataset = TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        callbacks=[ModelCheckpoint(args.output, every_n_train_steps=args.save_every, save_last=True), Report()],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(dataset, batch_size=16, shuffle=True), ckpt_path="last")


if __name__ == "__main__":
    main()
