"""All parsers of bytes that come from sockets and files.

| bytes | parsers |
|---|---|
| requests to a coordinator | `live.py` whole requests; `wire.py` bodies of each route, and parts of the head |
| answers of a coordinator | `wire.py` each type of answer, event pages, server-sent events, views, problems |
| connections between members | `peers.py` hello, challenge, requests, replies, values, heads and trees of transfers |
| collectives | `peers.py` control rows |
| parameter servers | `tables.py` messages, requests, answers, checkpoints and their names |
| stores | `stores.py` damaged pages, values and answers of etcd, segments; `wire.py` records; `files.py` the mark |
| checkpoints | `files.py` tree, header, manifest, names, owner |
| a job's folder | `files.py` token, endpoint.json, lock, command.json, logs, error files, metrics.csv |
| data files | `records.py` TFRecord, tf.Example, RecordIO, CSV, Parquet, compressed files |
| clouds, notice files, /proc | `files.py` |
| environment and options | `texts.py` |

Three formats are not here, because both ends are one program of one user, before and after a fork: orders to the
spawner (`agent/process`), batches of data workers (`torch/data/shared_memory.py`), and the pipe of `pliant chaos`.
"""

from __future__ import annotations

from fuzz import files, peers, records, stores, tables, texts, wire

PARSERS = [
    *wire.PARSERS,
    *peers.PARSERS,
    *tables.PARSERS,
    *files.PARSERS,
    *texts.PARSERS,
    *stores.PARSERS,
    *records.PARSERS,
]
