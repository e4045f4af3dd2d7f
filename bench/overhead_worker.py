"""A worker of `bench/overhead.py`: blocks of Pliant's steps and of the others', in turn, in the same processes."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore  # torch.distributed's own; only here it has types
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from training_worker import BATCH, EPOCHS, STEPS_PER_EPOCH, drawn, network, sgd, step_raw

import pliant.torch as pliant

GPT_BATCH, GPT_LENGTH, GPT_TOKENS, GPT_WIDTH, GPT_LAYERS = 24, 16, 256, 64, 13
LIGHTHOUSE = "BENCH_LIGHTHOUSE"  # the address of torchft's


class Gpt(nn.Module):
    """A decoder of 0.7 M parameters in 159 tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(GPT_TOKENS, GPT_WIDTH)
        self.places = nn.Parameter(torch.zeros(GPT_LENGTH, GPT_WIDTH))
        layer = nn.TransformerEncoderLayer(GPT_WIDTH, 4, 4 * GPT_WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, GPT_LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(GPT_WIDTH, GPT_TOKENS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        found: Tensor = self.head(self.layers(self.tokens(x) + self.places, mask, is_causal=True))
        return found


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return Gpt() if name == "GPT" else network(name)


def samples(name: str) -> tuple[Tensor, Tensor, int]:
    """Return inputs, targets and the batch size."""
    if name != "GPT":
        return *drawn(BATCH), BATCH
    torch.manual_seed(0)
    tokens = torch.randint(GPT_TOKENS, (GPT_BATCH * STEPS_PER_EPOCH, GPT_LENGTH + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), GPT_BATCH


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    scores: Tensor = model(x)
    return F.cross_entropy(scores.flatten(0, -2), y.flatten())


class Plain:
    """Training with DDP over gloo, on batches of the same size."""

    def __init__(self, model: nn.Module, wrap: Callable[[nn.Module], nn.Module], x: Tensor, y: Tensor, part: int):
        self._optimizer = sgd(model)
        self._model = wrap(model)
        self._x, self._y, self._part = x, y, part
        self._chance = torch.Generator().manual_seed(dist.get_rank())

    def block(self, steps: int) -> float:
        """Train, and return the seconds of a step."""
        dist.barrier()
        began = time.perf_counter()
        for _ in range(steps):
            self._before()
            picked = torch.randint(len(self._x), (self._part,), generator=self._chance)
            loss_of(self._model, self._x[picked], self._y[picked]).backward()  # type: ignore[no-untyped-call]
            if self._may_step():
                step_raw(self._optimizer)
            self._optimizer.zero_grad()
        return (time.perf_counter() - began) / steps

    def _before(self) -> None:
        """Prepare a step."""

    def _may_step(self) -> bool:
        return True


class TorchFt(Plain):
    """Training with torchft: each worker is a replica group of its own."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor, part: int, size: int) -> None:
        from torchft import DistributedDataParallel, Manager, ProcessGroupGloo  # type: ignore[import-not-found]

        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._manager: Any = Manager(
            ProcessGroupGloo(),
            None,
            None,
            size,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self._store.port,
            lighthouse_addr=os.environ[LIGHTHOUSE],
            replica_id=f"replica-{dist.get_rank()}-",
            hostname="127.0.0.1",
            init_sync=False,
        )
        super().__init__(model, lambda bare: DistributedDataParallel(self._manager, bare), x, y, part)

    def _before(self) -> None:
        self._manager.start_quorum()

    def _may_step(self) -> bool:
        return bool(self._manager.should_commit())


def contestants(name: str, folder: Path, rank: int, size: int, x: Tensor, y: Tensor, batch: int) -> dict[str, Plain]:
    dist.init_process_group("gloo", init_method=f"file://{folder}/ddp", rank=rank, world_size=size)
    part = batch // size
    found = {
        "ddp": Plain(build(name), DistributedDataParallel, x, y, part),
        "ddp, bucket view": Plain(
            build(name), lambda bare: DistributedDataParallel(bare, gradient_as_bucket_view=True), x, y, part
        ),
    }
    if LIGHTHOUSE in os.environ and importlib.util.find_spec("torchft") is not None:
        found["torchft"] = TorchFt(build(name), x, y, part, size)
    return found


def main() -> None:
    folder, size, name = Path(os.environ["BENCH_FOLDER"]), int(os.environ["BENCH_WORLD"]), os.environ["BENCH_MODEL"]
    rounds, steps = int(os.environ["BENCH_ROUNDS"]), int(os.environ["BENCH_STEPS"])
    torch.set_num_threads(1)
    x, y, batch = samples(name)
    model = build(name)
    others: dict[str, Plain] = {}
    measured = block = 0
    began = 0.0
    with pliant.join() as job:
        run = job.train(model, sgd(model), TensorDataset(x, y), batch_size=batch, epochs=EPOCHS)
        for part_x, part_y in run:
            loss_of(model, part_x, part_y).backward()  # type: ignore[no-untyped-call]
            if not run.step() or run.size < size or measured == rounds:
                continue
            if not others:
                others = contestants(name, folder, run.rank, size, x, y, batch)
                for each in others.values():
                    each.block(steps)  # a warm-up
                block, began = 0, time.perf_counter()
                continue
            block += 1
            if block == steps:
                times = {"pliant": (time.perf_counter() - began) / steps}
                times |= {each: other.block(steps) for each, other in others.items()}
                measured += 1
                if run.rank == 0:
                    with (folder / "rounds").open("a") as file:
                        file.write(json.dumps(times) + "\n")
                block, began = 0, time.perf_counter()


if __name__ == "__main__":
    main()
