"""A worker of `bench/step_parts.py`: blocks of steps of Pliant, with a clock for each part, of DDP, and alone."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from overhead_worker import Plain, build, loss_of, samples
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from training_worker import EPOCHS, sgd

import pliant.torch as pliant
from pliant.torch.engine import TorchEngine
from pliant.torch.group.tcp import TensorTcpGroup
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.floating import FloatingReducer
from pliant.torch.state.optimizers import Optimizers
from pliant.train.group.tcp import TcpPending
from pliant.train.live.checkpointing import MemberCheckpoints
from pliant.train.live.data.loader import LiveLoader
from pliant.train.live.state_hash import StateHash
from pliant.train.session import Session

USER_CODE, REST = "forward and backward", "the rest of the loop"
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "reading samples": ((LiveLoader, "load"), (LiveLoader, "expect")),
    "seeding": ((TorchEngine, "seed"),),
    "hooks of backward": ((Reducer, "_arrived"),),
    "filling buckets": ((FloatingReducer, "_fill"), (FloatingReducer, "_fill_tail")),
    "sending and waiting": ((TensorTcpGroup, "all_reduce"), (TensorTcpGroup, "start_all_reduce"), (TcpPending, "wait")),
    "reading the sums": ((FloatingReducer, "_read"), (Reducer, "write_gradients")),
    "the member machine": ((Session, "feed"), (Session, "feed_and_take")),
    "checks of the state": ((StateHash, "at_boundary"), (StateHash, "after_backward"), (Reducer, "_require_untouched")),
    "checkpoints": ((MemberCheckpoints, "at_boundary"), (MemberCheckpoints, "copy_before_change")),
    "is the gradient finite": ((Optimizers, "can_step"),),
    "optimizer": ((Optimizers, "step"),),
}


class Clock:
    """Seconds by part. The time of a part within another one counts for the inner one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._within: list[str] = []
        self._since = time.perf_counter()

    def start(self, part: str) -> None:
        self._count()
        self._within.append(part)

    def stop(self) -> None:
        self._count()
        self._within.pop()

    def reset(self) -> None:
        self.seconds.clear()
        self._since = time.perf_counter()

    def _count(self) -> None:
        now = time.perf_counter()
        self.seconds[self._within[-1] if self._within else REST] += now - self._since
        self._since = now

    def watch(self, part: str, kind: type, name: str) -> None:
        method = getattr(kind, name)

        @wraps(method)
        def timed(*arguments: Any, **named: Any) -> Any:
            self.start(part)
            try:
                return method(*arguments, **named)
            finally:
                self.stop()

        setattr(kind, name, timed)


def main() -> None:
    folder, size, name = Path(os.environ["BENCH_FOLDER"]), int(os.environ["BENCH_WORLD"]), os.environ["BENCH_MODEL"]
    rounds, steps = int(os.environ["BENCH_ROUNDS"]), int(os.environ["BENCH_STEPS"])
    torch.set_num_threads(1)
    clock = Clock()
    for part, methods in PARTS.items():
        for kind, method in methods:
            clock.watch(part, kind, method)
    x, y, batch = samples(name)
    model = build(name)
    others: dict[str, Plain] = {}
    measured = block = 0
    with pliant.join() as job:
        run = job.train(model, sgd(model), TensorDataset(x, y), batch_size=batch, epochs=EPOCHS)
        for part_x, part_y in run:
            clock.start(USER_CODE)
            loss_of(model, part_x, part_y).backward()  # type: ignore[no-untyped-call]
            clock.stop()
            if not run.step() or run.size < size or measured == rounds:
                continue
            if not others:
                dist.init_process_group("gloo", init_method=f"file://{folder}/ddp", rank=run.rank, world_size=size)
                others = {
                    "ddp": Plain(build(name), DistributedDataParallel, x, y, batch // size),
                    "no reduction": Plain(build(name), lambda bare: bare, x, y, batch // size),
                }
                for each in others.values():
                    each.block(steps)  # a warm-up
                clock.reset()
                continue
            block += 1
            if block == steps:
                parts = {part: seconds / steps for part, seconds in clock.seconds.items()}
                times = {each: other.block(steps) for each, other in others.items()}
                measured += 1
                if run.rank == 0:
                    with (folder / "rounds").open("a") as file:
                        file.write(json.dumps({"pliant": parts, **times}) + "\n")
                block = 0
                clock.reset()


if __name__ == "__main__":
    main()
