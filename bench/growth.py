"""Measure what history costs: bytes for each step, the start of a coordinator on a long history, and the audit of it.

One live job commits a million steps, each in an event of its own, and a coordinator's archiver moves the old ones
into segments. Then `pliant coordinator` is started on that store and on an empty one, `pliant audit` runs against it,
and a store with twenty thousand ended jobs is opened. Prints a table and, as its last line, one JSON object. Timings
are reported, not judged: the exit code is about errors alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pliant.coordinator import archiver
from pliant.coordinator.archiver import Archiver
from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, make_line
from pliant.core.data.sample_order import Order
from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import Job, JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.archive.folder import FolderFiles
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Hold, Write
from pliant.stores.sqlite import SqliteStore
from pliant.train.data.order import expected_digests, take
from pliant.wire.api import EVENTS
from pliant.wire.codec import encode_state

BATCH = 16  # samples in a step
BETWEEN_RECORDS = 4096  # events; a coordinator writes a record more often, which costs no room
BEGAN = 1.8e9
MEMBER, AGENT = MemberId("vm-g1.0"), AgentId("vm")
PROGRAM = str(Path(sys.executable).parent / "pliant")


class History:
    """A job of one member, decided like a coordinator's, and its events that are not written yet."""

    def __init__(self, name: str, terms: Terms) -> None:
        self.name = name
        self.job: Job | None = None
        self.events: list[Event] = []
        self.now = BEGAN
        self.decide(m.Create(name, JobSpec(1, 2, Target(1))))
        self.decide(m.AgentJoin(AGENT, 1))
        self.decide(m.Join(MEMBER, AGENT, terms))

    def decide(self, command: Command, *, settles: bool = True) -> None:
        decision = decide(self.job, command, self.now)
        if isinstance(decision, Rejection):
            raise SystemExit(f"{command} was rejected: {decision}")
        for event in decision:
            self.job = evolve(self.job, event)
        self.events += decision
        if settles and self.job is not None:
            self.job, more = settle_all(self.job, self.now)
            self.events += more

    def write(self, revision: int) -> Write:
        assert self.job is not None
        events = tuple(EVENTS.encode(event) for event in self.events)
        self.events.clear()
        return Write(self.name, revision, events, encode_state(self.job), not self.job.state.ended)


