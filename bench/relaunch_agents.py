"""Agents of Pliant and of torchrun with one worker each, for `relaunch.py`."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

PLIANT = str(Path(sys.executable).with_name("pliant"))
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
SCRIPT = str(Path(__file__).with_name("relaunch_script.py"))
JOB = "bench"
AGENTS_MAX = 8  # always leaves room for one more, for which torchrun waits (its last call)
PACE_S = 0.05
LOOK_S = 0.02
GOODBYE_S = 3.0  # time for processes that end after their agent
IDLE_S = 0.4  # a template without CPU time for this long is ready to be forked
IMPORTED_S = 1.0  # minimum CPU time of importing torch
MARK = "BENCH_RELAUNCH"  # in the environment of every process started here
TEMPLATE = "pliant.agent.process.template"

# The settings of the published figures for torchrun.
TUNED = (
    "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3,heartbeat_timeout=2,close_timeout=1",
    ("--monitor-interval", "0.05", "--shutdown-timeout", "1"),
)


NO_FLAGS: tuple[str, ...] = ()


class NotRecovered(Exception):
    """A condition was not met in time."""


@dataclass(frozen=True, slots=True)
class World:
    """The first step of all workers in one world, by rank, as the script recorded it."""

    ranks: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def forked(self) -> bool:
        """Return whether all of them are forks of a template."""
        return all(TEMPLATE in each["argv"] for each in self.ranks)

    def reached(self, stage: str) -> float:
        """Return the time of the last of them."""
        return max(float(each[stage]) for each in self.ranks)


class Crowd:
    """One job and its agents. `close` reports processes that remained."""

    name = ""
    patience_s = 180.0

    def __init__(self, base: Path) -> None:
        self.base = base
        self.steps = base / "steps"
        self.steps.mkdir(parents=True)
        self._mark = secrets.token_hex(8)
        self._mark_entry = f"{MARK}={self._mark}"
        self._port = free_port()
        self._output = (base / "output").open("wb")
        self.agents: list[subprocess.Popen[bytes]] = []
        self._gone: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        """Start one more agent."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait until a relaunch is as fast as possible."""

    def lose_agent(self, *, silent: bool) -> None:
        """Kill the youngest agent and its workers. With `silent` no connection closes, as if its machine were gone."""
        raise NotImplementedError

    def let_leave(self) -> None:
        """Ask the youngest agent to end."""
        self._gone.append(self.agents.pop())
        self._gone[-1].terminate()

    def close(self) -> list[str]:
        """End all processes. Return those that remained and had to be killed."""
        for _ in range(2):  # the second stops at once
            for each in self.agents:
                if each.poll() is None:
                    each.terminate()
            time.sleep(0.3)
        end = time.monotonic() + 15.0
        for each in [*self.agents, *self._gone]:
            with suppress(subprocess.TimeoutExpired):
                each.wait(max(0.1, end - time.monotonic()))
        self._output.close()
        end = time.monotonic() + GOODBYE_S
        while marked(self._mark_entry) and time.monotonic() < end:
            time.sleep(0.1)
        left = []
        for pid in marked(self._mark_entry):
            with suppress(OSError):
                left.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                os.kill(pid, signal.SIGKILL)
        for each in [*self.agents, *self._gone]:
            each.wait()
        return left

    # --------------------------------------------------------------------------------------------- observation

    def worlds(self) -> dict[str, list[dict[str, Any]]]:
        """Return the workers that completed a step, by the port of the world's store, which is new each time."""
        found: dict[str, list[dict[str, Any]]] = {}
        for file in self.steps.glob("*.steps"):
            first, newline, _ = file.read_text().partition("\n")
            if newline:
                read = json.loads(first)
                found.setdefault(read["port"], []).append(read)
        return found

    def whole(self, size: int, since: float) -> World | None:
        """Wait for a world of that size whose workers all started after `after` and completed a step."""
        found = [
            World(tuple(sorted(each, key=lambda one: int(one["rank"]))))
            for each in self.worlds().values()
            if len(each) == each[0]["world"] == size and min(one["born"] for one in each) > since - 0.02
        ]
        return min(found, key=lambda world: world.reached("stepped"), default=None)

    def wait_for(self, size: int, since: float) -> World:
        found: list[World] = []

        def is_there() -> bool:
            found.extend(world for world in [self.whole(size, since)] if world is not None)
            return bool(found)

        self.until(f"a world of {size}", is_there)
        return found[0]

    def until(self, what: str, true: Callable[[], bool]) -> None:
        end = time.monotonic() + self.patience_s
        while not true():
            if time.monotonic() > end:
                raise NotRecovered(f"{self.name}: timed out after {self.patience_s:g} s waiting for {what}")
            time.sleep(LOOK_S)

    def pause_s(self, since: float, world: World) -> float:
        """Return the longest time without a step, from shortly before the event to the new world's first step."""
        last = world.reached("stepped")
        times = {last}
        for file in self.steps.glob("*.steps"):
            times.update(float(line) for line in file.read_text().split("\n")[1:-1])
        around = sorted(at for at in times if since - 2.0 <= at <= last)
        return max((b - a for a, b in pairwise(around) if b > since), default=last - since)

    def _start(self, command: list[str], **env: str) -> subprocess.Popen[bytes]:
        whole = {**os.environ, "OMP_NUM_THREADS": "1", MARK: self._mark, **env}
        return subprocess.Popen(
            command, env=whole, cwd=self.base, stdout=self._output, stderr=self._output, start_new_session=True
        )

    def _job(self) -> list[str]:
        return [SCRIPT, str(self.steps), str(PACE_S)]


