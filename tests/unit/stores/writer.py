"""A program that writes without end, and dies when it is killed.

writer.py PATH          batches over three jobs; prints the revision of each batch once it was acknowledged
writer.py PATH hold     gains a hold, prints its term, and waits to be killed
"""

from __future__ import annotations

import sys
import time

from pliant.stores.base import Hold, Write, Written
from pliant.stores.sqlite import SqliteStore

JOBS = ("a", "b", "c")
EVENTS = 2


def write(store: SqliteStore) -> None:
    stored = store.read(JOBS[0])
    revision = stored.revision if stored is not None else 0
    while True:
        events = tuple(f"{revision + i + 1}".encode() for i in range(EVENTS))
        record = f"after {revision + EVENTS}".encode() if revision % 3 == 0 else None
        outcomes = store.write([Write(job, revision, events, record) for job in JOBS])
        revision += EVENTS
        assert outcomes == (Written(revision),) * len(JOBS)
        print(revision, flush=True)


def hold(store: SqliteStore) -> None:
    held = store.hold("lead", "the one that dies", 3600.0, time.monotonic())
    assert isinstance(held, Hold)
    print(held.term, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    opened = SqliteStore(sys.argv[1])
    if sys.argv[2:] == ["hold"]:
        hold(opened)
    else:
        write(opened)
