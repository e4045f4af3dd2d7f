"""Three etcd members, two coordinators and three agents that train one live job, each on a host of its own.

All connections use TLS with certificates of one CA: from agents and members to the coordinators, between members, and
from the coordinators to etcd.
"""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from contract.etcd_cluster import programs
from e2e.authority import authority
from e2e.running import wait_for
from failover.lab import STORE_NET, WORK_NET, Host, Lab
from pliant.certificates import CertificateInfo
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import JobSpec, Target
from pliant.credentials import TlsFiles, Token, read_token
from pliant.errors import PliantError
from pliant.tls import LEAF_DAYS
from pliant.wire import api
from unit.cli.program import PLIANT, Done, environment, real

JOB = "demo"
AGENTS = 3
PORT = 7711
PATIENCE_S = 600.0


class Coordinator:
    """One coordinator process, which can be killed, frozen and started again."""

    def __init__(self, host: Host, home: Path, store: str, certificate: CertificateInfo, ca_file: Path) -> None:
        self.host = host
        self.home = home
        self._store = store
        self._certificate = certificate
        self._ca_file = ca_file
        self.url = f"https://{host.address(WORK_NET)}:{PORT}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.home.mkdir(parents=True, exist_ok=True)
        listen = f"{self.host.address(WORK_NET)}:{PORT}"
        command = [PLIANT, "coordinator", "--listen", listen, "--expose", "--store", self._store]
        command += ["--tls-cert", self._certificate.cert_file, "--tls-key", self._certificate.key_file]
        env = environment(self.home, PLIANT_ETCD_CA_FILE=str(self._ca_file))
        return self.host.start(command, self.home / "log", env)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self._start()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    @property
    def token_file(self) -> Path:
        return self.home / "token"

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")


