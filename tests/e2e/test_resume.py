"""Starting a live job again: what is announced, what may change, and whose hyperparameters are used."""

import re
import signal
from pathlib import Path

import pytest

from e2e.launched import Calm, Launched
from e2e.running import wait_for
from pliant.errors import PliantError
from unit.cli.program import environment, real

pytest.importorskip("torch")

SCRIPT = """
import argparse, time
import torch, torch.nn.functional as F
import pliant.torch as pliant

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--epochs", type=int, default=100000)
parser.add_argument("--batch", type=int, default=32)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=args.batch, epochs=args.epochs, state={"scheduler": scheduler})
    shown = False
    for a, b in run:
        F.cross_entropy(model(a), b).backward()
        run.step()
        scheduler.step()
        if not shown:
            print(f"rate {scheduler.get_last_lr()[0]:g} {optimizer.param_groups[0]['lr']:g}", flush=True)
            shown = True
        time.sleep(0.002)
"""


def step(run: Launched) -> int:
    try:
        with run.client() as client:
            return client.job(run.job).job.step
    except (OSError, PliantError):
        return -1


def interrupt(run: Launched, workers: int) -> set[str]:
    """Let it train a little, then press Ctrl-C. Return the rates that its workers printed."""
    run.has_members(workers)
    run.sees("rate ", workers)
    before = step(run)
    wait_for(lambda: step(run) > before or run.process.poll() is not None, "another step", 60)
    run.signal(signal.SIGINT)
    assert run.ended() == 130
    return {line.partition("rate ")[2] for line in run.lines if "] rate" in line}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_is_continued_with_another_rate_and_another_length(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with Launched(tmp_path, "--workers", "1", str(script), "--lr", "0.1") as run:
        assert interrupt(run, 1) == {"0.05 0.05"}
    with Launched(tmp_path, "--workers", "2", str(script), "--lr", "0.5") as run:
        assert interrupt(run, 2) == {"0.05 0.05"}
    assert "[pliant] settings changed: --workers 1:1 -> 2:2" in run.lines
    assert "[pliant] different from the last start: --lr 0.1 -> 0.5" in run.lines
    assert re.search(r"\[pliant\] demo continues after step \d+ of 200000 \(checkpoint, saved \d+ s ago\)", run.output)
    unused = "lr is 0.5 in the script and 0.1 in the checkpoint: the checkpoint's is used; pliant run --override uses"
    assert run.output.count(unused) == 1
    with Launched(tmp_path, "--workers", "2", "--override", str(script), "--lr", "0.5", "--epochs", "100001") as run:
        assert interrupt(run, 2) == {"0.25 0.25"}
    used = "lr is 0.5 in the script and 0.1 in the checkpoint: the script's is used"
    assert run.output.count(used) == 1
    with Launched(tmp_path, "--workers", "1", str(script), "--lr", "0.5", "--epochs", "100001") as run:
        assert interrupt(run, 1) == {"0.25 0.25"}
    assert "in the checkpoint" not in run.output
    refused = real(environment(tmp_path), "run", "--job", "demo", "--workers", "1", str(script), "--batch", "16")
    assert refused.code == 1
    said = refused.out + refused.err
    assert "with batch_size 16 where the job has 32" in said
    assert "pass the job's value, or train under another name with --job" in said


LENGTH = """
import argparse
import torch, torch.nn.functional as F
import pliant.torch as pliant

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=16, epochs=args.epochs)
    for a, b in run:
        F.cross_entropy(model(a), b).backward()
        print("step", run.step_number, flush=True)
        run.step()
print("weights", model.weight.detach().double().sum().item(), flush=True)
"""


def trained(run: Launched) -> list[int]:
    return sorted({int(line.rpartition(" ")[2]) for line in run.lines if re.search(r"\] step \d+$", line)})


def weights(run: Launched) -> set[str]:
    return {line.rpartition("weights ")[2] for line in run.lines if "] weights " in line}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_finished_job_trains_longer_and_is_left_alone_if_it_is_as_long_as_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LENGTH)

    def start(home: Path, epochs: int) -> Launched:
        with Calm(home, "--workers", "2", str(script), "--epochs", str(epochs)) as run:
            assert run.ended() == 0, run.output
        return run

    first = start(tmp_path, 2)
    assert trained(first) == list(range(1, 9))

    same = start(tmp_path, 2)
    said = "all 8 steps were committed before; pass more epochs or max_steps to train longer, or --fresh to start over"
    assert f"[pliant] the job is finished: {said}" in same.lines
    assert (trained(same), weights(same)) == ([], weights(first))

    longer = start(tmp_path, 3)
    assert "[pliant] different from the last start: --epochs 2 -> 3" in longer.lines
    known = r"\[pliant\] demo had finished at step 8; it continues after step 8 \(checkpoint, saved \d+ s ago\)"
    assert re.search(rf"{known} if its script asks for more steps", longer.output)
    assert "[pliant] training resumes at step 8 of 12 with 2 workers" in longer.lines
    assert trained(longer) == list(range(9, 13))
    assert weights(longer) == weights(start(tmp_path / "other", 3))

    env = environment(tmp_path)
    found = real(env, "status", "demo", "--json").json
    assert [found[key] for key in ("state", "step", "total_steps", "attempt")] == ["finished", 12, 12, 3]
    audit = real(env, "audit", "demo", "--json")
    assert (audit.code, audit.json["ok"], audit.json["samples"], audit.json["steps"]) == (0, True, 192, 12)
