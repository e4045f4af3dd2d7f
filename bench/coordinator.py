"""Measure a coordinator's CPU time and latency with thousands of members, over real HTTP and on a real store.

Two shapes, 250 jobs of 8 members and one job of 2,000, each at a quarter, a half and the whole of that. All
members watch, and renew each second. Measures the coordinator's CPU time without that of the members, the time of a
renewal, and the time from sending a command that changes the world until the last member has the view. Prints a
table and, as its last line, one JSON object. Timings are reported, not judged: the exit code is about errors alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

import uvloop
from crowd import Crowd, Member, Refusal

from pliant.credentials import read_token

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from contract.etcd_cluster import etcd_cluster

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
CHANGES = 40
SHAPES = ((250, 8), (1, 2000))
PARTS = (0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """One run's figures; times in milliseconds."""

    jobs: int
    members: int
    cpu_of_a_core: float
    cpu_us_per_renewal: float
    client_cpu_of_a_core: float
    renewals: int
    renew_p50_ms: float
    renew_p99_ms: float
    told_p50_ms: float
    told_p99_ms: float
    rss_mib: float
    rss_start_mib: float
    joins_per_s: float
    errors: int


@dataclass(frozen=True, slots=True)
class Server:
    """A coordinator's process."""

    pid: int
    host: str
    port: int
    token: str

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND

    def rss_mib(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE / 2**20


@contextmanager
def coordinator(kind: str) -> Iterator[Server]:
    """Run a separate coordinator on a new store of this kind, for the block."""
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as home, store(kind, Path(home)) as place:
        command = [str(Path(sys.executable).parent / "pliant"), "coordinator", "--listen", "127.0.0.1:0", "--json"]
        command += ["--store", place]
        environment = {**os.environ, "PLIANT_HOME": home}
        with (
            Path(home, "log").open("wb") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as process,
        ):
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"the coordinator did not start:\n{Path(home, 'log').read_text()}")
                ready = json.loads(line)
                where = urlsplit(ready["url"])
                token = read_token(Path(ready["token_file"]))
                yield Server(process.pid, where.hostname or "", where.port or 0, token.text)
            finally:
                process.terminate()
                process.wait(30)


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    """Yield the place of a new store, which flushes to this disk."""
    if kind == "sqlite":
        yield f"sqlite:{folder / 'store.db'}"
    else:
        with etcd_cluster(folder, 3 if kind == "etcd3" else 1, flush=True) as cluster:
            yield f"etcd:{','.join(cluster.endpoints)}"


async def measure(server: Server, jobs: int, size: int, seconds: float, seed: int) -> Row:
    crowd = Crowd(server.host, server.port, server.token)
    chance = random.Random(seed)
    start, rss_start = time.perf_counter(), server.rss_mib()
    by_job = [await gather(crowd, f"job-{number}", size) for number in range(jobs)]
    joins_per_s = jobs * size / (time.perf_counter() - start)
    for member in crowd.members:
        member.start_renewing(chance.uniform(0.0, 1.0))
        await member.start_watching()
    await asyncio.sleep(2.0)

    crowd.stats.renewals.clear()
    cpu, own_cpu, start = server.cpu_s(), own_cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - start
    cpu, own_cpu = server.cpu_s() - cpu, own_cpu_s() - own_cpu
    renewals = sorted(crowd.stats.renewals)

    told = sorted([await change(crowd, chance.choice(by_job)) for _ in range(CHANGES)])
    row = Row(
        jobs=jobs,
        members=jobs * size,
        cpu_of_a_core=round(cpu / took, 3),
        cpu_us_per_renewal=round(cpu / max(1, len(renewals)) * 1e6, 1),
        client_cpu_of_a_core=round(own_cpu / took, 3),
        renewals=len(renewals),
        renew_p50_ms=_ms(renewals, 0.5),
        renew_p99_ms=_ms(renewals, 0.99),
        told_p50_ms=_ms(told, 0.5),
        told_p99_ms=_ms(told, 0.99),
        rss_mib=round(server.rss_mib(), 1),
        rss_start_mib=round(rss_start, 1),
        joins_per_s=round(joins_per_s),
        errors=crowd.stats.errors,
    )
    for member in crowd.members:
        member.leave()
    return row


