"""Jobs of two workers under Pliant, torchft and torchrun, for `pause.py`. Both others are tuned to detect quickly."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pause_worker import LIGHTHOUSE, SEAT, STAMP
from relaunch_agents import TUNED, free_port
from training import JOB, Scene

from pliant.core import messages as m
from pliant.core.model.job import Target

WORKER = Path(__file__).with_name("pause_worker.py")
WORLD = 2
LOOK_S = 0.05
PATIENCE_S = 120.0
SERVE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=10, heartbeat_timeout_ms=500
)
print(server.address(), flush=True)
sys.stdin.read()
"""


class NotRecovered(Exception):
    """A condition was not met in time."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """One step of a process: when, in which world, and how large that was."""

    at: float
    world: int
    size: int


class System:
    """A job. A seat is a place that outlives a restart of its process: a member, a replica or an agent."""

    name = ""
    restarts = False  # a change ends the processes of all seats

    def __init__(self, base: Path, model: str) -> None:
        self.base, self.folder = base, base / "steps"
        self.env = {"BENCH_FOLDER": str(self.folder), "BENCH_MODEL": model, "BENCH_WORLD": str(WORLD)}
        self.env["OMP_NUM_THREADS"] = "1"

    def join(self) -> None:
        raise NotImplementedError

    def leave(self, seat: str) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        """Bring back a full world, after a kill or a stop."""

    def close(self) -> None:
        """End every process."""

    def pick(self, seats: list[str], chance: random.Random) -> str:
        """Return the seat that is to leave, die or freeze."""
        return chance.choice(seats)

    # ------------------------------------------------------------------------------------------------- observation

    def stamps(self, seat: str) -> list[Stamp]:
        """Return the steps of all processes of a seat, in order."""
        found: list[Stamp] = []
        for file in self.folder.glob(f"{seat}.*.stamps"):
            content = file.read_bytes()
            whole = len(content) // STAMP.size * STAMP.size
            found += [Stamp(*each) for each in STAMP.iter_unpack(content[:whole])]
        return sorted(found, key=lambda each: each.at)

    def pids(self) -> dict[str, int]:
        """Return the process of each seat that has one which has made a step."""
        found = {}
        for file in sorted(self.folder.glob("*.stamps"), key=lambda each: each.stat().st_mtime):
            seat, pid, _ = file.name.rsplit(".", 2)
            if file.stat().st_size and is_alive(int(pid)):
                found[seat] = int(pid)
        return found

    def until(self, what: str, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            if time.monotonic() > end:
                raise NotRecovered(f"{self.name}: timed out after {PATIENCE_S:g} s waiting for {what}")
            time.sleep(LOOK_S)

    def trains(self, size: int, seats: set[str] | None, since: float, steps: int) -> bool:
        """Return whether these seats (None: as many as the size) have made so many steps in one world of that size."""
        names = seats if seats is not None else set(self.pids())
        if seats is None and len(names) != size:
            return False
        return all(
            len(last := self.stamps(name)[-steps:]) == steps
            and last[0].at > since
            and {(each.world, each.size) for each in last} == {(last[-1].world, size)}
            for name in names
        )

    def trains_elsewhere(self, seats: set[str], before: set[int], since: float, steps: int) -> bool:
        """Return whether these seats have made so many steps in worlds that were not there before."""
        return all(
            sum(each.at > since and each.world not in before for each in self.stamps(name)) >= steps for name in seats
        )


class Pliant(System):
    name = "Pliant"

    def __init__(self, base: Path, model: str) -> None:
        super().__init__(base, model)
        self._scene = Scene(base, model, WORLD, WORKER, (0, 0))

    def join(self) -> None:
        self._scene.client.send(JOB, m.Resize(Target(WORLD + 1)))

    def leave(self, seat: str) -> None:
        del seat  # the coordinator chooses the member
        self._scene.client.send(JOB, m.Resize(Target(WORLD)))

    def close(self) -> None:
        self._scene.close()


class Others(System):
    """Processes that the harness starts, one for each seat."""

    def __init__(self, base: Path, model: str) -> None:
        super().__init__(base, model)
        self.folder.mkdir(parents=True)
        self._output = (base / "output").open("wb")
        self.seats: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0

    def command(self) -> list[str]:
        raise NotImplementedError

    def join(self) -> None:
        seat = f"seat{self._count}"
        self._count += 1
        self.seats[seat] = subprocess.Popen(
            self.command(),
            env={**os.environ, **self.env, SEAT: seat},
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )

    def leave(self, seat: str) -> None:
        self.seats[seat].terminate()

    def close(self) -> None:
        for file in self.folder.glob("*.stamps"):
            end_worker(int(file.name.rsplit(".", 2)[1]))
        for process in self.seats.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._output.close()


class TorchFt(Others):
    name = "torchft"

    def __init__(self, base: Path, model: str) -> None:
        super().__init__(base, model)
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._server.stdout is not None
        self.env[LIGHTHOUSE] = self._server.stdout.readline().strip()
        for _ in range(WORLD):
            self.join()

    def command(self) -> list[str]:
        return [sys.executable, str(WORKER), "torchft"]

    def restore(self) -> None:
        for pid in [process.pid for process in self.seats.values() if is_stopped(process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.join()

    def close(self) -> None:
        super().close()
        self._server.kill()
        self._server.wait()


class Torchrun(Others):
    name = "torchrun"
    restarts = True

    def __init__(self, base: Path, model: str) -> None:
        super().__init__(base, model)
        self._port = free_port()
        # Without this no agent can join a running job, as of torch 2.13.
        self.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        for _ in range(WORLD):
            self.join()

    def command(self) -> list[str]:
        conf, flags = TUNED
        hosted = f"is_host={0 if self.seats else 1},{conf}"
        size = ("--nnodes", f"1:{WORLD + 1}", "--nproc-per-node", "1", "--max-restarts", "100")
        place = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}", "--rdzv-id", JOB)
        start = [sys.executable, "-m", "torch.distributed.run", *size, *place, "--rdzv-conf", hosted, *flags]
        return [*start, str(WORKER), "torchrun"]

    def pick(self, seats: list[str], chance: random.Random) -> str:
        """Spare the first agent, which has the store: without it no other can go on."""
        return chance.choice([seat for seat in seats if seat != "seat0"])


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def is_stopped(pid: int) -> bool:
    return state_of(pid) == "T"


def state_of(pid: int) -> str:
    """Return the state of a process as the kernel names it; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return ""


def end_worker(pid: int) -> None:
    """End a worker that outlived its agent. Another process may have its number by now."""
    with suppress(OSError):
        if WORKER.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


SYSTEMS: tuple[type[System], ...] = (Pliant, TorchFt, Torchrun)
