"""A worker of a live job that trains in turns, for `bench/checkpoint.py`."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from checkpoint_turns import BATCHES, FEATURES, STEPS, Turns, adam, network
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.torch.run import Run
from pliant.train.checkpoint.background_writer import BackgroundWriter

EPOCHS = 10_000  # never reached: the job is cancelled
SAMPLES = 4096


def note_secure(turns: Turns) -> None:
    """Record the time that each step waits for the copy."""
    secure = BackgroundWriter.copy_rest

    def timed(self: BackgroundWriter) -> int:
        began = time.perf_counter()
        copied = secure(self)
        turns.noted.waits_s += time.perf_counter() - began
        turns.noted.copied += copied
        return copied

    BackgroundWriter.copy_rest = timed  # type: ignore[method-assign]  # in this process only, to measure


def state_hash(run: Run) -> str:
    """Return a hash of every byte of the state, as in a checkpoint."""
    digest = hashlib.sha256()
    for leaf in run._loop._state.capture().leaves:
        digest.update(leaf.content)
    return digest.hexdigest()


def main() -> None:
    name, world = os.environ["BENCH_MODEL"], int(os.environ["BENCH_WORLD"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network(name)
    optimizer = adam(model)
    data = TensorDataset(torch.randn(SAMPLES, FEATURES), torch.randint(10, (SAMPLES,)))
    with pliant.join() as job:
        run = job.train(
            model, optimizer, data, batch_size=BATCHES[name] * world, slots=world, epochs=EPOCHS, stall_s=1e5
        )
        turns: Turns | None = None
        for x, y in run:
            if turns is None:
                turns = Turns(Path(os.environ["BENCH_FOLDER"]), run.rank, STEPS[name])
                note_secure(turns)
                turns.begin()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step() and turns.stepped():
                if run.rank == 0:
                    turns.noted.state = state_hash(run)
                turns.done()
                if not turns.begin():
                    break


if __name__ == "__main__":
    main()
