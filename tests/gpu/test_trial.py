"""The scripts of `make gpu` on a CPU, with tiny models; and the judgement of `make reconfigure`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu.job import Step, StepFiles, environment
from gpu.reconfigure import ROOM, growth

STEADY = {"descriptors": 20, "sockets": 8, "threads": 9, "rss_mb": 300}


def test_figures_that_come_and_go_have_not_grown() -> None:
    seen = [{name: value + (at % 3) for name, value in STEADY.items()} for at in range(20)]
    assert growth(seen)["grown"] == []


@pytest.mark.parametrize("name", sorted(STEADY))
def test_a_figure_that_grows_a_little_with_each_change_is_found(name: str) -> None:
    each = (ROOM[name] + 2) / 8
    seen = [STEADY | {name: STEADY[name] + int(at * each)} for at in range(20)]
    assert growth(seen)["grown"] == [name]


def test_a_step_that_is_only_half_written_is_read_with_the_next_look(tmp_path: Path) -> None:
    files = StepFiles(tmp_path)
    path = tmp_path / "m1.steps"
    path.write_text("[1.5, 1, 2, 10, 0]\n[2.5, 2")
    assert files.look() == {"m1": [Step(1.5, 1, 2, 10, 0)]}
    with path.open("a") as file:
        file.write(", 2, 10, 0]\n")
    assert files.look() == {"m1": [Step(1.5, 1, 2, 10, 0), Step(2.5, 2, 2, 10, 0)]}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", ["bits", "transfer", "elastic", "overhead"])
def test_every_part_runs_on_a_cpu(part: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "gpu", "--device", "cpu", "--only", part, "--kills", "1", "--model", "10M"]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, line, last = done.stdout.splitlines()
    assert json.loads(line)["part"] == part
    assert json.loads(last)["ok"]
