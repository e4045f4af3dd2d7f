"""Parameter servers: tables of rows in the memory of servers, pulled and pushed by the workers of a task queue.

    tables = [Table("ads", 16, Adagrad(0.05))]
    run = job.train(data, batch_size=64, records_per_shard=4096, tables=tables)
    rows = run.pull("ads", ids)
    run.push({"ads": (ids, gradients)})

`pliant run --ps N` starts the servers. Without a coordinator, the tables are in this process.
"""

from pliant.ps.tables.optimizers import SGD, Adagrad, Adam, Ftrl, Momentum
from pliant.ps.tables.spec import PushPolicy, Table

__all__ = ["SGD", "Adagrad", "Adam", "Ftrl", "Momentum", "PushPolicy", "Table"]