class Pliant(Crowd):
    """`pliant run`. The first one hosts the coordinator, or a separate process with `lease_ttl_s`."""

    name = "pliant"

    def __init__(self, base: Path, lease_ttl_s: float | None = None, warm: bool = True) -> None:
        super().__init__(base)
        self._warm = warm
        self._home = base / "home0"
        self._token = base / "token"
        self._env = {"PLIANT_HOME": str(self._home)}
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._stopped: list[int] = []
        if lease_ttl_s is not None:
            self._home.mkdir()
            listen = ("--listen", f"127.0.0.1:{self._port}")
            lease = ("--lease-ttl-s", str(lease_ttl_s))
            self._coordinator = self._start([PLIANT, "coordinator", *listen, *lease], **self._env)
            self._token = self._home / "token"
            self.until("the coordinator", lambda: self._answers() and self._token.exists())

    def add(self) -> None:
        number = len(self.agents) + len(self._gone)
        size = ("--nnodes", f"1:{AGENTS_MAX}", "--nproc-per-node", "1", "--max-restarts", "100")
        place = ["--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        if self._coordinator is not None:
            place = ["--coordinator", f"http://127.0.0.1:{self._port}", "--token-file", str(self._token)]
        elif number:
            self._make_token()
            place += ["--token-file", str(self._token)]
        env = {"PLIANT_HOME": str(self.base / f"home{number}"), "PLIANT_AGENT": f"agent{number}"}
        preload = () if self._warm else ("--preload", "")
        self.agents.append(self._start([PLIANT, "run", "--job", JOB, *size, *place, *preload, *self._job()], **env))

    def _make_token(self) -> None:
        if self._token.exists():
            return
        self.until("the coordinator", (self._home / "jobs" / JOB / "join-token").exists)
        self._ask("token", "create", "--scope", "join", "--job", JOB, "--out", str(self._token))

    def _answers(self) -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self._port)) == 0

    def _ask(self, *words: str) -> str:
        command = [PLIANT, *words]
        if self._coordinator is not None:
            command += ["--coordinator", f"http://127.0.0.1:{self._port}"]
        env = {**os.environ, **self._env}
        return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True, timeout=30).stdout

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line)["event"] for line in self._ask("events", JOB, "--json").splitlines()]

    def settle(self) -> None:
        """Wait until every agent's template has completed its imports."""
        if not self._warm:
            return
        running = [each for each in self.agents if each.poll() is None]
        self.until("the templates", lambda: all(template(each.pid) is not None for each in running))
        pids = [pid for each in running if (pid := template(each.pid)) is not None]
        self.until("the templates to be ready", lambda: all(_is_idle(pid) for pid in pids))

    def lose_agent(self, *, silent: bool) -> None:
        agent = self.agents.pop()
        self._gone.append(agent)
        if not silent:
            agent.kill()  # its workers end with it
            return
        wardens = [pid for pid in marked(self._mark_entry) if (stat := _stat(pid)) and int(stat[1]) == agent.pid]
        for pid in (agent.pid, *wardens):
            os.kill(pid, signal.SIGSTOP)
        self._stopped = wardens
        for pid in [one["pid"] for each in self.worlds().values() for one in each if one["parent"] in wardens]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> list[str]:
        if self._coordinator is not None:
            self.agents.append(self._coordinator)  # ends with all others
        if self._stopped:
            self._gone[-1].kill()
        for pid in self._stopped:
            os.kill(pid, signal.SIGCONT)
        return super().close()


