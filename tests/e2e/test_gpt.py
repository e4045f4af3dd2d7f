"""The researcher's script (examples/gpt.py): alone, and on two workers through everything that happens in practice."""

import csv
import re
import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from e2e.test_examples import GPT, python
from e2e.test_run_live import goes_on, step
from pliant.core.messages import Drain, Resize
from pliant.core.model.job import Target
from pliant.core.model.names import MemberId
from unit.cli.program import environment, real

pytest.importorskip("torch")


def logged(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def steps(rows: list[dict[str, str]]) -> list[int]:
    return [int(row["step"]) for row in rows]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_alone_it_logs_every_step_and_stops_early(tmp_path: Path) -> None:
    done = python(tmp_path, GPT, "--epochs", "9", "--patience", "0", "--log", "runs")
    assert done.returncode == 0, done.stderr
    rows = logged(tmp_path / "runs")
    assert len(re.findall(r"validation loss [\d.]+", done.stdout)) == 1  # without patience it stops after an epoch
    assert steps(rows) == list(range(1, 8 + 1))
    assert "8/72 [" in done.stderr  # the progress bar
    assert [bool(row["validation"]) for row in rows] == [int(row["step"]) % 8 == 0 for row in rows]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_on_two_workers_through_resize_kill_drain_and_resume(tmp_path: Path) -> None:
    env, runs = environment(tmp_path), tmp_path / "runs"
    words = ("--workers", "1:3", "--target", "2")
    script = (GPT, "--epochs", "40", "--patience", "40", "--log", str(runs))
    with Launched(tmp_path, *words, *script, OMP_NUM_THREADS="1") as run:
        run.has_members(2)
        goes_on(run)
        with run.client() as client:
            client.send("demo", Resize(Target(3)))
        members = run.has_members(3)
        goes_on(run)
        with run.client() as client:
            zero = next(line.id for line in client.job("demo").members if line.rank == 0)
        kill(members[zero])
        wait_for(lambda: len(found := run.members()) == 3 and zero not in found, "its replacement", 120)
        goes_on(run)
        leaver = max(run.members())
        with run.client() as client:
            client.send("demo", Drain(MemberId(leaver), 30.0, "a test"))
        wait_for(lambda: leaver not in run.members(), "its leave", 120)
        goes_on(run)
        before = step(run)
        run.signal(signal.SIGINT)
        assert run.ended() == 130, run.output
    rows = logged(runs)
    assert steps(rows) == list(range(1, len(rows) + 1))
    assert len(rows) >= before

    with Launched(tmp_path, *words, "--override", *script, "--lr", "0.004", OMP_NUM_THREADS="1") as run:
        assert run.ended(500.0) == 0, run.output  # 300 steps
    rows, was = logged(runs), len(rows)
    assert steps(rows) == list(range(1, 8 * 40 + 1))
    rates = [float(row["lr"]) for row in rows]
    assert max(rates[:was]) > 0.004 >= max(rates[was:])
    audit = real(env, "audit", "demo", "--json").json
    assert (audit["ok"], audit["samples"], audit["lost"], audit["repeated"]) == (True, 40 * 1024, 0, 0)
