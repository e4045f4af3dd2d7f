"""A worker of `bench/training.py`: alternates blocks of Pliant's and of DDP's steps, then records its steps."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import pliant.torch as pliant

BATCH = 168
FEATURES = 64
STEPS_PER_EPOCH = 64
EPOCHS = 10_000  # never reached: the job is cancelled after the measurements
SHAPES = {"S": (208, 2), "M": (1824, 3), "L": (5760, 3)}
STAMP = struct.Struct("<dI")


def network(name: str) -> nn.Module:
    """S has 0.1 M parameters, M has 10 M, L has 100 M."""
    width, depth = SHAPES[name]
    layers: list[nn.Module] = [nn.Linear(FEATURES, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


class Raw:
    """Plain DDP over gloo, in the same processes, with the same model and batches of the same size."""

    def __init__(
        self, model: nn.Module, folder: Path, rank: int, size: int, x: Tensor, y: Tensor, batch: int = BATCH
    ) -> None:
        dist.init_process_group("gloo", init_method=f"file://{folder}/ddp", rank=rank, world_size=size)
        self._model = DistributedDataParallel(model)
        self._optimizer = sgd(model)
        self._x, self._y = x, y
        self._part = batch // size
        self._chance = torch.Generator().manual_seed(rank)

    def block(self, steps: int) -> float:
        """Train, and return the seconds of a step."""
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            picked = torch.randint(len(self._x), (self._part,), generator=self._chance)
            F.cross_entropy(self._model(self._x[picked]), self._y[picked]).backward()  # type: ignore[no-untyped-call]
            step_raw(self._optimizer)
            self._optimizer.zero_grad()
        return (time.perf_counter() - began) / steps


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def drawn(batch: int) -> tuple[Tensor, Tensor]:
    """Return the samples of an epoch, the same in every process."""
    torch.manual_seed(0)
    count = batch * STEPS_PER_EPOCH
    return torch.randn(count, FEATURES), torch.randint(10, (count,))


def step_raw(optimizer: torch.optim.Optimizer) -> None:
    """Step an optimizer without torch's hooks, by which Pliant would refuse it."""
    type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]  # without torch's hooks


def main() -> None:
    folder, size = Path(os.environ["BENCH_FOLDER"]), int(os.environ["BENCH_WORLD"])
    rounds, steps = int(os.environ["BENCH_ROUNDS"]), int(os.environ["BENCH_STEPS"])
    torch.set_num_threads(1)
    x, y = drawn(BATCH)
    model, twin = network(os.environ["BENCH_MODEL"]), network(os.environ["BENCH_MODEL"])
    optimizer = sgd(model)
    done = folder / "compared.json"
    raw: Raw | None = None
    times: list[tuple[float, float]] = []
    block, began = 0, 0.0
    with pliant.join() as job, (folder / f"{job.member}.steps").open("wb", buffering=0) as stamps:
        run = job.train(model, optimizer, TensorDataset(x, y), batch_size=BATCH, epochs=EPOCHS)
        for part_x, part_y in run:
            F.cross_entropy(model(part_x), part_y).backward()  # type: ignore[no-untyped-call]
            if not run.step():
                continue
            stamps.write(STAMP.pack(time.time(), run.step_number))
            if run.size < size or len(times) == rounds or done.exists():
                continue
            if raw is None:
                raw = Raw(twin, folder, run.rank, size, x, y)
                raw.block(steps)  # the first is a warm-up
                block, began = 0, time.perf_counter()
                continue
            block += 1
            if block == steps:
                times.append(((time.perf_counter() - began) / steps, raw.block(steps)))
                block, began = 0, time.perf_counter()
                if len(times) == rounds:
                    dist.destroy_process_group()
                    if run.rank == 0:
                        done.with_suffix(".new").write_text(json.dumps(times))
                        done.with_suffix(".new").rename(done)


if __name__ == "__main__":
    main()
