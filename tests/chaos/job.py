"""A real job to be disturbed: a coordinator, `pliant run` with its workers, and what they leave behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from chaos.chronicle import Chronicle
from chaos.frameworks import FRAMEWORKS, Framework
from chaos.probe import Whereabouts, Wish
from e2e.launched import family
from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.core.model.names import MemberId
from pliant.credentials import read_token
from schedules.messages import die_with_parent
from unit.cli.program import PLIANT, environment, real

JOB = "chaos"
PATIENCE_S = 60.0
FOLLOW_S = 1.0  # a follower of events asks again anyway, and perhaps elsewhere
GONE_S = 10.0


@dataclass(frozen=True)
class Task:
    """The training of a job: its script and its options."""

    epochs: int
    seed: int = 7
    samples: int = 2000
    batch: int = 64
    bug: str = ""
    data_workers: str = "some"  # or "all": one for each worker
    lesson: str = "clouds"  # which of models.py, for torch
    framework: str = "torch"
    programs: Path = Path(PLIANT).parent  # with the `python` and the `pliant` of an environment that has the framework
    slots: int = 32  # two samples at least in each: BatchNorm needs them
    deterministic: bool = False

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.samples // self.batch)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def its(self) -> Framework:
        return FRAMEWORKS[self.framework]

    def environment(self, folder: Path) -> dict[str, str]:
        return {
            **self.its.settings,
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

    def __init__(
        self,
        base: Path,
        task: Task,
        workers: str,
        target: int,
        lease_ttl_s: float | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.base = base
        self.task = task
        self.folder = base / "workers"  # what they leave
        self.home = base / "home"
        self.coordinator: Running | None = None
        self.lease_ttl_s = lease_ttl_s
        self.folder.mkdir(parents=True)
        self.temporary = base / "tmp"  # nothing may be left in it
        self.temporary.mkdir()
        self.wish = Wish(self.folder)
        place: tuple[str, ...] = ()
        if lease_ttl_s is not None:
            place = self._place(self.start_coordinator())
        sizes = ("--workers", workers, "--target", str(target), "--max-restarts", "100000")
        run = (str(task.programs / "pliant"), "run", "--mode", "live", "--job", JOB)
        self._command = (*run, *sizes, *place, *options, *task.its.options, str(task.its.script))
        self._output = (base / "output").open("w")
        self.run = self._start_run()
        self._clients: list[Client] = []

    def _start_run(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=self.environment,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # one system call, and no lock is taken
        )

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.home, TMPDIR=str(self.temporary), **self.task.environment(self.folder))

    def __enter__(self) -> Job:
        try:
            if self.coordinator is None:
                self._until(self.endpoint.exists, "the coordinator")
            self.client = self._new_client()
            self._until(lambda: any(line.name == JOB for line in self.client.jobs()), "the job")
            self.chronicle = Chronicle(self._new_client(FOLLOW_S), JOB)
        except BaseException:  # why: whatever happens, no process is left behind
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the job, however far it is."""
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
            wait_for(lambda: not family(self.home), "the end of every process", GONE_S)  # the spawner ends them
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

    def run_again(self) -> float:
        """`kill -9` `pliant run`, and start it again once no process of it is left. Return the time of the start."""
        before = self.coordinator_pid
        self.run.kill()
        self.run.wait()
        wait_for(lambda: not self.left(), "the end of every process that pliant run had started")
        ended = time.time()
        self.run = self._start_run()
        if self.coordinator is None:
            self._find_coordinator(before)
        return ended

    def left(self) -> set[int]:
        """The processes of `pliant run` and of all that it started."""
        found = family(self.home)
        for pidfd in found.values():
            os.close(pidfd)
        return set(found)

    # --------------------------------------------------------------------------------------------- coordinator

    @property
    def endpoint(self) -> Path:
        """Return where a coordinator that is a child of `pliant run` says where it listens."""
        return self.home / "jobs" / JOB / "endpoint.json"

    def kill_coordinator(self) -> None:
        """`bring_coordinator_back` is to follow."""
        if self.coordinator is not None:
            self.coordinator.kill()
        else:
            os.kill(self.coordinator_pid, signal.SIGKILL)

    def bring_coordinator_back(self, before: int) -> None:
        """Start another one, or wait for the one that `pliant run` starts by itself."""
        if self.coordinator is not None:
            self.start_coordinator()
        else:
            self._find_coordinator(before)

    def _find_coordinator(self, before: int) -> None:
        self._until(lambda: self.coordinator_pid != before, "another coordinator")
        self.client = self._new_client()
        self.chronicle.ask(self._new_client(FOLLOW_S))

    def start_coordinator(self) -> Running:
        """The first, and each after a kill, at the same address and on the same store."""
        port = self.coordinator.port if self.coordinator is not None else 0
        home = self.base / "coordinator"
        home.mkdir(mode=0o700, exist_ok=True)
        assert self.lease_ttl_s is not None
        self.coordinator = start(f"sqlite:{home / 'store.db'}", home=home, port=port, lease_ttl_s=self.lease_ttl_s)
        return self.coordinator

    def _place(self, coordinator: Running | None) -> tuple[str, ...]:
        """Return what the command line says about it."""
        if coordinator is None:
            return ()
        return ("--coordinator", coordinator.url, "--token-file", str(coordinator.home / "token"))

    @property
    def coordinator_pid(self) -> int:
        if self.coordinator is not None:
            return self.coordinator.pid
        return int(json.loads(self.endpoint.read_text())["pid"])

    @property
    def coordinator_port(self) -> int:
        if self.coordinator is not None:
            return self.coordinator.port
        return int(json.loads(self.endpoint.read_text())["url"].rpartition(":")[2])

    def _new_client(self, patience_s: float = PATIENCE_S) -> Client:
        if self.coordinator is not None:
            url, token = self.coordinator.url, self.coordinator.home / "token"
        else:
            said = json.loads(self.endpoint.read_text())
            url, token = said["url"], Path(said["token_file"])
        client = Client([url], read_token(token), patience_s=patience_s)
        self._clients.append(client)
        return client

    # ------------------------------------------------------------------------------------------------- workers

    def whereabouts(self, member: MemberId) -> Whereabouts:
        return Whereabouts(self.folder, self.chronicle.scene.pids[member])

    def said(self) -> list[dict[str, Any]]:
        """Return what workers wrote down about themselves: starts, leavings and final states."""
        return read_said(self.folder)

    def audit(self) -> dict[str, Any]:
        """`pliant audit`, as a user asks for it."""
        return self.checkpoint_wanted_at_step("audit")

    def checkpoint_wanted_at_step(self, command: str) -> dict[str, Any]:
        """Return what a command of ours says about the job, with its exit status as `code`."""
        done = real(self.environment, command, JOB, "--json", *self._place(self.coordinator))
        assert done.out, f"pliant {command}: {done.err}"
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
    """Return what the processes wrote down that had this folder, in order."""
    found = []
    for path in folder.glob("*.said"):
        found += [{"pid": int(path.stem), **json.loads(line)} for line in path.read_text().splitlines()]
    return sorted(found, key=lambda each: each["at"])


def exited(pidfd: int) -> bool:
    """Return whether that process has ended."""
    return bool(select.select([pidfd], [], [], 0)[0])


@contextmanager
def opened(pid: int) -> Iterator[int]:
    """A process that cannot be mistaken for a later one of the same number."""
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)
