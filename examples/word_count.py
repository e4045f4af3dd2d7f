"""Count words of records with a task queue: workers of different speed take shards, each at its own pace.

    pliant run --job words --workers 1:4 --target 2 examples/word_count.py

Kill a worker with kill -9 while it runs: its shard is given to another one, and `pliant audit words` accounts for
every record.
"""

import argparse
import time

import pliant.tasks


class Lines:
    """Generated records, by number. `pliant.records.open_records` reads real files in the same way."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> list[str]:
        return f"record {number} has {number % 7} words".split()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=20_000)
    options.add_argument("--records-per-shard", type=int, default=500)
    options.add_argument("--batch-s", type=float, default=0.02, help="pretend that a batch takes so long")
    given = options.parse_args()
    data, held_out = Lines(given.records), Lines(1000)
    words = 0
    with pliant.tasks.join() as job:
        run = job.train(data, batch_size=50, records_per_shard=given.records_per_shard, epochs=1, evaluation=held_out)
        for batch in run:
            count = sum(len(record) for record in batch)
            if run.evaluating:
                run.add(words=count)
                continue
            words += count
            time.sleep(given.batch_s)
    print(f"{job.member} counted {words} words")


if __name__ == "__main__":
    main()
