"""The script of the jobs of `resharding.py`: pull and push batches of Zipf ids, and write the seconds of each."""

import os
import sys
import time
from pathlib import Path

import numpy as np
from agents import STAMP

import pliant.tasks
from pliant.ps import Adagrad, Table

BATCH = 4096
FILL = 50_000  # rows in a push of the first ones
RECORDS = 10**9  # more than a measurement takes


def main() -> None:
    path, rows, dim = Path(sys.argv[1], str(os.getpid())), int(sys.argv[2]), int(sys.argv[3])
    rng = np.random.default_rng(os.getpid())
    with pliant.tasks.join() as job, path.open("ab", buffering=0) as file:
        table = Table("rows", dim, Adagrad(0.05))
        run = job.train(range(RECORDS), batch_size=BATCH, records_per_shard=BATCH * 100, tables=[table])
        batches = iter(run)
        next(batches)
        for start in range(0, rows, FILL):
            ids = np.arange(start, min(start + FILL, rows))
            run.push({"rows": (ids, np.ones((len(ids), dim), np.float32))})
        for _ in batches:
            ids = np.unique(np.minimum(rng.zipf(1.2, BATCH), rows) - 1)
            began = time.perf_counter()
            values = run.pull("rows", ids)
            run.push({"rows": (ids, values)})
            file.write(STAMP.pack(time.time(), time.perf_counter() - began))


if __name__ == "__main__":
    main()
