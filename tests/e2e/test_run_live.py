"""`pliant run` with a script as users write it."""

import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, all_gone, family, kill
from e2e.running import wait_for
from pliant.errors import PliantError
from unit.cli.program import environment, real

pytest.importorskip("torch")

SCRIPT = """
import sys
import torch, torch.nn.functional as F
import pliant.torch as pliant

torch.manual_seed(0)
x = torch.randn(512, 8)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=32, epochs=int(sys.argv[1]), seed=7)
    for a, b in run:
        F.cross_entropy(model(a), b).backward()
        run.step()
print("weights", model.weight.sum().item())
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def step(run: Launched) -> int:
    try:
        with run.client() as client:
            return client.job(run.job).job.step
    except (OSError, PliantError):
        return -1


def goes_on(run: Launched) -> None:
    """Wait for some steps more."""
    wait_for(lambda: step(run) >= 0, "an answer", 60)
    before = step(run)
    wait_for(lambda: step(run) > before or run.process.poll() is not None, "another durable step", 60)


@pytest.mark.timeout(300)
def test_a_live_script_survives_a_killed_worker_and_a_killed_coordinator(tmp_path: Path, train: str) -> None:
    env = environment(tmp_path)
    with Launched(tmp_path, "--workers", "1:3", "--target", "2", train, "4000") as run:
        before = run.has_members(2)
        goes_on(run)
        victim, survivor = sorted(before)
        kill(before[victim])
        wait_for(lambda: len(found := run.members()) == 2 and victim not in found, "its replacement", 90)
        goes_on(run)
        kill(run.endpoint["pid"])
        run.sees("the coordinator answers again")
        goes_on(run)
        assert run.members()[survivor] == before[survivor]
        running = real(env, "audit", "demo", "--json").json
        assert (running["ok"], running["lost"], running["repeated"]) == (True, 0, 0)
        started = family(tmp_path)
        run.signal(signal.SIGINT)
        run.sees("SIGINT: the workers save and leave")
        run.signal(signal.SIGINT)
        assert run.ended() == 130
        all_gone(started, tmp_path)
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["lost"], found["repeated"]) == (True, 0, 0)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_live_script_ends_with_the_same_weights_on_every_worker(tmp_path: Path, train: str) -> None:
    with Launched(tmp_path, "--workers", "2", train, "3") as run:
        assert run.ended() == 0
    weights = {line.partition("weights ")[2] for line in run.lines if "] weights" in line}
    assert len(weights) == 1
    audit = real(environment(tmp_path), "audit", "demo", "--json").json
    assert (audit["ok"], audit["samples"], audit["lost"], audit["repeated"]) == (True, 3 * 512, 0, 0)
