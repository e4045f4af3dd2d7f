import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pliant.chaos.fault_kinds import FaultKind
from pliant.cli.main import cli
from pliant_sim import command as program
from pliant_sim.exhaustive.explore import Bounds, Exploration
from pliant_sim.faults.schedule import LIVE, ScheduledFault
from pliant_sim.run import Batch, Result


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["sim", *args])
    return result.exit_code, result.stdout


def test_many_seeds_are_counted_in_one_object() -> None:
    code, out = run("--seeds", "3", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["seeds"] == 3
    assert report["violations"] == 0
    assert report["failures"] == []
    assert report["events"] > report["events_median"] > 0
    assert report["generations"] > report["generations_median"] > 0
    assert report["schedules_per_cpu_minute"] > 0
    assert set(report["faults"]) <= set(LIVE)
    assert report["faults"][FaultKind.KILL] > 0
    assert 0 < report["seeds_struck"][FaultKind.KILL] <= 1
    assert len(report["trace_hash"]) == 64


def test_the_same_seeds_give_the_same_hash_and_others_another() -> None:
    hashes = [json.loads(run("--seeds", "2", "--first", first, "--json")[1])["trace_hash"] for first in "114"]
    assert hashes[0] == hashes[1] != hashes[2]


def test_the_table_names_faults_and_figures() -> None:
    code, out = run("--seeds", "1", "--first", "2")
    assert code == 0
    assert FaultKind.KILL in out
    assert "0 violations" in out
    assert "schedules a CPU-minute" in out


def test_one_seed_is_told_as_a_story() -> None:
    code, out = run("--seed", "3")
    assert code == 0
    assert "the faults are over" in out
    assert "seed 3: 0 violations" in out
    report = json.loads(run("--seed", "3", "--json")[1])
    assert (report["seeds"], report["violations"]) == (1, 0)
    assert any("FAULT" in line for line in report["story"])


def test_schedules_of_launches_are_counted_and_told() -> None:
    report = json.loads(run("--launches", "--seeds", "2", "--json")[1])
    assert (report["seeds"], report["violations"]) == (2, 0)
    code, out = run("--launches", "--seed", "3")
    assert (code, "generation 1 launched" in out) == (0, True)
    assert run("--launches", "--exhaustive")[0] == 2


def test_schedules_of_task_queues_are_counted_and_told() -> None:
    report = json.loads(run("--tasks", "--seeds", "2", "--json")[1])
    assert (report["seeds"], report["violations"]) == (2, 0)
    code, out = run("--tasks", "--seed", "5")
    assert (code, "joined the task queue" in out) == (0, True)
    assert run("--tasks", "--launches")[0] == 2
    assert run("--tasks", "--seed", "5", "--detail")[0] == 2


def test_a_violation_is_told_with_the_command_that_shrinks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Result(7, ("3.1 s: P2: gone",), 10, 2, 1, {FaultKind.KILL: 1}, 9)
    batch = Batch(7, (failed,), 1.0)
    monkeypatch.setattr(program, "_batches", lambda first, seeds, kind: iter([batch]))
    assert "pliant sim --launches --seed 7 --shrink" in run("--launches", "--seeds", "1")[1]
    code, out = run("--seeds", "1")
    assert code == 1
    assert "seed 7: 3.1 s: P2: gone" in out
    assert "pliant sim --seed 7 --shrink" in out
    code, out = run("--seeds", "1", "--json")
    assert code == 1
    assert json.loads(out)["failures"] == [{"seed": 7, "what": "3.1 s: P2: gone"}]


def test_a_failing_seed_is_shrunk_before_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    guilty = (ScheduledFault(2.0, FaultKind.KILL, 1),)

    def fails(
        seed: int,
        faults: tuple[ScheduledFault, ...] | None = None,
        story: list[str] | None = None,
        detail: bool = False,
    ) -> Result:
        assert faults in (None, guilty)
        return Result(seed, ("1.0 s: P1: restarted",), 10, 2, 1, {}, 9)

    monkeypatch.setattr("pliant_sim.run.run_seed", fails)
    monkeypatch.setattr("pliant_sim.run.shrink", lambda seed, kind: guilty)
    monkeypatch.setattr("pliant_sim.run.run_launches", fails)
    assert CliRunner().invoke(cli, ["sim", "--launches", "--seed", "5", "--shrink"]).exit_code == 1
    result = CliRunner().invoke(cli, ["sim", "--seed", "5", "--shrink"])
    assert result.exit_code == 1
    assert "1 faults are enough to make seed 5 fail." in result.stderr
    assert "1.0 s: P1: restarted" in result.stdout


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [("", 0, "12 states (all) within"), ("stuck: the job is waiting", 1, "stuck: the job is waiting\n  m0 is told")],
)
def test_the_exploration_says_what_it_saw(monkeypatch: pytest.MonkeyPatch, wrong: str, code: int, said: str) -> None:
    found = Exploration(Bounds(), 12, True, wrong, ("m0 is told",) if wrong else ())
    monkeypatch.setattr("pliant_sim.exhaustive.explore.explore", lambda bounds: found)
    assert run("--exhaustive")[0] == code
    assert said in run("--exhaustive")[1]
    report = json.loads(run("--exhaustive", "--json")[1])
    assert (report["ok"], report["states"], report["complete"]) == (not wrong, 12, True)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--seeds", "1", "--seed", "1"], "Choose one of --seeds, --seed and --exhaustive."),
        (["--seeds", "1", "--exhaustive"], "Choose one of --seeds, --seed and --exhaustive."),
        (["--detail"], "--detail and --shrink need --seed."),
        (["--seeds", "2", "--shrink"], "--detail and --shrink need --seed."),
        (["--seeds", "0"], "0 is not in the range"),
    ],
)
def test_options_that_make_no_sense_together_are_refused(args: list[str], why: str) -> None:
    result = CliRunner().invoke(cli, ["sim", *args])
    assert result.exit_code == 2
    assert why in result.stderr


def test_ctrl_c_ends_it_and_leaves_no_process_behind() -> None:
    pliant = Path(sys.executable).with_name("pliant")
    command = [str(pliant), "sim", "--seeds", "100000", "--json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text().split():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        process.communicate()
    assert process.returncode != 0
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
