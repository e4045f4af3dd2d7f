"""Measure the stores side by side: SQLite, one etcd, and an etcd cluster of three, all of them flushing to this disk.

A report of a training job is one write: some committed steps, and a record with every 64 events. Measures the time of
such a write alone and in a batch for 100 jobs, the bytes that a step takes in the store, and the time to read all live
jobs in pages as a coordinator does that takes over. The bytes in etcd are those in use after compaction; before it, the
old values of changed keys take room as well. Prints a table and, as its last line, one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pliant.core.data.ledger import GENESIS, make_line
from pliant.core.data.sample_order import Cursor
from pliant.core.messages import StepsCommitted
from pliant.core.model.names import MemberId
from pliant.stores.base import Store, Write
from pliant.stores.etcd import EtcdAccess, EtcdStore
from pliant.stores.sqlite import SqliteStore
from pliant.wire.api import EVENTS

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from contract.etcd_cluster import etcd_cluster

RECORD_EVERY = 64
RECORD = json.dumps([{"member": f"vm-g1.{n}", "agent": f"vm-{n}", "address": f"10.0.0.{n}:4000"} for n in range(16)])
PAGE = 100
JOBS = (1, 100, 1000)


@dataclass(frozen=True, slots=True)
class StoreRow:
    """The figures of one store; times in milliseconds."""

    store: str
    write_p50_ms: float
    write_p99_ms: float
    batch_p50_ms: float
    bytes_per_step: float  # one step in each write
    bytes_per_step_of_ten: float  # ten steps in each write
    takeover_ms: dict[int, float]  # by the number of live jobs


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and a function for the bytes that it uses."""

    store: Store
    nbytes: Callable[[], int]


def steps(per_write: int) -> Iterator[bytes]:
    """Yield the events of a job that commits `per_write` steps in each report."""
    lineage, step = GENESIS, 0
    while True:
        lines = []
        for _ in range(per_write):
            step += 1
            lines.append(make_line(lineage, 1, step, Cursor(0, 16 * step), 16, step * 0x9E3779B97F4A7C15 % 2**64))
            lineage = lines[-1].lineage
        yield EVENTS.encode(StepsCommitted(1.8e9 + step / 10, 1, MemberId("vm-g1.0"), tuple(lines)))


def report(job: str, revision: int, event: bytes) -> Write:
    record = f"{revision} {RECORD}".encode() if revision % RECORD_EVERY == 0 else None
    return Write(job, revision, (event,), record)


@contextmanager
def sqlite(folder: Path) -> Iterator[Opened]:
    path = folder / "store.db"

    def nbytes() -> int:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return path.stat().st_size

    with SqliteStore(path, wait_s=30.0) as store:
        yield Opened(store, nbytes)


@contextmanager
def etcd(folder: Path, members: int) -> Iterator[Opened]:
    with (
        etcd_cluster(folder, members, flush=True) as cluster,
        EtcdStore(EtcdAccess(cluster.endpoints, deadline_s=30.0)) as store,
    ):

        def nbytes() -> int:
            server = cluster.servers[0]
            newest: Any = server.ask("/v3/kv/put", {"key": "AA==", "value": ""})["header"]
            server.ask("/v3/kv/compaction", {"revision": newest["revision"], "physical": True}, 60.0)
            server.ask("/v3/maintenance/defragment", {}, 60.0)
            return int(str(server.ask("/v3/maintenance/status", {})["dbSizeInUse"]))

        yield Opened(store, nbytes)


def measure(name: str, opened: Opened, writes: int) -> StoreRow:
    times, single = _write_alone(opened, "alone", writes, 1)
    _, ten = _write_alone(opened, "ten", writes // 4, 10)
    batches = []
    events = steps(1)
    for revision, event in enumerate(islice(events, max(10, writes // 50))):
        batch = [report(f"many-{job}", revision, event) for job in range(100)]
        begin = time.perf_counter()
        opened.store.write(batch)
        batches.append(time.perf_counter() - begin)
    takeover = {}
    there = len(opened.store.jobs())
    for wanted in JOBS:
        new = [Write(f"more-{number}", 0, (b"{}",), RECORD.encode()) for number in range(there, wanted)]
        opened.store.write(new)
        there = max(there, wanted)
        begin = time.perf_counter()
        read = _read_live(opened.store, wanted)
        takeover[read] = round((time.perf_counter() - begin) * 1e3, 1)
    return StoreRow(
        name, _ms(times, 0.5), _ms(times, 0.99), _ms(batches, 0.5), round(single, 1), round(ten, 1), takeover
    )


def _write_alone(opened: Opened, job: str, count: int, per_write: int) -> tuple[list[float], float]:
    """Return the seconds of each write, and the bytes for each step."""
    before = opened.nbytes()
    times = []
    for revision, event in enumerate(islice(steps(per_write), count)):
        write = report(job, revision, event)
        begin = time.perf_counter()
        opened.store.write([write])
        times.append(time.perf_counter() - begin)
    return times, (opened.nbytes() - before) / (count * per_write)


def _read_live(store: Store, wanted: int) -> int:
    """Read up to `wanted` live jobs in pages."""
    seen, after = 0, ""
    while seen < wanted and (page := store.read_page(after, min(PAGE, wanted - seen))):
        seen, after = seen + len(page), page[-1][0]
    return seen


def _ms(times: list[float], quantile: float) -> float:
    ordered = sorted(times)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * quantile))] * 1e3, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writes", type=int, default=2000, help="reports of one job to write alone")
    given = parser.parse_args()
    print("store        | write p50    p99 | 100 jobs | bytes/step  of ten | takeover 1    100   1000 jobs, ms")
    rows = []
    for name, members in (("sqlite", 0), ("etcd", 1), ("etcd of 3", 3)):
        with (
            tempfile.TemporaryDirectory(prefix="pliant-bench-") as home,
            etcd(Path(home), members) if members else sqlite(Path(home)) as opened,
        ):
            row = measure(name, opened, given.writes)
        rows.append(row)
        takeover = " ".join(f"{ms:8.1f}" for ms in row.takeover_ms.values())
        print(
            f"{row.store:12} | {row.write_p50_ms:9.2f} {row.write_p99_ms:6.1f} | {row.batch_p50_ms:8.1f} "
            f"| {row.bytes_per_step:10.0f} {row.bytes_per_step_of_ten:7.0f} | {takeover}",
            flush=True,
        )
    print(json.dumps({"rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
