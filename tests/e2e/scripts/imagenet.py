"""An ImageNet-style main.py: a ResNet, training and validation, meters, the best checkpoint kept apart.

The images are generated: each class has its own stripes, under noise. Start it with torchrun.
"""

import argparse
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pace import report
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

parser = argparse.ArgumentParser(description="Train a ResNet on generated images.")
parser.add_argument("-j", "--workers", default=0, type=int, help="data loading processes")
parser.add_argument("--epochs", default=20, type=int, help="how often to go through the images")
parser.add_argument("-b", "--batch-size", default=32, type=int, help="of all processes together")
parser.add_argument("--lr", "--learning-rate", default=0.05, type=float, dest="lr")
parser.add_argument("--momentum", default=0.9, type=float)
parser.add_argument("--wd", "--weight-decay", default=1e-4, type=float, dest="weight_decay")
parser.add_argument("-p", "--print-freq", default=5, type=int)
parser.add_argument("--resume", default="checkpoint.pth.tar", type=Path, help="written there, and read if it is there")
parser.add_argument("--classes", default=8, type=int)
parser.add_argument("--images", default=256, type=int, help="for training; a quarter as many for validation")
parser.add_argument("--seed", default=0, type=int)


class Stripes(Dataset[tuple[Tensor, int]]):
    """Images that are made when they are asked for, always the same for the same index."""

    def __init__(self, count: int, classes: int, seed: int) -> None:
        self.count = count
        self.classes = classes
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        label = index % self.classes
        angle = torch.tensor(3.14159 * label / self.classes)
        across = torch.arange(32.0).repeat(32, 1)
        wave = torch.sin(0.8 * (across * torch.cos(angle) + across.T * torch.sin(angle)))
        return wave.repeat(3, 1, 1) + 0.5 * torch.randn(3, 32, 32, generator=generator), label


class Block(nn.Module):
    """Two convolutions and a way past them."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.past: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.past = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.past(x))


class ResNet(nn.Module):
    """A small one, for images of 32 by 32."""

    def __init__(self, classes: int, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        first = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(widths[0]), nn.ReLU())
        pairs = zip((widths[0], *widths), widths, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, 1 if place == 0 else 2) for place, (a, b) in enumerate(pairs)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        scores: Tensor = self.head(features)
        return scores


class AverageMeter:
    """The latest value of something, and its mean."""

    def __init__(self, name: str, form: str = ".3f") -> None:
        self.name = name
        self.form = form
        self.value = 0.0
        self.sum = 0.0
        self.count = 0

    def update(self, value: float, n: int = 1) -> None:
        self.value = value
        self.sum += value * n
        self.count += n

    def all_reduce(self) -> None:
        total = torch.tensor([self.sum, float(self.count)])
        dist.all_reduce(total)
        self.sum, self.count = total[0].item(), int(total[1].item())

    @property
    def average(self) -> float:
        return self.sum / max(self.count, 1)

    def __str__(self) -> str:
        return f"{self.name} {self.value:{self.form}} ({self.average:{self.form}})"


def accuracy(scores: Tensor, target: Tensor, k: int) -> float:
    """The share of images whose class is among the first k, in percent."""
    best = scores.topk(k, dim=1).indices
    return 100 * (best == target[:, None]).any(1).float().mean().item()


def train(loader: DataLoader[Any], model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, args: Any) -> None:
    meters = [AverageMeter("time"), AverageMeter("loss"), AverageMeter("acc@1", ".1f")]
    criterion = nn.CrossEntropyLoss()
    rank, world = dist.get_rank(), dist.get_world_size()
    model.train()
    end = time.monotonic()
    for number, (images, target) in enumerate(loader):
        scores = model(images)
        loss = criterion(scores, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meters[1].update(loss.item(), len(images))
        meters[2].update(accuracy(scores, target, 1), len(images))
        meters[0].update(time.monotonic() - end)
        end = time.monotonic()
        if rank == 0 and number % args.print_freq == 0:
            print(f"epoch {epoch} [{number}/{len(loader)}] " + ", ".join(map(str, meters)), flush=True)
        # The same number for the same progress, whatever the number of processes.
        report(epoch * len(loader) + number + 1, rank, world)


@torch.no_grad()
def validate(loader: DataLoader[Any], model: nn.Module) -> float:
    top1 = AverageMeter("acc@1", ".1f")
    model.eval()
    for images, target in loader:
        top1.update(accuracy(model(images), target, 1), len(images))
    top1.all_reduce()
    return top1.average


def save_checkpoint(state: dict[str, Any], is_best: bool, path: Path) -> None:
    unfinished = path.with_name(path.name + ".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)
    if is_best:
        shutil.copyfile(path, path.with_name("model_best.pth.tar"))


def main() -> None:
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    dist.init_process_group("gloo")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    model = DistributedDataParallel(ResNet(args.classes))
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum, weight_decay=args.weight_decay)
    scheduler = StepLR(optimizer, step_size=30, gamma=0.1)
    start, best = 0, 0.0
    if args.resume.is_file():
        checkpoint = torch.load(args.resume, map_location="cpu")
        start, best = checkpoint["epoch"], checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        print(f"=> loaded {args.resume} (epoch {start})", flush=True)

    images = Stripes(args.images, args.classes, args.seed)
    sampler: DistributedSampler[tuple[Tensor, int]] = DistributedSampler(images)
    share = max(args.batch_size // world, 1)
    loader = DataLoader(images, share, sampler=sampler, num_workers=args.workers)
    held_out = Stripes(args.images // 4, args.classes, args.seed + 1)
    mine = Subset(held_out, range(rank, len(held_out), world))  # each image once, unlike a sampler that pads
    test_loader = DataLoader(mine, share, num_workers=args.workers)

    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        train(loader, model, optimizer, epoch, args)
        acc1 = validate(test_loader, model.module)
        scheduler.step()
        is_best, best = acc1 > best, max(acc1, best)
        if rank == 0:
            print(f"epoch {epoch}: accuracy {acc1:.1f} %, best {best:.1f} %", flush=True)
            state = {
                "epoch": epoch + 1,
                "state_dict": model.state_dict(),
                "best_acc1": best,
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            }
            save_checkpoint(state, is_best, args.resume)
    # torch 2.13 can hang where a DDP model goes out of scope right after a collective: its destructor waits for gloo's
    # thread with the interpreter's lock held, and that thread needs the lock to let go of the collective's tensor.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
