"""The example's recommender, which also counts in a table how often the gradients of each record were applied.

Each worker writes down which records a push has, before it is sent and after it was acknowledged.
"""

import argparse
import threading
from pathlib import Path

import numpy as np
import torch
from wide_and_deep import TABLES, Clicks, WideAndDeep, collate

import pliant.tasks
from chaos.servers.pushes import TABLE, PushLog
from pliant.ps import Momentum, PushPolicy, Table
from pliant.torch.tables import push_gradients

COUNTS = Table(TABLE, 1, Momentum(1.0, momentum=1.0), scale=0.0)  # its slot is the sum of gradients
LOOK_S = 0.02
IDS = 400_000  # of each of the 26 categories: ten million rows


class RecordCounts:
    """A gradient of 1 for each record of a batch."""

    table = TABLE

    def __init__(self) -> None:
        self.numbers = range(0)

    def take_gradients(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.numbers, np.int64), np.full((len(self.numbers), 1), 1.0, np.float32)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--records", type=int, required=True)
    options.add_argument("--records-per-shard", type=int, required=True)
    options.add_argument("--batch-size", type=int, required=True)
    options.add_argument("--grads-to-wait", type=int, required=True)
    options.add_argument("--staleness-max", type=int, default=None)
    options.add_argument("--staleness-rates", action="store_true")
    given = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    hold, pause = given.folder / "hold", threading.Event()
    with pliant.tasks.join() as job:
        run = job.train(
            Clicks(given.records, ids=IDS),
            batch_size=given.batch_size,
            records_per_shard=given.records_per_shard,
            evaluation=Clicks(2000, first=1 << 40, ids=IDS),
            collate=collate,
            tables=[*TABLES, COUNTS],
            pushes=PushPolicy(given.grads_to_wait, given.staleness_max, given.staleness_rates),
        )
        pushes, counts, model = PushLog(given.folder, job.member), RecordCounts(), WideAndDeep(run)
        for batch in run:
            if run.evaluating:
                with torch.no_grad():
                    run.add(loss=model.loss(*batch).item() * len(batch[2]))
                continue
            while hold.exists():
                pause.wait(LOOK_S)
            counts.numbers = run.numbers
            applied = False
            while not applied:
                model.loss(*batch).backward()  # type: ignore[no-untyped-call]
                pushes.begun(run.numbers)
                applied = push_gradients(run, *model.parts, counts)
                pushes.answered(run.numbers, applied=applied)


if __name__ == "__main__":
    main()
