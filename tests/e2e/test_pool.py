"""Two live jobs on one pool: the urgent one takes workers by consent, finishes, and the other one grows back."""

import os
import runpy
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import pytest

from e2e.launched import Launched
from e2e.running import Running, start, wait_for
from pliant.client import Client
from pliant.core.allocate import Pool
from pliant.core.model.job import JobState
from pliant.errors import PliantError
from unit.cli.program import environment, real

SLOTS = 3
SCRIPTS = Path(__file__).parent
TESTS = str(Path(__file__).parents[1])
LOOK_S = 0.1


@dataclass
class Watched:
    """The workers of all jobs of a pool, looked at all the time; and their processes, as long as these run."""

    client: Client
    members: dict[str, dict[str, int]] = field(default_factory=dict)  # by job, those that joined, with their processes
    steps: dict[str, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    looks: int = 0
    over: list[str] = field(default_factory=list)
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
        self.over += [f"{count} {what} of {SLOTS}: {here}" for what, count in counts.items() if count > SLOTS]

    def count(self, job: str) -> int:
        return len(self.members.get(job, {}))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] not in "ZX"
    except OSError:
        return False


@contextmanager
def watched(client: Client) -> Iterator[Watched]:
    found = Watched(client)
    thread = threading.Thread(target=found.watch)
    thread.start()
    try:
        yield found
    finally:
        found.done.set()
        thread.join()


def launched(home: Path, at: Running, job: str, workers: str, priority: int, *script: str) -> Launched:
    options = ("--coordinator", at.url, "--token-file", str(at.home / "token"), "--queue", "default")
    ask = ("--workers", workers, "--priority", str(priority))
    return Launched(home / job, *options, *ask, *script, job=job, PYTHONPATH=with_tests())


def with_tests() -> str:
    return os.pathsep.join([TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])


def digests(lines: list[str]) -> set[str]:
    return {line.rpartition("digest ")[2] for line in lines if "digest " in line}


def share(tmp_path: Path, name: str, steps: int, urgent_steps: int, pace_s: float) -> tuple[set[str], set[str]]:
    """Run both jobs, and return the digests that the workers of each of them end with."""
    script = str(SCRIPTS / name)
    quick, never = tmp_path / "quick", tmp_path / "never"
    with start(home=tmp_path / "coordinator") as coordinator, watched(coordinator.client()) as seen:
        client = coordinator.client()
        client.set_pool(Pool(SLOTS))
        with launched(
            tmp_path, coordinator, "low", f"1:{SLOTS}", 0, script, str(steps), str(pace_s), str(quick)
        ) as low:
            wait_for(lambda: seen.count("low") == SLOTS, "all workers of low")
            wait_for(lambda: seen.steps.get("low", 0) > 3, "steps of low")
            before = dict(seen.members["low"])
            asked_s = time.monotonic()
            arguments = (str(urgent_steps), str(pace_s), str(never))
            with launched(tmp_path, coordinator, "high", "2", 5, script, *arguments) as high:
                wait_for(lambda: "high" in seen.steps, "the urgent job")
                came_s = time.monotonic()
                wait_for(lambda: seen.count("high") == 2, "all workers of high")
                has_s = time.monotonic()
                assert seen.count("low") == 1
                assert high.ended() == 0
            wait_for(lambda: seen.count("low") == SLOTS, "low to grow back")
            back_s = time.monotonic()
            after = seen.members["low"]
            survivors = before.keys() & after.keys()
            assert survivors
            assert {name: after[name] for name in survivors} == {name: before[name] for name in survivors}
            quick.touch()
            assert low.ended() == 0
        assert seen.over == []
        assert seen.looks > 20
        for job in ("low", "high"):
            assert client.job(job).job.state is JobState.FINISHED
            env = environment(coordinator.home, PLIANT_COORDINATOR=coordinator.url)
            found = real(env, "audit", job, "--json", "--token-file", str(coordinator.home / "token")).json
            assert (found["ok"], found["lost"], found["repeated"]) == (True, 0, 0)
    print(f"urgent job: {has_s - came_s:.1f} s until it had its workers, {has_s - asked_s:.1f} s from its command")
    print(f"other job: {back_s - has_s:.1f} s later it had all its workers again")
    return digests(low.lines), digests(high.lines)


@pytest.mark.timeout(300)
def test_an_urgent_job_takes_workers_from_another_and_returns_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    low, high = share(tmp_path, "pool_worker.py", 800, 8, 0.2)  # low is quick once it has grown back
    assert low == {alone("pool_worker.py", 800, monkeypatch)}
    assert high == {alone("pool_worker.py", 8, monkeypatch)}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_torch_jobs_on_one_pool_end_with_the_bits_of_one_worker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    low, high = share(tmp_path, "pool_torch_worker.py", 480, 24, 0.2)
    assert low == {alone("pool_torch_worker.py", 480, monkeypatch)}
    assert high == {alone("pool_torch_worker.py", 24, monkeypatch)}


def alone(name: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the digest that one worker without a coordinator ends with."""
    for variable in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "argv", [name, str(steps), "0", ""])
    with redirect_stdout(StringIO()) as out:
        runpy.run_path(str(SCRIPTS / name))
    return digests(out.getvalue().splitlines()).pop()