async def gather(crowd: Crowd, job: str, size: int) -> list[Member]:
    """Create a job and let all members join, fifty at a time."""
    await crowd.create(job, size)
    members: list[Member] = []
    for first in range(0, size, 50):
        names = [f"a{number // 8}-1.{number}" for number in range(first, min(first + 50, size))]
        members += await asyncio.gather(*(crowd.join(job, name) for name in names))
    return members


async def change(crowd: Crowd, members: list[Member]) -> float:
    """Return the seconds from sending a command that forms a new world until the last member has the view.

    No member enters its world, so a coordinator replaces it after a while by itself; then the next one is broken.
    """
    while True:
        generation = members[0].generation
        start = time.perf_counter()
        try:
            await crowd.stop(members[0], generation)
        except Refusal as refusal:
            if not refusal.is_too_late:
                raise
            await receive(members[:1], generation, start)
        else:
            await receive(members, generation, start)
            return max(member.told_at for member in members) - start


async def receive(members: list[Member], generation: int, start: float) -> None:
    """Wait until all of these members have the view of a later generation."""
    loop = asyncio.get_running_loop()
    while behind := [member for member in members if member.generation == generation]:
        for member in behind:
            if member.waits is None or member.waits.done():
                member.waits = loop.create_future()
        await asyncio.wait([member.waits for member in behind if member.waits is not None], timeout=10.0)
        if time.perf_counter() - start > 20.0:
            raise SystemExit(f"{len(behind)} of {len(members)} members never received the view")


def own_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _ms(ordered: list[float], quantile: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * quantile))] * 1e3, 2) if ordered else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="seconds of steady renewals for each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=("sqlite", "etcd", "etcd3"), default="sqlite", help="etcd3 has 3 members")
    parser.add_argument("--part", type=float, choices=PARTS, help="one of the three sizes alone")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[Row] = []
    print("  jobs members |  cpu  us/renewal client | renew p50   p99 | told p50   p99 ms |  MiB  joins/s errors")
    for jobs, size in SHAPES:
        for part in [given.part] if given.part else PARTS:
            many = max(1, round(jobs * part)) if jobs > 1 else 1
            each = size if jobs > 1 else round(size * part)
            with coordinator(given.store) as server:
                row = uvloop.run(measure(server, many, each, given.seconds, given.seed))
            rows.append(row)
            print(
                f"{row.jobs:6} {row.members:7} | {row.cpu_of_a_core:4.2f} {row.cpu_us_per_renewal:11.0f} "
                f"{row.client_cpu_of_a_core:6.2f} | {row.renew_p50_ms:9.2f} {row.renew_p99_ms:5.1f} "
                f"| {row.told_p50_ms:8.2f} {row.told_p99_ms:5.1f}    | {row.rss_mib:4.0f} {row.joins_per_s:8.0f} "
                f"{row.errors:6}",
                flush=True,
            )
    errors = sum(row.errors for row in rows)
    largest = max(row.cpu_of_a_core for row in rows)
    eights = [row for row in rows if row.jobs > 1]
    costs = [row.cpu_us_per_renewal for row in rows]
    print(
        json.dumps(
            {
                "ok": errors == 0,
                "aims": {
                    "one core is enough": largest < 1.0,
                    "last watcher in a job of 8 below 20 ms, p50": max(row.told_p50_ms for row in eights) < 20.0,
                    "last watcher in a job of 8 below 20 ms, p99": max(row.told_p99_ms for row in eights) < 20.0,
                    "cost of a renewal, largest over smallest": round(max(costs) / min(costs), 2),
                },
                "rows": [asdict(row) for row in rows],
            }
        )
    )
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
