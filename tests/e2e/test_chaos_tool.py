"""`pliant chaos` against real jobs: it is refused where it must be, strikes, undoes all of it, and tells the truth."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.launched import TRAINER, Launched
from e2e.running import wait_for
from e2e.test_run_live import SCRIPT, goes_on
from pliant.agent.process.template_child import MARK
from pliant.chaos.processes import ProcessRef, find_member
from pliant.chaos.socket_filter import why_unavailable
from pliant.core.model.view import MemberState
from pliant.errors import PliantError
from unit.chaos.victims import filtered
from unit.cli.program import PLIANT, Done, environment, real

ENDS_S = 240.0
PROMISED = ("--workers", "1:4", "--target", "3", "--allow-chaos")
QUICK = (*PROMISED, "--preload", "", "--mode", "live", str(TRAINER), "0.05")


class Chaos:
    """`pliant chaos` in the background. `lines` are what it told up to now."""

    def __init__(self, home: Path, *args: str) -> None:
        self._err = home / "chaos.err"
        with self._err.open("w") as err:
            self.process = subprocess.Popen(
                [PLIANT, "chaos", "demo", "--json", *args],
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env=environment(home),
                start_new_session=True,
            )

    def told(self) -> str:
        return self._err.read_text()

    def ended(self) -> Done:
        out, _ = self.process.communicate(timeout=ENDS_S)
        return Done(self.process.returncode, out, self.told())


@contextmanager
def chaos(home: Path, *args: str) -> Iterator[Chaos]:
    one = Chaos(home, *args)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        assert one.process.stdout is not None
        one.process.stdout.close()


def struck(home: Path, *args: str) -> Done:
    """The whole of it."""
    with chaos(home, *args) as one:
        return one.ended()


def all_hold(run: Launched, count: int) -> None:
    """Wait until so many members hold the state."""

    def active() -> int:
        try:
            with run.client() as client:
                return [line.state for line in client.job(run.job).members].count(MemberState.ACTIVE)
        except (OSError, PliantError):
            return 0

    wait_for(lambda: active() == count, f"{count} members that hold the state", ENDS_S)


def _args(faults: str, every_s: float, for_s: float, seed: int) -> tuple[str, ...]:
    return ("--faults", faults, "--every", f"{every_s}", "--for", f"{for_s}", "--seed", f"{seed}")


def workers(run: Launched) -> dict[str, ProcessRef]:
    """Every member's process, as the tool knows it."""
    found = {member: find_member(pid, run.job, member, MARK, run.process.pid) for member, pid in run.members().items()}
    return {member: process for member, process in found.items() if process is not None}


