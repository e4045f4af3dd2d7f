"""The GAN example: optimizers that take turns keep every promise through a kill."""

import re
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from e2e.test_examples import EXAMPLES, python
from e2e.test_run_live import step
from unit.cli.program import environment, real

pytest.importorskip("torch")

GAN = str(EXAMPLES / "gan.py")
ARGUMENTS = ("--epochs", "12", "--samples", "1000", "--deterministic")  # the last batch of an epoch is short


def radius(output: str) -> str:
    (found,) = re.findall(r"generated points: ([\d.]+)", output)
    return str(found)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_turns_come_to_the_same_bits_alone_and_on_two_workers_through_a_kill(tmp_path: Path) -> None:
    alone = python(tmp_path, GAN, *ARGUMENTS)
    assert alone.returncode == 0, alone.stderr
    folder = tmp_path / "steps"
    folder.mkdir()
    (folder / "slow").write_text("0.05")  # until the kill: the job must not end before it
    words = ("--workers", "1:2", "--target", "2", str(EXAMPLES / "stretched.py"), str(folder), "384", GAN, *ARGUMENTS)
    with Launched(tmp_path, *words, OMP_NUM_THREADS="1") as run:
        members = run.has_members(2)
        wait_for(lambda: step(run) > 9, "some steps", 60)
        kill(members[min(members)])
        (folder / "slow").unlink()
        assert run.ended() == 0, run.output
    assert radius(run.output) == radius(alone.stdout)
    audit = real(environment(tmp_path), "audit", "demo", "--json").json
    assert (audit["ok"], audit["lost"], audit["repeated"]) == (True, 0, 0)
    assert (audit["samples"], audit["steps"]) == (2 * 12 * 1000, 2 * 12 * 16)
