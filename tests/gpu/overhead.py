"""One worker of `make gpu`: train with plain DDP or with Pliant, and print the seconds of a step."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

import pliant.torch as pliant
from gpu.models import NAMES, Points, build, loss_of, one_tensor, optimizer_of, peak_mb, use, wait_for_device

WARM = 10
SAMPLES = 4096
STEPS = {"gpt": 60}  # by model; 160 for the others, whose steps are short


class Clock:
    """The seconds of the steps, and of the CPU in each phase of a step. The GPU is waited for every five steps."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: list[float] = []
        self._phases: dict[str, list[float]] = {}
        self._peak_mb = 0.0
        self._began = self._at = time.perf_counter()

    def phase(self, name: str) -> None:
        """End a phase. Its time is the CPU's: what the GPU still has to do for it is not in it."""
        now = time.perf_counter()
        self._phases.setdefault(name, []).append(now - self._at)
        self._at = now

    def step(self, number: int) -> None:
        """End the step with this number, counted from 1."""
        if number % 5 == 0:
            wait_for_device(self._device)
            self._at = time.perf_counter()
            self._steps += [(self._at - self._began) / 5] * 5
            self._peak_mb = peak_mb(self._device)  # that of steps: a checkpoint at the end takes memory of its own
            self._began = self._at

    def report(self, name: str, size: int, how: str) -> None:
        wait_for_device(self._device)
        found = {
            "how": how,
            "model": name,
            "size": size,
            "median_ms": 1e3 * statistics.median(self._steps[WARM:]),
            "cpu_ms": {each: round(1e3 * statistics.median(took[WARM:]), 3) for each, took in self._phases.items()},
            "memory_mb": self._peak_mb,
        }
        print(json.dumps(found), flush=True)


def ddp(name: str, steps: int, batch: int, device: torch.device) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model = build(name, device)
    wrapped: nn.Module = model
    if size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = optimizer_of(name, model)
    data = Points(name, SAMPLES, device)
    share = batch // size
    clock = Clock(device)
    for step in range(steps):
        at = (step * batch + rank * share) % SAMPLES
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


def elastic(
    name: str, steps: int, batch: int, device: torch.device, collectives: Literal["nccl", "tcp"] | None
) -> None:
    model = build(name, device)
    optimizer = optimizer_of(name, model)
    data = Points(name, SAMPLES, device)
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
        clock = Clock(device)
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["ddp", "pliant", "tcp"])
    parser.add_argument("--model", default="10M", choices=NAMES)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, default=128)
    given = parser.parse_args()
    steps = given.steps or STEPS.get(given.model, 160)
    if given.how == "ddp":
        ddp(given.model, steps, given.batch, use(given.device))
    else:
        elastic(given.model, steps, given.batch, use(given.device), "tcp" if given.how == "tcp" else None)


if __name__ == "__main__":
    main()
