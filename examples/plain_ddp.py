"""A plain script for torchrun: DistributedDataParallel, and a checkpoint after every epoch.

With torchrun: `torchrun --nproc-per-node 2 examples/plain_ddp.py`. With Pliant, where a worker may be killed:
`pliant run --nproc-per-node 2 examples/plain_ddp.py`.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def save(path: Path, state: dict[str, object]) -> None:
    """Replace the checkpoint atomically, so that a killed worker leaves the old one."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--epoch-s", type=float, default=1.0, help="the least seconds of an epoch, to watch it")
    parser.add_argument("--checkpoint", type=Path, default=Path("plain_ddp.pt"))
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    digits = load_digits()
    pictures = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    dataset = TensorDataset(pictures, torch.tensor(digits.target))
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["epoch"]
        if rank == 0:
            print(f"resuming after epoch {start} of {args.epochs}", flush=True)

    wrapped = DistributedDataParallel(model)
    sampler = DistributedSampler(dataset, seed=7)
    loader = DataLoader(dataset, batch_size=96 // size, sampler=sampler)
    for epoch in range(start + 1, args.epochs + 1):
        until = time.monotonic() + args.epoch_s
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            save(args.checkpoint, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch})
            print(f"epoch {epoch} of {args.epochs}, {size} workers, loss {loss.item():.4f}", flush=True)
        time.sleep(max(0.0, until - time.monotonic()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
