"""The script of the jobs of `slow_worker.py`: a record takes a worker a time of its own, as on a device."""

import os
import sys
import time
from pathlib import Path
from typing import BinaryIO

import torch
from agents import STAMP
from torch import nn
from torch.utils.data import TensorDataset

RECORD_S = 0.002
RECORDS = 10**7  # more than a measurement takes
BATCH = 16


def compute(file: BinaryIO, records: int, seconds: float) -> None:
    time.sleep(records * seconds)
    file.write(STAMP.pack(time.time(), records))


def train_live(file: BinaryIO, seconds: float) -> None:
    import pliant.torch as pliant

    model = nn.Linear(1, 1)
    data = TensorDataset(torch.zeros(RECORDS, 1))
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), 0.1), data, batch_size=BATCH * 4, slots=16)
        for (x,) in run:
            compute(file, len(x), seconds)
            model(x).mean().backward()
            run.step()


def take_shards(file: BinaryIO, seconds: float, deadline_s: float) -> None:
    import pliant.tasks

    with pliant.tasks.join() as job:
        for batch in job.train(range(RECORDS), batch_size=BATCH, records_per_shard=BATCH * 20, deadline_s=deadline_s):
            compute(file, len(batch), seconds)


def main() -> None:
    folder, mode, deadline_s = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    seconds = RECORD_S * float(os.environ.get("BENCH_TIMES", "1"))
    with (folder / str(os.getpid())).open("ab", buffering=0) as file:
        if mode == "live":
            train_live(file, seconds)
        else:
            take_shards(file, seconds, deadline_s)


if __name__ == "__main__":
    main()
