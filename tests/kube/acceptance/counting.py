"""A task queue that counts in a table of parameter servers how often each record was pushed, for pods.

Half of the shards wait in their middle until the file `hurry` exists. The evaluation reports the records that no push
reached, and those that more than one reached.
"""

import threading
from pathlib import Path

import numpy as np

import pliant.tasks
from pliant.ps import SGD, Table

HURRY = Path("/tmp/hurry")
LOOK_S = 0.1
RECORDS, SHARD, BATCH = 2000, 50, 5


def main() -> None:
    pause = threading.Event()
    with pliant.tasks.join() as job:
        run = job.train(
            range(RECORDS),
            batch_size=BATCH,
            records_per_shard=SHARD,
            evaluation=range(RECORDS),
            tables=[Table("counts", 1, SGD(1.0), scale=0.0)],
        )
        for batch in run:
            if run.evaluating:
                counts = run.pull("counts", batch)
                run.add(missing=float((counts < 1).sum()), repeated=float((counts > 1).sum()))
                continue
            run.push({"counts": (batch, np.full((len(batch), 1), -1.0))})
            while batch[0] % (2 * SHARD) == SHARD // 2 and not HURRY.exists():
                pause.wait(LOOK_S)


if __name__ == "__main__":
    main()
