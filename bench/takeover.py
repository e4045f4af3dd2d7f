"""Measure how long a standby needs to lead after the leader was killed, with many jobs in a SQLite or etcd store.

Each live job has 8 members in a world. Ended jobs must cost nothing. Measures three times: the first pump of a
coordinator, in this process (`load`); the start of a coordinator's process until it leads (`start`); and the time from
the SIGKILL of the leader until the standby answers a command (`takeover`). Prints a table and, as its last line, one
JSON object. Timings are reported, not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pliant.client import Client
from pliant.coordinator.service.pump import Service
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import read_token
from pliant.stores.etcd import EtcdAccess, EtcdStore, parse_place
from pliant.stores.sqlite import SqliteStore

SIZE = 8
BATCH = 250  # jobs in one pump while a store is filled
TERMS = Terms(Grid(samples=6400, batch=64, slots=8, epochs=100), seed=1)
ROWS = ((1, 0), (100, 0), (1000, 0))  # live jobs and ended ones


@dataclass(frozen=True, slots=True)
class Row:
    """One store's figures, in seconds."""

    live: int
    ended: int
    load_s: float
    start_s: float
    takeover_s: float
    list_s: float


def opened(place: str) -> SqliteStore | EtcdStore:
    kind, _, where = place.partition(":")
    return SqliteStore(where) if kind == "sqlite" else EtcdStore(EtcdAccess(*parse_place(where)))


def fill(place: str, live: int, ended: int) -> None:
    """Write a store with that many jobs."""
    with opened(place) as store:
        service = Service(store, "fill", time.time)
        for kind, count in (("ended", ended), ("live", live)):
            for first in range(0, count, BATCH):
                names = [f"{kind}-{number:06}" for number in range(first, min(first + BATCH, count))]
                for name in names:
                    service.submit(name, m.Create(name, JobSpec(1, SIZE, Target(SIZE))), None)
                    if kind == "ended":
                        service.submit(name, m.Cancel("enough"), None)
                        continue
                    for number in range(SIZE):
                        member = MemberId(f"a{number}-1.1")
                        service.submit(name, m.Join(member, AgentId(f"a{number}"), TERMS), None)
                service.pump(time.monotonic())
        service.close()


def load_s(place: str) -> float:
    """Return the seconds of the first pump of a coordinator."""
    with opened(place) as store:
        service = Service(store, "load", time.time)
        start = time.perf_counter()
        service.pump(time.monotonic())
        took = time.perf_counter() - start
        service.close()
    return took


@contextmanager
def coordinator(home: str, place: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a coordinator on a store, for the block."""
    pliant = str(Path(sys.executable).parent / "pliant")
    command = [pliant, "coordinator", "--listen", "127.0.0.1:0", "--store", place, "--json"]
    environment = {**os.environ, "PLIANT_HOME": home}
    with (
        Path(home, "log").open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the coordinator did not start:\n{Path(home, 'log').read_text()}")
            yield process, json.loads(line)["url"]
        finally:
            process.kill()
            process.wait(30)


def measure(live: int, ended: int, etcd: str) -> Row:
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as home:
        place = f"etcd:{etcd}/{Path(home).name}" if etcd else f"sqlite:{home}/store.db"
        fill(place, live, ended)
        load = load_s(place)
        begun = time.perf_counter()
        with coordinator(home, place) as (leader, _):
            start = time.perf_counter() - begun
            with (
                coordinator(home, place) as (_, url),
                Client([url], read_token(Path(home, "token")), patience_s=60.0) as client,
            ):
                leader.kill()
                begun = time.perf_counter()
                client.send("live-000000", m.Resize(Target(SIZE - 1)))
                takeover = time.perf_counter() - begun
                begun = time.perf_counter()
                if (listed := len(client.jobs())) != live + ended:
                    raise SystemExit(f"{listed} jobs are listed, not {live + ended}")
                return Row(live, ended, load, start, takeover, time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ended", type=int, default=20_000, help="ended jobs in the last store")
    parser.add_argument("--etcd", default="", metavar="HOST:PORT,...", help="measure on this cluster, not on SQLite")
    given = parser.parse_args()
    rows: list[Row] = []
    print("  live  ended |  load s  start s  takeover s  list s")
    for live, ended in (*ROWS, (ROWS[-1][0], given.ended)):
        row = measure(live, ended, given.etcd)
        rows.append(row)
        print(
            f"{row.live:6} {row.ended:6} | {row.load_s:7.3f} {row.start_s:8.2f} {row.takeover_s:11.2f} "
            f"{row.list_s:7.2f}",
            flush=True,
        )
    print(json.dumps({"ok": True, "store": "etcd" if given.etcd else "sqlite", "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
