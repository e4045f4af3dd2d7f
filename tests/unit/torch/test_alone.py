"""A script that trains alone saves, and resumes where it was, as it does under `pliant run`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys
import torch, torch.nn.functional as F
import pliant.torch as pliant

stop, epochs, batch = map(int, sys.argv[1:4])
torch.manual_seed(0)
x = torch.randn(40, 4)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
with pliant.join() as job:
    where = sys.argv[4] if len(sys.argv) > 4 else None
    state = {"scheduler": scheduler}
    run = job.train(model, optimizer, data, batch_size=batch, epochs=epochs, state=state, checkpoint_dir=where)
    for a, b in run:
        F.cross_entropy(model(a), b).backward()
        print("step", run.step_number)
        if run.step_number == stop:
            os.kill(os.getpid(), signal.SIGINT)
        run.step()
        scheduler.step()
print("weights", [p.double().sum().item() for p in model.parameters()], scheduler.get_last_lr())
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def python(script: Path, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PLIANT", "WORLD"))}
    return subprocess.run(
        [sys.executable, str(script), *map(str, words)],
        env={**clean, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def weights(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"^weights .*", done.stdout, re.MULTILINE)
    return str(found)


def steps(done: subprocess.CompletedProcess[str]) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)", done.stdout, re.MULTILINE)]


@pytest.mark.long
def test_ctrl_c_saves_and_the_same_command_comes_to_the_same_weights(script: Path, tmp_path: Path) -> None:
    plain = python(script, 0, 3, 8)
    assert "no checkpoint is written: set PLIANT_CHECKPOINT_DIR" in plain.stderr
    assert steps(plain) == list(range(1, 16))

    saves = tmp_path / "saves"
    stopped = python(script, 7, 3, 8, PLIANT_CHECKPOINT_DIR=str(saves))
    assert stopped.returncode == 130, stopped.stderr
    assert f"saving to {saves} every 10 minutes, on Ctrl-C and at the end" in stopped.stderr
    assert "SIGINT: saving at the end of this step" in stopped.stderr
    assert "weights" not in stopped.stdout
    last = steps(stopped)[-1]
    assert f"step {last} is saved; the same command resumes there" in stopped.stderr

    resumed = python(script, 0, 3, 8, saves)
    assert f"resuming at step {last} from {saves}" in resumed.stderr
    assert steps(resumed) == list(range(last + 1, 16))
    assert weights(resumed) == weights(plain)

    again = python(script, 0, 3, 8, saves)
    assert (steps(again), weights(again)) == ([], weights(plain))

    longer = python(script, 0, 4, 8, saves)
    assert (steps(longer), weights(longer)) == (list(range(16, 21)), weights(python(script, 0, 4, 8)))

    other = python(script, 0, 4, 4, saves)
    assert other.returncode == 1
    assert "batch_size 4" in other.stderr.splitlines()[-1]
