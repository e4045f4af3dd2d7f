"""Measure the cost of TLS: a renewal on a kept connection, and a new connection, with and without it.

Starts a coordinator without TLS, one with TLS and one with client certificates too. One member renews at each in turn,
so that a busy machine disturbs all alike. Measures the time of a renewal as a member sees it, the CPU time of both
sides, and the time of a client's first answer, for which it opens and checks a connection. Prints a table and, as its
last line, one JSON object with the ratios to the coordinator without TLS.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crowd import TERMS

from pliant.certificates import Authority
from pliant.client import Client
from pliant.core.messages import Create, Join
from pliant.core.model.job import JobSpec
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import NO_TLS_FILES, TlsFiles, Token, read_token
from pliant.tls import CA_DAYS, LEAF_DAYS

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
JOB, MEMBER = "bench", MemberId("m1")
BLOCK = 20  # renewals at one coordinator before the next one's turn


@dataclass
class Subject:
    """One coordinator, a member's client of it, and what was measured."""

    name: str
    pid: int
    url: str
    token: Token
    tls: TlsFiles
    client: Client
    renewals_s: list[float] = field(default_factory=list)
    connections_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0  # of the coordinator, for the renewals
    member_cpu_s: float = 0.0

    def renew(self, count: int) -> None:
        before = time.process_time()
        for _ in range(count):
            start = time.perf_counter()
            self.client.renew(JOB, MEMBER, 0)
            self.renewals_s.append(time.perf_counter() - start)
        self.member_cpu_s += time.process_time() - before

    def connect(self) -> None:
        with Client([self.url], self.token, tls=self.tls) as client:
            start = time.perf_counter()
            client.about()
            self.connections_s.append(time.perf_counter() - start)

    def row(self) -> dict[str, float]:
        return {
            "renew_p50_us": round(statistics.median(self.renewals_s) * 1e6, 1),
            "coordinator_cpu_us": round(self.cpu_s / len(self.renewals_s) * 1e6, 1),
            "member_cpu_us": round(self.member_cpu_s / len(self.renewals_s) * 1e6, 1),
            "connect_p50_us": round(statistics.median(self.connections_s) * 1e6, 1),
        }


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


@contextmanager
def subject(name: str, home: Path, options: list[str], tls: TlsFiles) -> Iterator[Subject]:
    """Run a coordinator with a job of one member, for the block."""
    program = str(Path(sys.executable).with_name("pliant"))
    command = [program, "coordinator", "--listen", "127.0.0.1:0", "--store", "memory:", "--json", *options]
    home.mkdir()
    environment = {**os.environ, "PLIANT_HOME": str(home)}
    with (
        (home / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit(f"the coordinator did not start:\n{(home / 'log').read_text()}")
            ready = json.loads(line)
            token = read_token(Path(ready["token_file"]))
            with Client([ready["url"]], token, tls=tls) as client:
                client.send(JOB, Create(JOB, JobSpec(size_min=1, size_max=1)))
                client.send(JOB, Join(MEMBER, AgentId("a1"), TERMS))
                yield Subject(name, process.pid, ready["url"], token, tls, client)
        finally:
            process.terminate()
            process.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renewals", type=int, default=4000, help="renewals at each coordinator")
    parser.add_argument("--connections", type=int, default=100, help="new connections to each coordinator")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pliant-bench-") as folder, ExitStack() as until:
        home = Path(folder)
        authority = Authority(home / "ca", home / "certs")
        authority.create("bench", CA_DAYS)
        server = authority.issue("coordinator", [], ["127.0.0.1"], LEAF_DAYS)
        member = authority.issue("member", [], [], LEAF_DAYS)
        https = ["--tls-cert", server.cert_file, "--tls-key", server.key_file]
        ca = authority.cert_file
        mutual = TlsFiles(ca, Path(member.cert_file), Path(member.key_file))
        subjects = [
            until.enter_context(subject("http", home / "http", [], NO_TLS_FILES)),
            until.enter_context(subject("https", home / "https", https, TlsFiles(ca))),
            until.enter_context(subject("mTLS", home / "mtls", [*https, "--tls-client-ca", str(ca)], mutual)),
        ]
        before = [_cpu_s(each.pid) for each in subjects]
        for _ in range(max(1, given.renewals // BLOCK)):
            for each in subjects:
                each.renew(BLOCK)
        for each, start in zip(subjects, before, strict=True):
            each.cpu_s = _cpu_s(each.pid) - start
        for _ in range(given.connections):
            for each in subjects:
                each.connect()
        rows = {each.name: each.row() for each in subjects}
    print("us      renewal p50   coordinator's CPU   member's CPU   new connection p50")
    for name, (renewal, coordinator, own, connection) in ((name, row.values()) for name, row in rows.items()):
        print(f"{name:6} {renewal:12.1f} {coordinator:19.1f} {own:14.1f} {connection:20.1f}")
    plain = rows["http"]
    ratios = {
        name: {key: round(value / plain[key], 2) for key, value in row.items() if plain[key]}
        for name, row in rows.items()
        if name != "http"
    }
    print(json.dumps({"rows": rows, "ratios": ratios}))


if __name__ == "__main__":
    main()
