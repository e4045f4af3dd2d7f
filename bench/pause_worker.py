"""A worker of `bench/pause.py` under Pliant, torchft or torchrun, with the same model and data. Stamps its steps."""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch._C._distributed_c10d import TCPStore  # torch.distributed's own; only here it has types
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset
from training_worker import BATCH, EPOCHS, drawn, network, sgd

FOLDER = Path(os.environ.get("BENCH_FOLDER", ""))  # empty in the harness, which imports this module
WORLD, MODEL = int(os.environ.get("BENCH_WORLD", "0")), os.environ.get("BENCH_MODEL", "")
STAMP = struct.Struct("<dqI")  # the time of a step, the number of its world, and the size of that
LIGHTHOUSE, SEAT = "BENCH_LIGHTHOUSE", "BENCH_SEAT"
COLLECTIVE_S = 5.0  # limit of a collective in torchft and torchrun, which nothing but this ends if a peer is stopped
SNAPSHOT_EVERY = 50  # steps


class Stamps:
    """One record for each step of this process."""

    def __init__(self, seat: str) -> None:
        self._file = (FOLDER / f"{seat}.{os.getpid()}.stamps").open("wb", buffering=0)

    def note(self, world: int, size: int) -> None:
        self._file.write(STAMP.pack(time.time(), world, size))


def train_with_pliant() -> None:
    import pliant.torch as pliant

    model = network(MODEL)
    optimizer = sgd(model)
    with pliant.join() as job:
        stamps = Stamps(job.member)
        run = job.train(model, optimizer, TensorDataset(*drawn(BATCH)), batch_size=BATCH, epochs=EPOCHS)
        for x, y in run:
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step():
                stamps.note(run.generation, run.size)


def train_with_torchft() -> None:
    from torchft import DistributedDataParallel as TorchftDdp  # type: ignore[import-not-found]
    from torchft import Manager, Optimizer, ProcessGroupGloo

    leaving = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: leaving.set())
    model, stamps = network(MODEL), Stamps(os.environ[SEAT])
    bare = sgd(model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        bare.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager: Any = Manager(
        ProcessGroupGloo(timeout=timedelta(seconds=COLLECTIVE_S)),
        load,
        lambda: {"model": model.state_dict(), "optimizer": bare.state_dict()},
        1,
        timeout=timedelta(seconds=COLLECTIVE_S),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=os.environ[LIGHTHOUSE],
        replica_id=f"{os.environ[SEAT]}-",
        hostname="127.0.0.1",
        heartbeat_interval=timedelta(milliseconds=50),
    )
    wrapped, optimizer, draw = TorchftDdp(manager, model), Optimizer(manager, bare), batches(os.getpid())
    while not leaving.is_set():
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            stamps.note(manager._quorum_id, manager.num_participants())
    manager.shutdown()


def train_with_torchrun() -> None:
    stamps = Stamps(os.environ[SEAT])
    dist.init_process_group("gloo", timeout=timedelta(seconds=COLLECTIVE_S))
    rank, size = dist.get_rank(), dist.get_world_size()
    model = network(MODEL)
    optimizer, snapshot, step = sgd(model), FOLDER / "snapshot.pt", 0
    if snapshot.exists():
        saved = torch.load(snapshot)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    wrapped, draw = DistributedDataParallel(model), batches(rank)
    while True:
        x, y = draw()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        stamps.note(int(os.environ["MASTER_PORT"]), size)
        if rank == 0 and step % SNAPSHOT_EVERY == 1:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, snapshot.with_suffix(".unfinished"))
            snapshot.with_suffix(".unfinished").replace(snapshot)


def batches(seed: int) -> Any:
    """Return a function that draws the batch of one worker in a full world."""
    x, y = drawn(BATCH)
    chance = torch.Generator().manual_seed(seed)

    def draw() -> tuple[torch.Tensor, torch.Tensor]:
        picked = torch.randint(len(x), (BATCH // WORLD,), generator=chance)
        return x[picked], y[picked]

    return draw


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"torchft": train_with_torchft, "torchrun": train_with_torchrun}.get(sys.argv[-1], train_with_pliant)()
