import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.names import MemberId
from unit.cli.commands.test_jobs import peopled
from unit.cli.program import PLIANT, Done, Running, invoke, until
from unit.cli.test_local_jobs import running_job, stopped_job
from unit.core.build import lines

Pliant = Callable[..., Done]


def finish(running: Running, job: str) -> None:
    """Report all steps of a job that `peopled` made."""
    both = frozenset({MemberId("gpu-1.1"), MemberId("gpu-1.2")})
    with running.client() as client:
        rest = lines(lines(GENESIS, 1, 2)[-1].lineage, 1, 10)
        client.send(job, m.Report(MemberId("gpu-1.1"), 0, 1, rest, both))


class Waiting:
    """A `pliant` command in the background, whose output is read while it runs."""

    def __init__(self, running: Running, folder: Path, *args: str) -> None:
        self.out, self.err = folder / "out", folder / "err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen([PLIANT, *args], stdout=out, stderr=err, env=running.env())


def test_waiting_ends_with_the_job_and_its_exit_status_is_how_the_job_ended(
    running: Running, pliant: Pliant, tmp_path: Path
) -> None:
    peopled(running, "good")
    waiting = Waiting(running, tmp_path, "wait", "good")
    until(lambda: "step 2 of 12" in waiting.err.read_text(), "the progress")
    assert "good: running since " in waiting.err.read_text()
    finish(running, "good")
    assert waiting.process.wait(30) == 0
    assert waiting.out.read_text().startswith("good: finished at ")
    peopled(running, "bad")
    assert pliant("wait", "bad", "--timeout-s", "0").code == 124
    pliant("cancel", "bad", "--why", "enough")
    done = pliant("wait", "bad", "--json")
    assert (done.code, done.json["state"], done.json["timed_out"]) == (1, "cancelled", False)
    assert pliant("wait", "goood").code == 3


def test_a_watched_status_is_printed_at_every_change_until_the_job_ends(
    running: Running, pliant: Pliant, tmp_path: Path
) -> None:
    peopled(running, "seen")
    watching = Waiting(running, tmp_path, "status", "seen", "--watch")
    until(lambda: "2 of 12, epoch 0" in watching.out.read_text(), "the first status")
    finish(running, "seen")
    assert watching.process.wait(30) == 0
    first, *_, last = watching.out.read_text().split("seen  ")[1:]
    assert "running since" in first
    assert "finished at" in last


def test_a_job_that_no_process_runs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PLIANT_COORDINATOR", raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path))
    stopped_job(tmp_path, "digits")
    done = invoke("wait", "digits")
    assert (done.code, done.out) == (
        3,
        "digits: stopped at step 0; resume it with the same `pliant run` command\n",
    )
    assert invoke("status", "digits").out.startswith("digits      stopped at step 0; resume it")
    with running_job(tmp_path, "busy"):
        assert invoke("wait", "busy", "--timeout-s", "0.1").code == 124


def test_the_members_of_an_ended_job_are_shown_as_ended_without_processes(running: Running, pliant: Pliant) -> None:
    peopled(running, "over")
    finish(running, "over")
    assert {(line["state"], line["pid"]) for line in pliant("status", "over", "--json").json["members"]} == {
        ("ended", None)
    }
    shown = pliant("status", "over").out
    assert re.match(r"over +finished at \d\d:\d\d: all 12 steps", shown)
    assert "gpu-1.1  ended  0     gpu-1  -" in shown