class Cluster:
    """The whole set-up. Use it as a context manager."""

    def __init__(self, lab: Lab, home: Path, script: tuple[str, ...]) -> None:
        self.home = home
        self._authority = authority(home)
        self._context = ssl.create_default_context(cafile=self._authority.cert_file)
        self._folder = home / "training"
        self._folder.mkdir(parents=True)
        self._script, *self._arguments = script
        self.etcd = [lab.add(f"etcd{n}", 10 + n, STORE_NET) for n in (1, 2, 3)]
        self._servers = [self._start_etcd(host) for host in self.etcd]
        self.until(self._is_etcd_healthy, "a majority of etcd")
        store = "etcd:" + ",".join(f"{host.address(STORE_NET)}:2379" for host in self.etcd) + "/failover"
        hosts = [lab.add(f"coord{n}", 20 + n, STORE_NET, WORK_NET) for n in (1, 2)]
        ca_file = self._authority.cert_file
        self.coordinators = [
            Coordinator(host, home / host.name, store, self._certificate(host, WORK_NET), ca_file) for host in hosts
        ]
        self.urls = [each.url for each in self.coordinators]
        self._agent_hosts = [lab.add(f"agent{n}", 30 + n, WORK_NET) for n in range(1, AGENTS + 1)]
        self.agents: list[subprocess.Popen[bytes]] = []
        self._compacted = 0  # the newest revision of etcd that was compacted
        self._observer: Client | None = None  # one that knows which coordinators are silent

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._observer is not None:
            self._observer.close()
        for process in (*self.agents, *(each.process for each in self.coordinators), *self._servers):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    # --------------------------------------------------------------------------------------------- starting

    def _certificate(self, host: Host, network: str) -> CertificateInfo:
        return self._authority.issue(host.name, [], [host.address(network)], LEAF_DAYS)

    def _start_etcd(self, host: Host) -> subprocess.Popen[bytes]:
        folder = self.home / host.name
        folder.mkdir(parents=True, exist_ok=True)
        here, certificate = host.address(STORE_NET), self._certificate(host, STORE_NET)
        members = ",".join(f"{each.name}=http://{each.address(STORE_NET)}:2380" for each in self.etcd)
        command = [
            *(str(programs() / "etcd"), "--name", host.name, "--data-dir", str(folder / "data")),
            *("--listen-client-urls", f"https://{here}:2379", "--advertise-client-urls", f"https://{here}:2379"),
            *("--cert-file", certificate.cert_file, "--key-file", certificate.key_file),
            *("--listen-peer-urls", f"http://{here}:2380", "--initial-advertise-peer-urls", f"http://{here}:2380"),
            *("--initial-cluster", members, "--initial-cluster-state", "new"),
        ]
        return host.start(command, folder / "log", os.environ)

    def _is_etcd_healthy(self) -> bool:
        url = f"https://{self.etcd[0].address(STORE_NET)}:2379/v3/kv/range"
        try:
            asked = httpx2.post(url, json={"key": "AA=="}, timeout=1.0, trust_env=False, verify=self._context)
            return asked.status_code == 200
        except httpx2.HTTPError:
            return False

    def start_training(self) -> None:
        """Create the job, start the agents, and wait for a world of all of them."""
        first = self.coordinators[0]
        self.until(lambda: first.token_file.exists() and self.leader() is not None, "a leader")
        with self.client() as client:
            client.send(JOB, m.Create(JOB, JobSpec(1, AGENTS, Target(AGENTS))))
        token = self.home / "join"
        made = self.pliant("token", "create", "--scope", "join", "--job", JOB, "--out", str(token))
        assert made.code == 0, made.err
        self.agents = [self._start_agent(host, token) for host in self._agent_hosts]
        self.until(lambda: self.size() == AGENTS and self.step() > 0, "a world of all agents")

    def _start_agent(self, host: Host, token: Path) -> subprocess.Popen[bytes]:
        home = self.home / host.name
        home.mkdir(parents=True)
        where = [word for url in self.urls for word in ("--coordinator", url)]
        command = [PLIANT, "run", *where, "--token-file", str(token), "--job", JOB]
        command += ["--workers", f"1:{AGENTS}", "--nproc-per-node", "1", "--max-restarts", "0"]
        command += ["--ca-file", str(self._authority.cert_file), "--checkpoint-dir", str(self.home / "checkpoints")]
        command += [self._script, str(self._folder), *self._arguments]
        env = environment(home, PLIANT_AGENT=host.name, OMP_NUM_THREADS="1")
        return host.start(command, home / "log", env)

    def stop_etcd(self, count: int) -> None:
        """Freeze so many members of etcd, the last ones first."""
        for server in self._servers[-count:]:
            server.send_signal(signal.SIGSTOP)

    def resume_etcd(self) -> None:
        for server in self._servers:
            server.send_signal(signal.SIGCONT)

    def ask_etcd(self, host: Host, path: str, body: dict[str, object]) -> dict[str, Any]:
        """Ask one member of etcd itself."""
        url = f"https://{host.address(STORE_NET)}:2379{path}"
        answer = httpx2.post(url, json=body, timeout=60.0, trust_env=False, verify=self._context)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def compact_etcd(self) -> int:
        """Compact all history of etcd, and defragment every member. Return the revision that was compacted.

        etcd refuses to compact a revision twice, so this waits for a write since the last call.
        """
        self.until(lambda: self._newest_revision() > self._compacted, "a write since the last compaction")
        newest = self._newest_revision()
        self.ask_etcd(self.etcd[0], "/v3/kv/compaction", {"revision": newest, "physical": True})
        self._compacted = newest
        for host in self.etcd:
            self.ask_etcd(host, "/v3/maintenance/defragment", {})
        return newest

    def _newest_revision(self) -> int:
        return int(self.ask_etcd(self.etcd[0], "/v3/kv/range", {"key": "AA=="})["header"]["revision"])

    def hurry(self) -> None:
        """Let the training run to its end without pauses."""
        (self._folder / "hurry").touch()

    # ---------------------------------------------------------------------------------------------- looking

    @property
    def _token(self) -> Token:
        return read_token(self.coordinators[0].token_file)

    def client(self) -> Client:
        """Return a client that knows no more than the URLs, like that of a command."""
        return Client(self.urls, self._token, patience_s=3.0, tls=TlsFiles(self._authority.cert_file))

    def healthz(self, url: str, client: httpx2.Client | None = None) -> int:
        """Return the status of `/healthz` at a coordinator. Raises httpx2.HTTPError if it does not answer."""
        if client is not None:
            return client.get(f"{url}/healthz").status_code
        return httpx2.get(f"{url}/healthz", timeout=1.0, trust_env=False, verify=self._context).status_code

    def health_client(self) -> httpx2.Client:
        return httpx2.Client(timeout=5.0, trust_env=False, verify=self._context)

    def leader(self) -> Coordinator | None:
        """Return the coordinator that leads and can be reached, if there is one."""
        for each in self.coordinators:
            try:
                if self.healthz(each.url) == 200:
                    return each
            except httpx2.HTTPError:
                continue
        return None

    def standby(self, leader: Coordinator) -> Coordinator:
        (other,) = (each for each in self.coordinators if each is not leader)
        return other

    def status(self) -> api.JobStatus | None:
        """Return the job's status; None while no coordinator answers."""
        if self._observer is None:
            self._observer = self.client()
        try:
            return self._observer.job(JOB)
        except PliantError:
            return None

    def size(self) -> int:
        found = self.status()
        return 0 if found is None or not found.live else found.job.size

    def members(self) -> set[str]:
        """Return the members of the current world."""
        found = self.status()
        assert found is not None, "no coordinator answers"
        return {line.id for line in found.members if line.rank is not None}

    def step(self) -> int:
        found = self.status()
        return 0 if found is None else found.job.step

    def trained(self) -> dict[str, int]:
        """Return how far each worker has come by its own account."""
        found: dict[str, int] = {}
        for path in self._folder.glob("*.step"):
            wait_for(path.read_text, f"{path.name} to be written")  # it is empty for a moment
            found[path.stem] = int(path.read_text() or "0")
        return found

    def results(self) -> list[Path]:
        return sorted(self._folder.glob("*.said"))

    def events(self) -> list[m.Event]:
        found: list[m.Event] = []
        after = 0
        with self.client() as client:
            while page := client.events(JOB, after, 1000):
                found += [event for _, event in page]
                after = page[-1][0]
        return found

    def pliant(self, *args: str) -> Done:
        where = [word for url in self.urls for word in ("--coordinator", url)]
        token = ("--token-file", str(self.coordinators[0].token_file), "--ca-file", str(self._authority.cert_file))
        return real(environment(self.home), *args, *where, *token)

    def audit(self) -> dict[str, Any]:
        found: dict[str, Any] = self.pliant("audit", JOB, "--json").json
        return found

    # ---------------------------------------------------------------------------------------------- waiting

    def until(self, true: Callable[[], object], what: str) -> float:
        """Wait for a condition and return the seconds it took."""
        began = time.monotonic()
        wait_for(true, what, PATIENCE_S)
        return time.monotonic() - began

    def resize(self, size: int) -> Resized:
        """Ask for another size, again and again until a coordinator accepts, and wait until workers train with it."""
        began = time.monotonic()
        with self.client() as client:
            client.send(JOB, m.Resize(Target(size)), patience_s=PATIENCE_S)
        accepted_s = time.monotonic() - began
        self.until(lambda: self.size() == size, f"a world of {size}")
        reached = max(self.trained().values())  # the coordinator learns of steps only every few seconds
        self.until(lambda: max(self.trained().values()) > reached, f"a step in the world of {size}")
        return Resized(round(accepted_s, 1), round(time.monotonic() - began, 1))


@dataclass(frozen=True, slots=True)
class Resized:
    """The seconds until a coordinator accepted a resize, and until a step was trained in the world of that size."""

    accepted_s: float
    trained_s: float
