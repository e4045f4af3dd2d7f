"""DistributedDataParallel as it is written for torchrun: a trainer, a sampler, and a snapshot to go on from.

torchrun --standalone --nproc-per-node 2 ddp.py --epochs 10 --snapshot snapshot.pt
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from pace import report
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


class Trainer:
    """Trains a model on this process's part of the data, and writes a snapshot from time to time."""

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader[tuple[Tensor, ...]],
        optimizer: torch.optim.Optimizer,
        snapshot: Path,
        save_every: int,
    ) -> None:
        self.rank = int(os.environ["RANK"])
        self.world = int(os.environ["WORLD_SIZE"])
        self.model = model
        self.loader = loader
        self.optimizer = optimizer
        self.snapshot = snapshot
        self.save_every = save_every
        self.epoch = 0
        self.step = 0
        if snapshot.exists():
            self.load()
        self.wrapped = DistributedDataParallel(model)

    def load(self) -> None:
        saved = torch.load(self.snapshot)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.epoch = saved["epoch"]
        self.step = saved["step"]
        print(f"goes on at epoch {self.epoch}, step {self.step}", flush=True)

    def save(self) -> None:
        unfinished = self.snapshot.with_suffix(".unfinished")
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
        }
        torch.save(state, unfinished)
        unfinished.replace(self.snapshot)

    def batch(self, x: Tensor, y: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.wrapped(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()

    def one_epoch(self) -> None:
        sampler = self.loader.sampler
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(self.epoch)
        for x, y in self.loader:
            loss = self.batch(x, y)
            self.step += 1
            report(self.step, self.rank, self.world, f"loss {loss:.4f}")

    def train(self, epochs: int) -> None:
        while self.epoch < epochs:
            self.one_epoch()
            self.epoch += 1
            if self.rank == 0 and self.epoch % self.save_every == 0:
                self.save()


def points(count: int) -> Dataset[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, 20, generator=generator)
    return TensorDataset(x, (x[:, :10].sum(1) > x[:, 10:].sum(1)).long())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier.")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--save-every", type=int, default=1, help="epochs between snapshots")
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--samples", type=int, default=384)
    parser.add_argument("--snapshot", type=Path, default=Path("snapshot.pt"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = points(args.samples)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    Trainer(model, loader, optimizer, args.snapshot, args.save_every).train(args.epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
