"""Three etcd members, two coordinators and three agents that train one live job, each on a host of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from contract.etcd_cluster import programs
from e2e.running import wait_for
from failover.lab import STORE_NET, WORK_NET, Host, Lab
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import JobSpec, Target
from pliant.credentials import Token, read_token
from pliant.errors import PliantError
from pliant.wire import api
from unit.cli.program import PLIANT, Done, environment, real

JOB = "demo"
AGENTS = 3
PORT = 7711
PATIENCE_S = 180.0


class Coordinator:
    """One coordinator process, which can be killed, frozen and started again."""

    def __init__(self, host: Host, home: Path, store: str) -> None:
        self.host = host
        self.home = home
        self._store = store
        self.url = f"http://{host.address(WORK_NET)}:{PORT}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self.home.mkdir(parents=True, exist_ok=True)
        listen = f"{self.host.address(WORK_NET)}:{PORT}"
        command = [PLIANT, "coordinator", "--listen", listen, "--expose", "--insecure", "--store", self._store]
        return self.host.start(command, self.home / "log", environment(self.home))

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

    def __init__(self, lab: Lab, home: Path, script: tuple[str, str]) -> None:
        self.home = home
        self._folder = home / "training"
        self._folder.mkdir(parents=True)
        self._script, self._epochs = script
        self.etcd = [lab.add(f"etcd{n}", 10 + n, STORE_NET) for n in (1, 2, 3)]
        self._servers = [self._start_etcd(host) for host in self.etcd]
        self.until(self._is_etcd_healthy, "a majority of etcd")
        store = "etcd:" + ",".join(f"{host.address(STORE_NET)}:2379" for host in self.etcd) + "/failover"
        hosts = [lab.add(f"coord{n}", 20 + n, STORE_NET, WORK_NET) for n in (1, 2)]
        self.coordinators = [Coordinator(host, home / host.name, store) for host in hosts]
        self.urls = [each.url for each in self.coordinators]
        self._agent_hosts = [lab.add(f"agent{n}", 30 + n, WORK_NET) for n in range(1, AGENTS + 1)]
        self.agents: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for process in (*self.agents, *(each.process for each in self.coordinators), *self._servers):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    # --------------------------------------------------------------------------------------------- starting

    def _start_etcd(self, host: Host) -> subprocess.Popen[bytes]:
        folder = self.home / host.name
        folder.mkdir(parents=True, exist_ok=True)
        here = host.address(STORE_NET)
        members = ",".join(f"{each.name}=http://{each.address(STORE_NET)}:2380" for each in self.etcd)
        command = [
            *(str(programs() / "etcd"), "--name", host.name, "--data-dir", str(folder / "data")),
            *("--listen-client-urls", f"http://{here}:2379", "--advertise-client-urls", f"http://{here}:2379"),
            *("--listen-peer-urls", f"http://{here}:2380", "--initial-advertise-peer-urls", f"http://{here}:2380"),
            *("--initial-cluster", members, "--initial-cluster-state", "new"),
        ]
        return host.start(command, folder / "log", os.environ)

    def _is_etcd_healthy(self) -> bool:
        url = f"http://{self.etcd[0].address(STORE_NET)}:2379/v3/kv/range"
        try:
            return httpx2.post(url, json={"key": "AA=="}, timeout=1.0, trust_env=False).status_code == 200
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
        command += ["--checkpoint-dir", str(self.home / "checkpoints"), self._script, str(self._folder), self._epochs]
        env = environment(home, PLIANT_AGENT=host.name, OMP_NUM_THREADS="1")
        return host.start(command, home / "log", env)

    def stop_etcd(self, count: int) -> None:
        """Freeze so many members of etcd, the last ones first."""
        for server in self._servers[-count:]:
            server.send_signal(signal.SIGSTOP)

    def resume_etcd(self) -> None:
        for server in self._servers:
            server.send_signal(signal.SIGCONT)

    def hurry(self) -> None:
        """Let the training run to its end without pauses."""
        (self._folder / "hurry").touch()

    # ---------------------------------------------------------------------------------------------- looking

    @property
    def _token(self) -> Token:
        return read_token(self.coordinators[0].token_file)

    def client(self, *urls: str) -> Client:
        return Client(urls or self.urls, self._token, patience_s=3.0)

    def leader(self) -> Coordinator | None:
        """Return the coordinator that leads and can be reached, if there is one."""
        for each in self.coordinators:
            try:
                if httpx2.get(f"{each.url}/healthz", timeout=1.0, trust_env=False).status_code == 200:
                    return each
            except httpx2.HTTPError:
                continue
        return None

    def standby(self, leader: Coordinator) -> Coordinator:
        (other,) = (each for each in self.coordinators if each is not leader)
        return other

    def status(self) -> api.JobStatus | None:
        """Return the job's status; None while no coordinator answers."""
        with self.client() as client:
            try:
                return client.job(JOB)
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
        return real(environment(self.home), *args, *where, "--token-file", str(self.coordinators[0].token_file))

    def audit(self) -> dict[str, Any]:
        found: dict[str, Any] = self.pliant("audit", JOB, "--json").json
        return found

    # ---------------------------------------------------------------------------------------------- waiting

    def until(self, true: Callable[[], object], what: str) -> float:
        """Wait for a condition and return the seconds it took."""
        began = time.monotonic()
        wait_for(true, what, PATIENCE_S)
        return time.monotonic() - began

    def resize(self, size: int) -> float:
        """Ask for another size, again and again until a coordinator accepts. Return the seconds until it trains."""
        began = time.monotonic()
        with self.client() as client:
            client.send(JOB, m.Resize(Target(size)), patience_s=PATIENCE_S)
        self.until(lambda: self.size() == size, f"a world of {size}")
        reached = self.step()
        self.until(lambda: self.step() > reached, f"a step in the world of {size}")
        return time.monotonic() - began
