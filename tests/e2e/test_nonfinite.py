"""A gradient that is not finite ends a job of several workers at once, with the same step on all of them."""

import re
from pathlib import Path

import pytest

from e2e.launched import Launched

pytest.importorskip("torch")

SCRIPT = """
import torch
import pliant.torch as pliant

model = torch.nn.Linear(4, 1)
with pliant.join() as job:
    run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(64, 4), batch_size=8)
    for x in run:
        loss = model(x).mean()
        run.backward(loss * float("nan") if run.step_number == 5 else loss)
        run.step()
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_all_workers_stop_before_the_step_and_the_job_fails_at_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Launched(tmp_path, "--workers", "2", str(script), OMP_NUM_THREADS="1") as run:
        assert run.ended() == 1, run.output
    assert "The gradient of step 5 is not finite (first in weight), so the step was not applied." in run.output
    assert "the job failed: step 5 raised on" in run.output
    assert len(re.findall(r"^\[pliant\] \S+ joined$", run.output, re.MULTILINE)) == 2  # no worker was replaced
    assert "in can_step" not in run.output  # the traceback ends at the script's line
