"""One worker of `make gpu`: train with plain DDP over NCCL or with Pliant, and print the seconds of a step."""

from __future__ import annotations

import argparse
import json
import os
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


MODELS: dict[str, Any] = {"10M": lambda: mlp(1024, 10), "100M": lambda: mlp(3200, 10), "gpt": GPT}


class Points(Dataset[Any]):
    """Samples that stay on the GPU, so that loading costs neither side anything."""

    def __init__(self, name: str, count: int, device: torch.device) -> None:
        if name == "gpt":
            self.x = torch.randint(0, 32000, (count, 257), device=device)
        else:
            self.x = torch.randn(count, 1024 if name == "10M" else 3200, device=device)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.x[index]

    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return self.x[torch.tensor(indices, device=self.x.device)]


def loss_of(name: str, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    if name == "gpt":
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(x[:, :-1])
        return cross_entropy(scores.flatten(0, 1).float(), x[:, 1:].flatten())
    found: torch.Tensor = (model(x) - x).square().mean()
    return found


def report(times: list[float], name: str, size: int, how: str) -> None:
    torch.cuda.synchronize()
    took = sorted(times[WARM:])
    memory = torch.cuda.max_memory_allocated() / 1e6
    print(
        json.dumps(
            {"how": how, "model": name, "size": size, "median_ms": 1e3 * took[len(took) // 2], "memory_mb": memory}
        ),
        flush=True,
    )


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
    times: list[float] = []
    last = time.perf_counter()
    for step in range(steps):
        at = (step * batch + rank * share) % 4096
        loss = loss_of(name, wrapped, data.x[at : at + share])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 4:
            torch.cuda.synchronize()
            now = time.perf_counter()
            times += [(now - last) / 5] * 5
            last = now
    if rank == 0:
        report(times, name, size, "ddp")
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def elastic(name: str, steps: int, batch: int, collectives: Literal["nccl", "gloo"] | None) -> None:
    import pliant.torch as pliant

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    optimizer = optimizer_of(name, model)
    data = Points(name, 4096, device)
    times: list[float] = []
    with pliant.join() as job:
        run = job.train(
            model,
            optimizer,
            data,
            batch_size=batch,
            epochs=1000,
            max_steps=steps,
            collate_fn=one_tensor,
            collectives=collectives,
        )
        last = time.perf_counter()
        for x in run:
            run.backward(loss_of(name, model, x))
            run.step()
            if run.step_number % 5 == 0:
                torch.cuda.synchronize()
                now = time.perf_counter()
                times += [(now - last) / 5] * 5
                last = now
        if run.rank == 0:
            report(times, name, run.size, f"pliant {collectives or ''}".strip())


def one_tensor(samples: Any) -> Any:
    """Return a batch that the data set made itself as it is, and stack single samples."""
    return samples if isinstance(samples, torch.Tensor) else torch.stack(samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["ddp", "pliant", "gloo"])
    parser.add_argument("--model", default="10M")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    given = parser.parse_args()
    if given.how == "ddp":
        ddp(given.model, given.steps, given.batch)
    else:
        elastic(given.model, given.steps, given.batch, "gloo" if given.how == "gloo" else None)
    sys.exit(0)
