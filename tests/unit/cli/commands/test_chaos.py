"""`pliant chaos` at real workers of a real coordinator, without `pliant run`: whom it leaves alone, when it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pliant.agent.job_dir import JobDir
from pliant.chaos.plan import NO_COORDINATOR
from pliant.chaos.processes import find_coordinator
from pliant.core.messages import Cancel, Create, Leave
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import MemberId
from pliant.core.model.view import MemberState
from unit.cli.program import PLIANT, Running, coordinator, environment, until

TRAINER = Path(__file__).parents[2] / "agent" / "trainer.py"
STOPS = ("--faults", "stop", "--every", "0.5", "--for", "600", "--json")
LONG, SHORT = ("--seed", "4"), ("--seed", "5")  # the first stop lasts for more than 10 s, and for some 2 s


@dataclass(frozen=True)
class Stage:
    """A job that trains, and the processes of its two workers."""

    running: Running
    workers: "tuple[subprocess.Popen[bytes], ...]"

    def someone_is_stopped(self) -> bool:
        return any(is_stopped(each.pid) for each in self.workers)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with coordinator(tmp_path / "home") as running, running.client() as client, ExitStack() as workers:
        client.send("demo", Create("demo", JobSpec(1, 4, Target(2), chaos_allowed=True)))
        found = Stage(running, tuple(workers.enter_context(_worker(running, name)) for name in ("w1", "w2")))

        def both_hold() -> bool:
            return [line.state for line in client.job("demo").members].count(MemberState.ACTIVE) == 2

        until(both_hold, "that both hold the state")
        yield found


@contextmanager
def _worker(running: Running, member: str) -> "Iterator[subprocess.Popen[bytes]]":
    env = running.env(
        PLIANT_JOB="demo",
        PLIANT_MEMBER=member,
        PLIANT_AGENT="here",
        PLIANT_CHECKPOINT_DIR=str(running.home),
        PLIANT_GRACE_S="5",
        PLIANT_TOKEN_FILE=str(running.token_file),
    )
    argv = [sys.executable, str(TRAINER), "0.05", "2000"]
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as found:
        try:
            yield found
        finally:
            found.kill()


@contextmanager
def chaos(env: dict[str, str], *args: str) -> "Iterator[subprocess.Popen[str]]":
    argv = [PLIANT, "chaos", "demo", *args]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        try:
            yield found
        finally:
            found.kill()


def test_ctrl_z_ends_it_and_nobody_is_left_stopped(stage: Stage) -> None:
    with chaos(stage.running.env(), *STOPS, *LONG) as one:
        until(stage.someone_is_stopped, "the stop")
        one.send_signal(signal.SIGTSTP)
        out, err = one.communicate(timeout=20)
        assert one.returncode == 130, err
        assert json.loads(out)["interrupted"]
        assert not stage.someone_is_stopped()


def test_nobody_is_left_stopped_while_it_is_stopped_itself(stage: Stage) -> None:
    with chaos(stage.running.env(), *STOPS, *SHORT) as one:
        until(stage.someone_is_stopped, "the stop")
        one.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(one.pid), "that it is stopped itself")
        assert stage.someone_is_stopped()
        until(lambda: not stage.someone_is_stopped(), "that all go on")
        assert is_stopped(one.pid)
        one.send_signal(signal.SIGCONT)
        one.send_signal(signal.SIGINT)
        out, err = one.communicate(timeout=20)
        assert one.returncode == 130, err
        assert json.loads(out)["faults"]


def test_an_attempt_that_does_not_allow_it_ends_it(stage: Stage) -> None:
    with chaos(stage.running.env(), *STOPS, *SHORT) as one, stage.running.client() as client:
        until(stage.someone_is_stopped, "the stop")
        # All of this happens while it waits for the end of the stop: the job ends once its members have left.
        client.send("demo", Cancel("enough"))
        for member in ("w1", "w2"):
            client.send("demo", Leave(MemberId(member), 0, "enough"))
        client.send("demo", Create("demo", JobSpec(1, 4, Target(2))))
        _, err = one.communicate(timeout=30)
        assert (one.returncode, "demo: the job no longer allows chaos" in err) == (0, True), err
        assert err.count("stop w") == 1


def test_it_does_not_strike_at_the_coordinator_of_another_job_of_that_name(stage: Stage, tmp_path: Path) -> None:
    folder = JobDir(tmp_path / "other" / "jobs" / "demo")
    folder.make()
    asked = ("--coordinator", stage.running.url, "--token-file", str(stage.running.token_file))
    with coordinator(folder.path) as local:
        folder.write_endpoint(local.url, local.process.pid)
        assert find_coordinator(folder.coordinator_pid(), folder.path) is not None  # so it could be struck at
        with chaos(environment(tmp_path / "other"), "--faults", "coordinator", "--for", "5", *asked) as one:
            _, err = one.communicate(timeout=30)
        assert (one.returncode, NO_COORDINATOR in err) == (2, True), err
        assert local.process.poll() is None
