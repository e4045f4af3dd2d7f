"""The examples as a user runs them: alone, elastically, and the demo with everything it promises."""

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tidy.files import ROOT
from unit.cli.program import environment, real

EXAMPLES = ROOT / "examples"
PLIANT_RUN = ("-P", "-c", "from pliant.cli.main import main; main()", "run")
DIGITS, GPT, DEMO, PLAIN, PLAIN_ELASTIC, DDP, DDP_ELASTIC = (
    str(EXAMPLES / name)
    for name in (
        "digits.py",
        "gpt.py",
        "demo.py",
        "migrate/plain.py",
        "migrate/plain_elastic.py",
        "migrate/ddp.py",
        "migrate/ddp_elastic.py",
    )
)


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python by itself, in a folder of its own."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment(folder / "home", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_digits_are_learnt_alone(tmp_path: Path) -> None:
    done = python(tmp_path, DIGITS)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training alone") == 1
    (accuracy,) = re.findall(r"^accuracy ([\d.]+) on 360 pictures$", done.stdout, re.MULTILINE)
    assert float(accuracy) > 0.95


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_language_model_gets_better_and_says_so_every_epoch(tmp_path: Path) -> None:
    done = python(tmp_path, GPT, "--epochs", "2")
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"validation loss ([\d.]+)", done.stdout)]
    assert len(losses) == 2
    assert losses[1] < losses[0]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_script_before_the_guide_runs_too(tmp_path: Path) -> None:
    done = python(tmp_path, PLAIN)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["saved"]), done.stderr


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_ddp_script_before_the_guide_runs_under_torchrun(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    done = python(tmp_path, *torchrun, DDP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch ") == 4


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", [PLAIN_ELASTIC, DDP_ELASTIC], ids=["plain", "ddp"])
def test_the_script_after_the_guide_runs_alone(tmp_path: Path, script: str) -> None:
    done = python(tmp_path, script)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.pt"))) == 1


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("script", [PLAIN_ELASTIC, DDP_ELASTIC], ids=["plain", "ddp"])
def test_the_script_after_the_guide_runs_with_two_workers(tmp_path: Path, script: str) -> None:
    done = python(tmp_path, *PLIANT_RUN, "--job", "demo", "--workers", "2", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\] (?:saved$|epoch 3)", done.stdout, re.MULTILINE)) == 1, done.stdout
    assert len(list(tmp_path.glob("*.pt"))) == 1
    audit = real(environment(tmp_path / "home"), "audit", "demo", "--json").json
    assert (audit["ok"], audit["samples"], audit["lost"], audit["repeated"]) == (True, 8000, 0, 0)


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("outcome")


def told(outcome: Any, **other: Any) -> Any:
    """A demo in which all went well, but for what is said: a goes on while b leaves."""
    change = outcome.Change("b leaves", ("a", "b"), ("a",), (1.5, 3.5), range(2, 4))
    facts = {
        "status": 0,
        "audit": {"ok": True, "lost": 0, "repeated": 0, "steps": 4},
        "steps": 4,
        "accuracy": 0.99,
        "hashes": ("2a", "2a"),
        "changes": [change],
        "pids": {"a": 1, "b": 2},
        "applied": {1: [(1, 1.0), (2, 2.0), (3, 4.0), (4, 4.1)], 2: [(1, 1.0), (2, 2.0)]},
    }
    return outcome.Outcome(**{**facts, **other})


def test_a_demo_that_went_well_has_nothing_broken(outcome: Any) -> None:
    assert told(outcome).broken() == []


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"status": 1}, "status 1"),
        ({"audit": {"ok": False, "lost": 0, "repeated": 0, "steps": 4}}, "audit"),
        ({"audit": {"ok": True, "lost": 1, "repeated": 0, "steps": 4}}, "audit"),
        ({"audit": {"ok": True, "lost": 0, "repeated": 0, "steps": 3}}, "audit"),
        ({"accuracy": 0.5}, "accuracy"),
        ({"hashes": ("2a", "2b")}, "other bits"),
        ({"hashes": ("", "")}, "other bits"),
        ({"applied": {1: [(1, 1.0), (2, 2.0), (3, 4.0), (3, 4.1)]}}, "process 1"),
        ({"applied": {1: [(2, 2.0), (3, 4.0)], 2: [(1, 1.0), (3, 2.0)]}}, "process 2"),
        ({"applied": {1: [(1, 1.0), (2, 2.0)], 2: [(3, 3.0)]}}, "a did not train in one process while b leaves"),
    ],
)
def test_a_broken_promise_is_found(outcome: Any, other: dict[str, Any], word: str) -> None:
    (found,) = told(outcome, **other).broken()
    assert word in found


def test_a_pause_is_the_longest_time_between_two_steps_of_a_worker(outcome: Any) -> None:
    ((change, usual, longest),) = told(outcome).pauses()
    assert (change.name, usual, longest) == ("b leaves", 1.0, 2.0)
