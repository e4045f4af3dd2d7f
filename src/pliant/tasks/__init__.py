"""Work through record files with a task queue: members take shards, each at its own pace.

with pliant.tasks.join() as job:
    run = job.train(data, records_per_shard=4096, batch_size=64, epochs=2)
    for batch in run: ...
"""

from pliant.tasks.job import TaskJob, join
from pliant.tasks.left import LeftQueue
from pliant.tasks.run import TaskRun

__all__ = ["LeftQueue", "TaskJob", "TaskRun", "join"]
