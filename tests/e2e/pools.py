"""Jobs that share a pool, watched from outside, and the digests that their workers end with."""

import os
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest

from pliant.client import Client
from pliant.errors import PliantError

SLOTS = 3
SCRIPTS = Path(__file__).parent
TESTS = str(Path(__file__).parents[1])
LOOK_S = 0.1


@dataclass
class Watched:
    """The workers of all jobs of a pool, looked at all the time; and their processes, as long as these run."""

    client: Client
    slots: int = SLOTS  # of the pool
    members: dict[str, dict[str, int]] = field(default_factory=dict)  # by job, those that joined, with their processes
    steps: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    looks: int = 0
    over: list[str] = field(default_factory=list)
    crowded: list[str] = field(default_factory=list)  # agents with two workers; of interest where each has one slot
    done: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self.done.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        try:
            jobs = {line.name: self.client.job(line.name) for line in self.client.jobs()}
            shown = self.client.pool().jobs
        except PliantError:
            return
        here = {name: {str(line.id): line.pid or 0 for line in job.members} for name, job in jobs.items()}
        live = {name: found for name, found in here.items() if not jobs[name].job.state.ended}
        self.members = {name: found for name, found in live.items() if jobs[name].live}
        self.steps = {name: job.job.step for name, job in jobs.items()}
        self.seen |= {pid for found in here.values() for pid in found.values() if pid}
        counts = {
            "workers": sum(map(len, live.values())),
            "granted": sum(line.granted for line in shown),
            "held": sum(line.held for line in shown),
            "processes": sum(map(is_running, self.seen)),
        }
        self.looks += 1
        on_agent = Counter(
            str(line.agent) for job in jobs.values() for line in job.members if line.pid and is_running(line.pid)
        )
        crowded = {agent: count for agent, count in on_agent.items() if count > 1}
        self.crowded += [f"{crowded}: {here}"] if crowded else []
        self.over += [f"{count} {what} of {self.slots}: {here}" for what, count in counts.items() if count > self.slots]

    def count(self, job: str) -> int:
        return len(self.members.get(job, {}))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in "ZX"
    except OSError:
        return False


@contextmanager
def watched(client: Client, slots: int = SLOTS) -> Iterator[Watched]:
    found = Watched(client, slots)
    thread = threading.Thread(target=found.watch)
    thread.start()
    try:
        yield found
    finally:
        found.done.set()
        thread.join()


def with_tests() -> str:
    return os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])


def digests(lines: list[str]) -> set[str]:
    return {line.rpartition("digest ")[2] for line in lines if "digest " in line}


def alone(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the digest that one worker without a coordinator ends with."""
    for variable in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "argv", [name, str(steps), "0", ""])
    with redirect_stdout(StringIO()) as out:
        runpy.run_path(str(SCRIPTS / name))
    return digests(out.getvalue().splitlines()).pop()