def train(store: SqliteStore, steps: int) -> int:
    """Write a live job that has committed so many steps. Return the bytes of its events."""
    samples = BATCH * 10_000
    grid = Grid(samples, BATCH, 4, steps // 10_000 + 2)
    order = Order(7, samples)
    history = History("long", Terms(grid, 7))
    parent, generation, nbytes = GENESIS, 1, 0
    revision = store.write([history.write(0)])[0].revision
    for first in range(1, steps + 1, BETWEEN_RECORDS):
        numbers = range(first, min(first + BETWEEN_RECORDS, steps + 1))
        digests = expected_digests(grid, lambda epoch, positions: take(order, epoch, positions), numbers)
        for step, digest in zip(numbers, digests, strict=True):
            line = make_line(parent, generation, step, grid.cursor(step), BATCH, digest)
            parent = line.lineage
            history.now += 0.1
            holders = frozenset({MEMBER}) if step == 1 else None
            history.decide(m.Report(MEMBER, 0, generation, (line,), holders), settles=step == 1)
        write = history.write(revision)
        nbytes += sum(map(len, write.events))
        revision = store.write([write])[0].revision
    return nbytes


def archive_all(store: SqliteStore, folder: Path) -> tuple[int, float, float]:
    """Archive old events as a coordinator does. Return the segments, the seconds, and the longest piece's seconds."""
    hold = store.hold("bench", "bench", 3600.0, time.monotonic())
    assert isinstance(hold, Hold)
    mover = Archiver(store, Archive(FolderFiles(folder), store.identity))
    began, longest, count = time.perf_counter(), 0.0, 0
    while True:
        at = time.perf_counter()
        if not mover.move("long", hold, ended=False).again:
            break
        count += 1
        longest = max(longest, time.perf_counter() - at)
    store.release(hold)
    return count, time.perf_counter() - began, longest


def end_jobs(store: SqliteStore, count: int) -> None:
    """Write so many jobs that trained a step and were cancelled."""
    terms = Terms(Grid(160, BATCH, 4, 1), 7)
    history = History("ended-0", terms)
    history.decide(m.Leave(MEMBER, 0, "it is over"))
    history.decide(m.Cancel("it is over"))
    one = history.write(0)
    if one.live:
        raise SystemExit("the job did not end")
    for first in range(0, count, 500):
        names = [f"ended-{number:05d}" for number in range(first, min(first + 500, count))]
        store.write([Write(name, 0, one.events, one.record, live=False) for name in names])


@contextmanager
def coordinator(home: Path) -> Iterator[tuple[float, int, dict[str, Any]]]:
    """Run a coordinator. Yields the seconds from its start until it is ready, its process id, and its message."""
    command = [PROGRAM, "coordinator", "--listen", "127.0.0.1:0", "--json"]
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PLIANT_HOME": str(home)}
    ) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield time.perf_counter() - began, process.pid, ready
        finally:
            process.terminate()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process, which other programs on the machine do not change."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def audit(home: Path, url: str, steps: int) -> dict[str, Any]:
    """Run `pliant audit`. Return its seconds, its processor time and its peak memory."""
    began = time.perf_counter()
    # `wait4` reports the memory of this child alone.
    with subprocess.Popen(
        [PROGRAM, "audit", "long", "--json", "--coordinator", url],
        stdout=subprocess.PIPE,
        env={**os.environ, "PLIANT_HOME": str(home)},
    ) as process:
        assert process.stdout is not None
        found = json.loads(process.stdout.read())
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if not found["ok"] or found["steps"] != steps:
        raise SystemExit(f"the audit found {found}")
    return {
        "audit_s": time.perf_counter() - began,
        "audit_cpu_s": usage.ru_utime + usage.ru_stime,
        "audit_peak_mib": usage.ru_maxrss / 1024,
    }


def size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=20_000, help="ended jobs")
    chosen = parser.parse_args()
    result: dict[str, Any] = {"steps": chosen.steps, "ended_jobs": chosen.jobs}
    with tempfile.TemporaryDirectory(prefix="pliant-growth-") as folder:
        empty, full, many = (Path(folder) / name for name in ("empty", "full", "many"))
        for home in (empty, full, many):
            home.mkdir(mode=0o700)
        with SqliteStore(full / "store.db") as store:
            result["event_bytes_per_step"] = train(store, chosen.steps) / chosen.steps
            before = size(full / "store.db")
            segments = full / "store.db.archive"
            result["segments"], result["archiving_s"], result["longest_piece_s"] = archive_all(store, segments)
        result["store_bytes_per_step_unarchived"] = before / chosen.steps
        result["archive_bytes_per_step"] = size(segments) / chosen.steps if result["segments"] else 0.0
        kept = min(chosen.steps, archiver.KEPT_EVENTS + archiver.SEGMENT_EVENTS)
        result["events_left_in_store_at_most"] = kept
        with SqliteStore(many / "store.db") as store:
            end_jobs(store, chosen.jobs)
        for key, home in (("start_empty", empty), ("start_long_history", full), ("start_ended_jobs", many)):
            with coordinator(home) as (seconds, pid, ready):
                started_s = cpu_s(pid)
                result |= {f"{key}_s": seconds, f"{key}_cpu_s": started_s, f"{key}_rss_mib": rss_mib(pid)}
                if home is full:
                    result |= audit(full, ready["url"], chosen.steps)
                    result["audit_coordinator_cpu_s"] = cpu_s(pid) - started_s
    for key, value in result.items():
        print(f"{key:<34} {value:>14,.3f}" if isinstance(value, float) else f"{key:<34} {value!s:>14}")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
