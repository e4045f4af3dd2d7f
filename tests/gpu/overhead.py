"""One worker of `make gpu`: train with plain DDP over NCCL or with Pliant, and print the seconds of a step."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

WARM = 10


def mlp(width: int, depth: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())))


class GPT(nn.Module):
    """A decoder of transformer layers, of about 350 M parameters."""

    def __init__(self, vocabulary: int = 32000, width: int = 1024, layers: int = 24, length: int = 256) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        found: torch.Tensor = self.head(self.layers(self.tokens(x) + self.places[: x.shape[1]], mask, is_causal=True))
        return found


WIDTHS = {"10M": 1024, "100M": 3200, "1B": 8192}
MODELS: dict[str, Any] = {
    "10M": lambda: mlp(WIDTHS["10M"], 10),
    "100M": lambda: mlp(WIDTHS["100M"], 10),
    "1B": lambda: mlp(WIDTHS["1B"], 15),
    "gpt": GPT,
}


class Points(Dataset[Any]):
    """Samples that stay on the GPU. Read in order, a batch is a view, which costs neither side anything."""

    def __init__(self, name: str, count: int, device: torch.device) -> None:
        if name == "gpt":
            self.x = torch.randint(0, 32000, (count, 257), device=device)
        else:
            self.x = torch.randn(count, WIDTHS[name], device=device)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index]

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        first, last = indices[0], indices[-1]
        if indices == list(range(first, last + 1)):
            return self.x[first : last + 1]
        return self.x[torch.tensor(indices, device=self.x.device)]


def loss_of(name: str, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if name == "gpt":
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(x[:, :-1])
        return cross_entropy(scores.flatten(0, 1).float(), x[:, 1:].flatten())
    found: torch.Tensor = (model(x) - x).square().mean()
    return found


class Clock:
    """The seconds of the steps, and of the CPU in each phase of a step. The GPU is waited for every five steps."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._phases: dict[str, list[float]] = {}
        self._began = self._at = time.perf_counter()

    def phase(self, name: str) -> None:
        """End a phase. Its time is the CPU's: what the GPU still has to do for it is not in it."""
        now = time.perf_counter()
        self._phases.setdefault(name, []).append(now - self._at)
        self._at = now

    def step(self, number: int) -> None:
        """End the step with this number, counted from 1."""
        if number % 5 == 0:
            torch.cuda.synchronize()
            self._at = time.perf_counter()
            self._steps += [(self._at - self._began) / 5] * 5
            self._began = self._at

    def report(self, name: str, size: int, how: str) -> None:
        torch.cuda.synchronize()
        found = {
            "how": how,
            "model": name,
            "size": size,
            "median_ms": 1e3 * statistics.median(self._steps[WARM:]),
            "cpu_ms": {each: round(1e3 * statistics.median(took[WARM:]), 3) for each, took in self._phases.items()},
            "memory_mb": torch.cuda.max_memory_allocated() / 1e6,
        }
        print(json.dumps(found), flush=True)


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "gpt":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)


def ddp(name: str, steps: int, batch: int) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    wrapped: nn.Module = model
    if size > 1:
        dist.init_process_group("nccl")
        wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = optimizer_of(name, model)
    data = Points(name, 4096, device)
    share = batch // size
    clock = Clock()
    for step in range(steps):
        at = (step * batch + rank * share) % 4096
        loss = loss_of(name, wrapped, data.x[at : at + share])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        clock.phase("compute")
        optimizer.step()
        optimizer.zero_grad()
        clock.phase("apply")
        clock.step(step + 1)
    if rank == 0:
        clock.report(name, size, "ddp")
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def elastic(name: str, steps: int, batch: int, collectives: Literal["nccl", "tcp"] | None) -> None:
    import pliant.torch as pliant

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    optimizer = optimizer_of(name, model)
    data = Points(name, 4096, device)
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            data,
            batch_size=batch,
            epochs=1000,
            max_steps=steps,
            order="sequential",
            collate_fn=one_tensor,
            collectives=collectives,
        )
        clock = Clock()
        for x in run:
            clock.phase("next item")
            run.backward(loss_of(name, model, x))
            clock.phase("compute")
            if run.reduce():  # the two halves of run.step()
                clock.phase("reduce")
                run.apply()
            clock.phase("apply")
            clock.step(run.step_number)
        if run.rank == 0:
            clock.report(name, run.size, f"pliant {collectives or ''}".strip())


def one_tensor(samples: Any) -> Any:
    """Return a batch that the data set made itself as it is, and stack single samples."""
    return samples if isinstance(samples, torch.Tensor) else torch.stack(samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["ddp", "pliant", "tcp"])
    parser.add_argument("--model", default="10M")
    parser.add_argument("--steps", type=int, help="by default 60 for gpt, 160 for the others, whose steps are short")
    parser.add_argument("--batch", type=int, default=128)
    given = parser.parse_args()
    given.steps = given.steps or (60 if given.model == "gpt" else 160)
    if given.how == "ddp":
        ddp(given.model, given.steps, given.batch)
    else:
        elastic(given.model, given.steps, given.batch, "tcp" if given.how == "tcp" else None)
    sys.exit(0)
