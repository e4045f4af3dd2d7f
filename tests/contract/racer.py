"""A program that races against others of its kind: it adds its own events to some jobs, one for each lap.

    racer.py WHERE NAME LAPS

It prints `ready`, waits for a line on its standard input, and then prints `LAP JOB REVISION` for every write that
was answered `Written`. A write that lost is decided again on what is there by then.
"""

from __future__ import annotations

import sys

from pliant.errors import StoreUnavailable
from pliant.stores.base import Outcome, Store, Write, Written
from pliant.stores.etcd import EtcdAccess, EtcdStore, parse_place
from pliant.stores.sqlite import SqliteStore

JOBS = ("a", "b", "c")


def open_store(where: str) -> Store:
    kind, _, rest = where.partition(":")
    if kind == "etcd":
        return EtcdStore(EtcdAccess(*parse_place(rest), deadline_s=30.0))
    assert kind == "sqlite"
    return SqliteStore(rest)


def attempt(store: Store, jobs: list[str], data: bytes) -> list[tuple[str, Outcome]]:
    writes = []
    for job in jobs:
        stored = store.read(job)
        revision = stored.revision if stored is not None else 0
        writes.append(Write(job, revision, (data,), b"record" if revision % 5 == 0 else None))
    try:
        return list(zip(jobs, store.write(writes), strict=True))
    except StoreUnavailable:  # by the contract nothing was written, so this is no different from having lost
        return []


def race(store: Store, name: str, laps: int) -> None:
    for lap in range(laps):
        waiting = list(JOBS)
        while waiting:
            for job, outcome in attempt(store, waiting, f"{name}:{lap}".encode()):
                if isinstance(outcome, Written):
                    print(lap, job, outcome.revision, flush=True)
                    waiting.remove(job)


if __name__ == "__main__":
    opened = open_store(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    race(opened, sys.argv[2], int(sys.argv[3]))
