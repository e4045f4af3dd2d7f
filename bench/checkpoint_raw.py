"""Train with plain PyTorch, or DDP on several ranks, and save with torch's own functions, for `bench/checkpoint.py`."""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from checkpoint_turns import BATCHES, FEATURES, STEPS, Turns, adam, network
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save
from torch.nn.parallel import DistributedDataParallel


class Saving:
    """A way to save: `begin` before a step, `secure` before the state changes, `finish` at the end of a turn."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, turns: Turns) -> None:
        self._model = model
        self._optimizer = optimizer
        self._folder = folder
        self._turns = turns
        self._count = 0

    def begin(self) -> None:
        began = time.perf_counter()
        self._count += 1
        self.save(self._folder / str(self._count))
        self._turns.noted.calls_s = time.perf_counter() - began

    def secure(self) -> None:
        pass

    def finish(self) -> None:
        """Remove all checkpoints but the last."""
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(self._folder / str(self._count - 1), ignore_errors=True)

    def save(self, where: Path) -> None:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}


class Plain(Saving):
    """`torch.save` on the first rank, the common way. It does not flush."""

    def save(self, where: Path) -> None:
        if dist.get_rank() == 0:
            where.mkdir(parents=True)
            torch.save(self.state(), where / "state.pt")
        self._turns.noted.done = time.time()


class Async(Saving):
    """`async_save` with its defaults: it copies the whole state and returns, and a thread writes and flushes."""

    _saved: Future[Any]
    _group: dist.ProcessGroup | None = None

    def save(self, where: Path) -> None:
        noted = self._turns.noted
        if self._group is None:  # its thread must not use the group of the training
            self._group = dist.new_group(backend="gloo")
        self._saved = self.started(str(where))
        self._saved.add_done_callback(lambda _: setattr(noted, "done", time.time()))

    def started(self, where: str) -> Future[Any]:
        response = async_save(self.state(), checkpoint_id=where, process_group=self._group)
        assert isinstance(response, Future)
        return response

    def finish(self) -> None:
        if self._count:
            self._saved.result()
        super().finish()


class Staged(Async):
    """The fastest variant on a CPU: a persistent stager with its own memory, which copies in a thread."""

    _stager: DefaultStager | None = None
    _response: AsyncSaveResponse | None = None

    def started(self, where: str) -> Future[Any]:
        if self._stager is None:
            self._stager = DefaultStager(StagingOptions(False, False, True, False))
        response = async_save(self.state(), checkpoint_id=where, process_group=self._group, async_stager=self._stager)
        assert isinstance(response, AsyncSaveResponse)
        self._response = response
        return response.upload_completion

    def secure(self) -> None:
        if self._response is not None:
            began = time.perf_counter()
            self._response.staging_completion.result()
            self._response = None
            self._turns.noted.waits_s += time.perf_counter() - began


WAYS: dict[str, type[Saving]] = {"save": Plain, "async": Async, "staged": Staged}


def main() -> None:
    way, rank, world = sys.argv[1], int(sys.argv[2]), int(os.environ["BENCH_WORLD"])
    name, folder = os.environ["BENCH_MODEL"], Path(os.environ["BENCH_FOLDER"])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    model = network(name)
    trained = DistributedDataParallel(model) if world > 1 else model
    optimizer = adam(model)
    x, y = torch.randn(BATCHES[name], FEATURES), torch.randint(10, (BATCHES[name],))
    turns = Turns(folder, rank, STEPS[name])
    saving = WAYS[way](model, optimizer, folder / "saved", turns)
    while turns.begin():
        over = False
        while not over:
            if turns.saves:
                saving.begin()
            F.cross_entropy(trained(x), y).backward()  # type: ignore[no-untyped-call]
            saving.secure()
            optimizer.step()
            optimizer.zero_grad()
            over = turns.stepped()
        saving.finish()
        turns.done()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