def stopped(process: ProcessRef) -> bool:
    try:
        return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def test_a_job_that_did_not_allow_it_is_refused_with_how_to_allow_it(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with Launched(tmp_path, "--workers", "1", "--preload", "", "--mode", "live", str(TRAINER), "0.05", "2000") as run:
        run.has_members(1)
        refused = real(env, "chaos", "demo", "--for", "1")
        assert refused.code == 2
        assert "demo does not allow chaos" in refused.err
        assert "pliant run --allow-chaos" in refused.err
        wrong = real(env, "chaos", "demo", "--faults", "kill,melt")
        assert (wrong.code, "Unknown fault 'melt'" in wrong.err) == (2, True)
        assert "chaos" not in real(env, "status", "demo").out
    asleep = real(env, "chaos", "demo", "--for", "1")
    assert (asleep.code, "Job demo is not running" in asleep.err) == (2, True)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ctrl_c_and_kill_9_leave_nobody_stopped(tmp_path: Path) -> None:
    with Launched(tmp_path, *QUICK, "2000") as run:
        run.has_members(3)
        assert "allowed" in real(environment(tmp_path), "status", "demo").out
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            # With this seed the first stop is a long one: it would last for longer than the test waits for its end.
            with chaos(tmp_path, *_args("stop", 0.5, 600, 4)) as one:
                wait_for(lambda: any(map(stopped, workers(run).values())), "a member to be stopped", 60)
                one.process.send_signal(how)
                if how is not signal.SIGKILL:
                    done = one.ended()
                    assert (done.code, done.json["interrupted"]) == (130, True)
                    assert len(done.json["faults"]) >= 1
                    assert not any(map(stopped, workers(run).values()))
                else:
                    one.process.wait()
            wait_for(lambda: not any(map(stopped, workers(run).values())), "all to go on", 60)
        goes_on(run)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_launched_job_is_struck_at_and_what_it_does_is_told(tmp_path: Path) -> None:
    steps = ("--step-s", "0.05", "--steps", "2000", "--checkpoint", str(tmp_path / "steps"))
    trainer = ("--allow-chaos", "--mode", "relaunch", "--preload", "", "-m", "pliant_local.trainer", *steps)
    with Launched(tmp_path, "--nproc-per-node", "2", *trainer) as run:
        run.sees("generation 1 launched")
        wait_for(lambda: all((run.members(live=False) or {"": 0}).values()), "their processes", 60)
        done = struck(tmp_path, *_args("kill,partition", 4, 8, 1))
    assert done.code == 0, done
    found = done.json
    assert found["unavailable"] == ["partition: the job is not live: its workers have not called pliant.join()"]
    assert [each["kind"] for each in found["faults"]] == ["kill"] * len(found["faults"])
    first = found["faults"][0]["outcome"]
    assert first["generation_after"] > first["generation_before"] == 1
    assert (first["next_step_s"] > 0, first["restarts"] >= 2) == (True, True)
    assert "relaunched after" in done.err


# ------------------------------------------------------------------------------------------------ a real training


@pytest.fixture
def train(tmp_path: Path) -> str:
    pytest.importorskip("torch")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def check(found: Any, kinds: set[str]) -> None:
    assert found["ok"], found
    assert found["violations"] == []
    assert set(found["totals"]["by_kind"]) <= kinds
    assert found["totals"]["faults"] == len(found["faults"]) > 0
    assert found["totals"]["rolled_back"] == 0
    assert found["state"] == "running"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_training_goes_on_through_kills_and_cuts(tmp_path: Path, train: str) -> None:
    env = environment(tmp_path)
    with Launched(tmp_path, *PROMISED, train, "100000") as run:
        run.has_members(3)
        all_hold(run, 3)
        goes_on(run)
        done = struck(tmp_path, *_args("kill,coordinator", 2, 6, 5))
        assert done.code == 0, done
        check(done.json, {"kill", "coordinator"})
        killed = [each for each in done.json["faults"] if each["kind"] == "kill"]
        assert killed
        for each in killed:
            assert set(each["victims"]) <= set(each["outcome"]["lost"])
            assert each["outcome"]["generation_after"] > each["outcome"]["generation_before"]
        all_hold(run, 3)
        if why_unavailable(next(iter(workers(run).values()))):
            return
        with chaos(tmp_path, *_args("partition", 2, 4, 52)) as one:
            wait_for(lambda: any(map(filtered, workers(run).values())), "a filter", 60)
            done = one.ended()
        assert done.code == 0, done
        check(done.json, {"partition"})
        assert all("sockets cut" in each["note"] for each in done.json["faults"])
        assert sum(map(filtered, workers(run).values())) == 0
        goes_on(run)
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["lost"], found["repeated"]) == (True, 0, 0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_it_ends_with_the_job(tmp_path: Path) -> None:
    with Launched(tmp_path, *QUICK, "12") as run:
        run.has_members(3)
        done = struck(tmp_path, *_args("slow", 1, 600, 1))
        assert run.ended() == 0
    assert done.code == 0, done
    found = json.loads(done.out)
    assert (found["state"], found["ok"], found["interrupted"]) == ("finished", True, False)
    assert found["lasted_s"] < 100
