"""A short version of `make chaos-flips`, and a step of what it trained computed again."""

import json
import subprocess
from pathlib import Path

import pytest

from flips.cases import weights_each_step
from flips.story import SCRIPT, Plan, alone
from unit.cli.program import PLIANT, environment

STEPS = (24, 47)  # before and after the flip


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job in which one member's weights were spoilt, and which came to its end all the same."""
    base = tmp_path_factory.mktemp("flips")
    (sha,) = alone(Plan(), base / "alone").shas
    said, broken = weights_each_step(base / "spoilt", sha)
    assert not broken, said
    return base / "spoilt"


@pytest.mark.long
@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_a_crowd_is_computed_again_by_one_worker(spoilt: Path, step: int) -> None:
    known = environment(spoilt / "home", **Plan(verify=1).environment(spoilt))
    command = [PLIANT, "replay", "--json", "--to", str(step), "flips", str(SCRIPT)]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["same"] is True
    assert said["hash"] == said["recorded"]


@pytest.mark.long
def test_a_script_with_other_settings_is_not_taken_for_the_job(spoilt: Path) -> None:
    known = environment(spoilt / "home", **Plan(epochs=7, verify=1).environment(spoilt))
    command = [PLIANT, "replay", "--to", "1", "flips", str(SCRIPT)]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "epochs 7 where the job has 6" in done.stderr