class Standalone(Pliant):
    """`pliant run --standalone` with all workers."""

    def start(self, workers: int) -> None:
        size = ("--standalone", "--nproc-per-node", str(workers))
        self.agents.append(self._start([PLIANT, "run", "--job", JOB, *size, *self._job()], **self._env))


class Torchrun(Crowd):
    """torchrun with its store in the first agent."""

    name = "torchrun"

    def __init__(self, base: Path, tuned: bool, agents_max: int = AGENTS_MAX) -> None:
        super().__init__(base)
        self._conf, self._flags = TUNED if tuned else ("", NO_FLAGS)
        self._max = agents_max

    def add(self) -> None:
        conf = f"is_host={0 if self.agents else 1}" + (f",{self._conf}" if self._conf else "")
        size = ("--nnodes", f"1:{self._max}", "--nproc-per-node", "1", "--max-restarts", "100")
        place = ("--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", JOB, "--rdzv-conf", conf)
        command = [TORCHRUN, *size, *place, *self._flags, *self._job()]
        # Without the second variable no agent can join a running job, as of torch 2.13.
        env = {"PET_RDZV_BACKEND": "c10d", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.agents.append(self._start(command, **env))

    def lose_agent(self, *, silent: bool) -> None:
        del silent  # torchrun does not detect closed connections
        agent = self.agents.pop()
        self._gone.append(agent)
        workers = [one["pid"] for each in self.worlds().values() for one in each if one["parent"] == agent.pid]
        agent.kill()
        for pid in workers:  # they would outlive it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class StandaloneTorchrun(Torchrun):
    """`torchrun --standalone` with all workers."""

    def start(self, workers: int) -> None:
        self.agents.append(self._start([TORCHRUN, "--standalone", "--nproc-per-node", str(workers), *self._job()]))


# ------------------------------------------------------------------------------------------------- processes


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def marked(entry: str) -> list[int]:
    """Return the processes with this mark in their environment, which a fork inherits."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):  # it has ended
                if entry.encode() in (each / "environ").read_bytes().split(b"\0"):
                    found.append(int(each.name))
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's stat file; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def template(agent: int) -> int | None:
    """Return an agent's template: the oldest of its warden's children that look like one, since forks are younger."""
    parents: dict[int, list[int]] = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and (stat := _stat(int(each.name))):
            parents.setdefault(int(stat[1]), []).append(int(each.name))
    found = []
    for warden in parents.get(agent, []):
        for pid in parents.get(warden, []):
            with suppress(OSError, IndexError):
                if TEMPLATE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append((int(_stat(pid)[19]), pid))
    return min(found)[1] if found else None


def _is_idle(pid: int) -> bool:
    before = _stat(pid)
    time.sleep(IDLE_S)
    now = _stat(pid)
    if not before or not now:
        return False
    used = sum(map(int, now[11:13]))
    asleep = before[0] == now[0] == "S"
    return asleep and sum(map(int, before[11:13])) == used >= IMPORTED_S * os.sysconf("SC_CLK_TCK")
