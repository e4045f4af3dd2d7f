"""A live job of `make gpu`: `pliant run` of the elastic script, its steps, its members and its changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e.running import wait_for
from gpu.elastic import END
from pliant.agent.job_dir import JobDir
from pliant.client import Client
from pliant.core.messages import Resize
from pliant.core.model.job import Target
from pliant.credentials import read_token

HERE = Path(__file__).parent
PLIANT = (sys.executable, "-c", "from pliant.cli.main import main; main()")  # also without an installed command
PATIENCE_S = 240.0
FIRST_STEPS = 5  # of a new world, which belong to the change


def environment(home: Path) -> dict[str, str]:
    """Return the environment of workers: they import the modules of this folder, with one thread each."""
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PLIANT_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@dataclass(frozen=True)
class Step:
    """One applied step, as a worker noted it."""

    at: float
    number: int
    size: int
    peak_mb: int
    reserved_mb: int


class StepFiles:
    """The steps that each worker noted. A look reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}
        self.by_member: dict[str, list[Step]] = {}

    def look(self) -> dict[str, list[Step]]:
        for path in self._folder.glob("*.steps"):
            member, at = path.stem, self._read.get(path.stem, 0)
            with path.open("rb") as file:
                file.seek(at)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[member] = at + len(whole)
            found = self.by_member.setdefault(member, [])
            found += [Step(*json.loads(line)) for line in whole.splitlines()]
        return self.by_member


class Job:
    """`pliant run` of the elastic script with up to four workers."""

    def __init__(self, folder: Path, name: str, target: int, device: str, *options: str) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self._home = folder / "home"
        self._env = environment(self._home)
        self._steps = StepFiles(self.folder)
        script = [str(HERE / "elastic.py"), str(self.folder), "--device", device, *options]
        limits = ["--workers", "1:4", "--target", str(target), "--nproc-per-node", "4", "--max-restarts", "1000"]
        run = [*PLIANT, "run", "--mode", "live", "--job", name, *limits, "--checkpoint-every", "never"]
        with (self.folder / "log").open("w") as log:
            self._process = subprocess.Popen([*run, *script], stdout=log, stderr=log, env=self._env)

    def pliant(self, *args: str) -> str:
        done = subprocess.run(
            [*PLIANT, *args], capture_output=True, text=True, env=self._env, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, f"pliant {' '.join(args)}: {done.stderr.strip()[-1000:]}"
        return done.stdout

    @cached_property
    def client(self) -> Client:
        """The connection to the job's coordinator, once it runs: faster than a command in a process of its own."""
        folder = JobDir(self._home / "jobs" / self.name)
        endpoint = folder.read_endpoint()
        assert endpoint is not None, f"{self.name} has no coordinator: {self._tail()}"
        return Client([endpoint.url], read_token(folder.token), patience_s=30.0)

    def resize(self, size: int) -> None:
        self.client.send(self.name, Resize(Target(size)))

    def pids(self) -> dict[str, int]:
        """Return the process numbers of the members with a rank, by name."""
        members = self.client.job(self.name).members
        return {line.id: line.pid for line in members if line.rank is not None and line.pid is not None}

    def steps(self) -> dict[str, list[Step]]:
        return self._steps.look()

    # ------------------------------------------------------------------------------------------------- changes

    def until_size(self, size: int, since: float = 0.0) -> None:
        """Wait for a step in a world of that size after `since`."""

        def has_size() -> bool:
            self._require_running()
            return any(each and each[-1].size == size and each[-1].at > since for each in self.steps().values())

        wait_for(has_size, f"a step of {self.name} in a world of {size}", PATIENCE_S)

    def change(self, size: int, act: Callable[[], object]) -> float:
        """Do something that leads to a world of another size. Return the longest pause of a member that stays."""
        since = time.time()
        act()
        self.until_size(size, since)
        found: list[float] = []

        def are_through() -> bool:
            self._require_running()
            found[:] = self._pauses_s(since, size)
            return bool(found)

        wait_for(are_through, f"the first steps of {self.name} in a world of {size}", PATIENCE_S)
        return round(max(found), 3)

    def _pauses_s(self, since: float, size: int) -> list[float]:
        """Return the times between two steps of each member that stays, from `since` through its first steps in the
        new world, where it may wait for a joiner. Empty until a member has made these."""
        pauses: list[float] = []
        for steps in self.steps().values():
            entered = next((at for at, step in enumerate(steps) if step.at > since and step.size == size), None)
            if entered is None or steps[0].at > since or len(steps) < entered + FIRST_STEPS:
                continue  # it left, joined in this change, or is not through
            around = [step.at for step in steps[: entered + FIRST_STEPS]]
            pauses += [after - before for before, after in pairwise(around) if after > since]
        return pauses

    # ----------------------------------------------------------------------------------------------------- end

    def finish(self) -> None:
        """Let the job end with its next step."""
        (self.folder / END).touch()

    def result(self) -> str:
        """Wait for the end, and return the hash of the weights, the same on every worker."""
        try:
            code = self._process.wait(2 * PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = -1
        assert code == 0, f"{self.name} ended with {code}: {self._tail()}"
        found = {json.loads(path.read_text())["hash"] for path in self.folder.glob("*.done")}
        assert len(found) == 1, f"the workers of {self.name} ended with {len(found)} different weights"
        return str(found.pop())

    def events(self) -> list[dict[str, Any]]:
        lines = self.pliant("events", self.name, "--json").splitlines()
        return [json.loads(line)["event"] for line in lines]

    def lost(self) -> set[str]:
        """Return the members that the coordinator declared lost."""
        gone = [event for event in self.events() if event["type"] == "MemberGone"]
        return {event["member"] for event in gone if event["how"] == "lost"}

    def is_audit_clean(self) -> bool:
        audit = json.loads(self.pliant("audit", self.name, "--json"))
        return bool(audit["ok"]) and not audit["lost"] and not audit["repeated"]

    def stop(self) -> None:
        """End all processes of the job, whatever state it is in."""
        if "client" in self.__dict__:
            self.client.close()
        if self._process.poll() is None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        if self._process.poll() is None:
            self._process.terminate()  # the second ends it at once
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
        if self._process.poll() is None:
            self._process.kill()

    def _require_running(self) -> None:
        assert self._process.poll() is None, f"{self.name} has ended: {self._tail()}"

    def _tail(self) -> str:
        return (self.folder / "log").read_text()[-3000:]


@contextmanager
def running(folder: Path, name: str, target: int, device: str, *options: str) -> Iterator[Job]:
    """Start a job, and end it with the block."""
    job = Job(folder, name, target, device, *options)
    try:
        yield job
    finally:
        job.stop()
