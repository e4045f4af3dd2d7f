"""A real job to be disturbed: a coordinator, `pliant run` with its workers, and what they leave behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from chaos.chronicle import Chronicle
from chaos.probe import Whereabouts, Wish
from e2e.launched import family
from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.core.model import MemberId
from pliant.credentials import read_token
from schedules.messages import die_with_parent
from unit.cli.program import PLIANT, environment, real

SCRIPT = Path(__file__).with_name("training.py")
JOB = "chaos"
PATIENCE_S = 60.0
GONE_S = 10.0


@dataclass(frozen=True)
class Task:
    """What is trained."""

    epochs: int
    seed: int = 7
    samples: int = 2000
    batch: int = 64
    bug: str = ""
    data_workers: str = "some"  # or "all": one for each worker
    lesson: str = "clouds"  # which of lessons.py
    slots: int = 32  # two samples at least in each: BatchNorm needs them
    deterministic: bool = False

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def environment(self, folder: Path) -> dict[str, str]:
        return {
            "CHAOS_FOLDER": str(folder),
            "CHAOS_SAMPLES": str(self.samples),
            "CHAOS_BATCH": str(self.batch),
            "CHAOS_EPOCHS": str(self.epochs),
            "CHAOS_SEED": str(self.seed),
            "CHAOS_BUG": self.bug,
            "CHAOS_DATA_WORKERS": self.data_workers,
            "CHAOS_LESSON": self.lesson,
            "CHAOS_SLOTS": str(self.slots),
            "CHAOS_DETERMINISTIC": "yes" if self.deterministic else "no",
            "OMP_NUM_THREADS": "1",
        }


class Job:
    """One `pliant run`, watched from outside. With `lease_ttl_s` the coordinator is ours; else it is its own child."""

    def __init__(self, base: Path, task: Task, workers: str, target: int, lease_ttl_s: float | None = None) -> None:
        self.base = base
        self.task = task
        self.folder = base / "workers"  # what they leave
        self.home = base / "home"
        self.coordinator: Running | None = None
        self._lease_ttl_s = lease_ttl_s
        self.folder.mkdir(parents=True)
        self.wish = Wish(self.folder)
        place: tuple[str, ...] = ()
        if lease_ttl_s is not None:
            place = self._place(self.start_coordinator())
        options = ("--workers", workers, "--target", str(target), "--max-restarts", "100000", *place)
        self._output = (base / "output").open("w")
        self.run = subprocess.Popen(
            [PLIANT, "run", "--mode", "live", "--job", JOB, *options, str(SCRIPT)],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, and no lock is taken
        )
        self._clients: list[Client] = []

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.home, **self.task.environment(self.folder))

    def __enter__(self) -> Job:
        try:
            if self.coordinator is None:
                self._until((self.home / "jobs" / JOB / "endpoint.json").exists, "the coordinator")
            self.client = self._new_client()
            self._until(lambda: any(line.name == JOB for line in self.client.jobs()), "the job")
            self.chronicle = Chronicle(self._new_client(), JOB)
        except BaseException:  # why: whatever happens, nobody is left behind
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End everybody, however far it is."""
        if hasattr(self, "chronicle"):
            self.chronicle.close()
        for client in self._clients:
            client.close()
        if self.run.poll() is None:
            self.run.kill()  # its warden ends all that it started
        self.run.wait()
        self._output.close()
        if self.coordinator is not None:
            self.coordinator.kill()
        with suppress(AssertionError):
            wait_for(lambda: not family(self.home), "everybody's end", GONE_S)  # the warden is at it
        for pid, pidfd in family(self.home).items():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], PATIENCE_S)
            os.close(pidfd)
            print(f"process {pid} of the job was left behind and was ended", flush=True)

    def _until(self, true: Any, what: str) -> None:
        wait_for(lambda: true() or self.run.poll() is not None, what, PATIENCE_S)
        assert self.run.poll() is None, f"pliant run ended:\n{self.output[-3000:]}"

    @property
    def output(self) -> str:
        return (self.base / "output").read_text(errors="replace")

    # --------------------------------------------------------------------------------------------- coordinator

    def start_coordinator(self) -> Running:
        """The first, and each after a kill, at the same address and on the same store."""
        port = self.coordinator.port if self.coordinator is not None else 0
        home = self.base / "coordinator"
        home.mkdir(mode=0o700, exist_ok=True)
        assert self._lease_ttl_s is not None
        self.coordinator = start(f"sqlite:{home / 'store.db'}", home=home, port=port, lease_ttl_s=self._lease_ttl_s)
        return self.coordinator

    def _place(self, coordinator: Running | None) -> tuple[str, ...]:
        """What the command line says about it."""
        if coordinator is None:
            return ()
        return ("--coordinator", coordinator.url, "--token-file", str(coordinator.home / "token"))

    @property
    def coordinator_pid(self) -> int:
        if self.coordinator is not None:
            return self.coordinator.pid
        return int(json.loads((self.home / "jobs" / JOB / "endpoint.json").read_text())["pid"])

    def _new_client(self) -> Client:
        if self.coordinator is not None:
            url, token = self.coordinator.url, self.coordinator.home / "token"
        else:
            said = json.loads((self.home / "jobs" / JOB / "endpoint.json").read_text())
            url, token = said["url"], Path(said["token_file"])
        client = Client([url], read_token(token), patience_s=PATIENCE_S)
        self._clients.append(client)
        return client

    # ------------------------------------------------------------------------------------------------- workers

    def whereabouts(self, member: MemberId) -> Whereabouts:
        return Whereabouts(self.folder, self.chronicle.scene.pids[member])

    def said(self) -> list[dict[str, Any]]:
        """What workers wrote down about themselves: starts, leavings and final states."""
        return read_said(self.folder)

    def audit(self) -> dict[str, Any]:
        """`pliant audit`, as a user asks for it."""
        done = real(self.environment, "audit", JOB, "--json", *self._place(self.coordinator))
        assert done.out, done.err
        found: dict[str, Any] = done.json
        return {**found, "code": done.code}

    def dump_stacks(self) -> str:
        """Have every worker write the stacks of its threads; give the end of what was written."""
        for member in self.chronicle.scene.live:
            with suppress(ProcessLookupError):
                os.kill(self.chronicle.scene.pids[member], signal.SIGUSR1)
        with suppress(AssertionError):
            wait_for(lambda: False, "the stacks", 2.0)
        return self.output[-20000:]


def read_said(folder: Path) -> list[dict[str, Any]]:
    """What the processes wrote down that had this folder, in order."""
    found = []
    for path in folder.glob("*.said"):
        found += [{"pid": int(path.stem), **json.loads(line)} for line in path.read_text().splitlines()]
    return sorted(found, key=lambda each: each["at"])


def exited(pidfd: int) -> bool:
    """Whether that process has ended."""
    return bool(select.select([pidfd], [], [], 0)[0])


@contextmanager
def opened(pid: int) -> Iterator[int]:
    """A process that cannot be mistaken for a later one of the same number."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)
