"""Readers of record files and queues, for live training and for the task queue: one interface over all formats.

`open_records` opens files by their format. Every reader of files is a map-style data set, and reads a range in order.
`QueueRecords` reads a queue whose records have offsets, and `open_redis_streams` opens such a queue.
"""

from pliant.records.base import Records
from pliant.records.open import FORMATS, open_records
from pliant.records.queues.partitioned import QueueRecords, RecordQueue
from pliant.records.queues.redis_streams import open_redis_streams

__all__ = ["FORMATS", "QueueRecords", "RecordQueue", "Records", "open_records", "open_redis_streams"]
