"""`pliant train`, `evaluate` and `predict` are `pliant run` with the workers' module as script."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.cli.modules import command
from pliant.cli.run.plan import RunOptions
from unit.cli.program import invoke

SAVED = "tables.0001.00000003.0000000001.0-of-2"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the checks and the runs, which both succeed."""
    found: list[Any] = []

    def check(args: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        found.append(args)
        saved = None if "train" in args else SAVED
        return subprocess.CompletedProcess(args, 0, json.dumps({"records": 9, "saved": saved}).encode())

    def run(options: RunOptions, *_: Any, **__: Any) -> int:
        found.append(options)
        return 0

    monkeypatch.delenv("PLIANT_JOB", raising=False)
    monkeypatch.setattr(subprocess, "run", check)
    monkeypatch.setattr(command, "run_agent", run)
    return found


def test_a_training_is_a_task_queue_with_two_servers_named_after_its_module(started: list[Any], tmp_path: Path) -> None:
    where = ("--model-def", "zoo/wide deep.py", "--data", "a.csv", "--output", str(tmp_path))
    done = invoke("train", *where, "--workers", "1:3", "--epochs", "2", "--validation-data", "b.csv")
    assert done.code == 0
    checked, options = started
    assert checked[1:4] == ["-m", "pliant.model_modules", "train"]
    assert checked[-1] == "--check"
    assert (options.script, options.module, options.mode, options.ps) == ("pliant.model_modules", True, "tasks", 2)
    assert (options.job, options.workers, options.checkpoint_dir) == ("wide-deep", (1, 3), str(tmp_path))
    assert checked[3:-1] == list(options.args)
    assert options.args[options.args.index("--epochs") + 1] == "2"


@pytest.mark.parametrize("finished", [True, False])
def test_the_saved_model_is_named_once_the_job_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    class Agent:
        def __init__(self, *_: Any) -> None:
            self.finished = finished

        def run(self) -> int:
            return 0

    checked = subprocess.CompletedProcess([], 0, json.dumps({"records": 9, "saved": None}).encode())
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PLIANT_JOB", raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: checked)
    monkeypatch.setitem(sys.modules, "pliant.agent.agent", SimpleNamespace(AgentProcess=Agent))
    done = invoke("train", "--model-def", "zoo/ads.py", "--data", "a.csv", "--output", str(tmp_path))
    assert done.code == 0
    assert (f"the model is saved in {tmp_path}/ads: pliant evaluate" in done.out) == finished


def test_an_evaluation_and_a_prediction_keep_to_the_model_that_the_check_found(started: list[Any]) -> None:
    shared = ("--model-def", "zoo.ads", "--data", "a.csv", "--model", "models/ads")
    assert invoke("evaluate", *shared).code == 0
    assert invoke("predict", *shared, "--output", "out", "--job", "mine").code == 0
    evaluation, prediction = started[1], started[3]
    assert (evaluation.job, evaluation.ps, evaluation.checkpoint_dir) == ("ads-evaluate", 0, None)
    assert evaluation.args[-2:] == prediction.args[-2:] == ("--saved", SAVED)
    assert prediction.job == "mine"
    assert prediction.args[prediction.args.index("--output") + 1] == "out"


def test_a_failed_check_starts_nothing_and_gives_its_status(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 2, b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert invoke("train", "--model-def", "a.py", "--data", "d", "--output", "o").code == 2
    assert started == []


@pytest.mark.parametrize(
    ("code", "printed", "why"),
    [
        (-9, b"", "was ended by SIGKILL. If the machine has too little memory"),
        (-40, b"", "was ended by signal 40."),
        (0, b"bye\n3\n", "printed no result"),
    ],
)
def test_a_check_that_ends_without_a_word_is_reported(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, code: int, printed: bytes, why: str
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, printed))
    done = invoke("train", "--model-def", "a.py", "--data", "d", "--output", "o")
    assert (done.code, started) == (1, [])
    assert why in done.err


def test_the_result_of_a_check_is_found_between_other_lines(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = f'from a program\n{{"records": 9, "saved": "{SAVED}"}}\n[1]\nbye\n'.encode()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, printed))
    assert invoke("evaluate", "--model-def", "a.py", "--data", "d", "--model", "m").code == 0
    assert started[0].args[-2:] == ("--saved", SAVED)


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("--ps", "0"), "--ps 0 needs servers on another machine"),
        (("--evaluate-every", "3"), "--evaluate-every needs --validation-data"),
        (("--batch-size", "0"), "0 is not in the range"),
    ],
)
def test_options_that_cannot_work_are_refused(started: list[Any], args: tuple[str, ...], why: str) -> None:
    done = invoke("train", "--model-def", "a.py", "--data", "d", "--output", "o", *args)
    assert (done.code, started) == (2, [])
    assert why in done.err
