"""Jobs that lose every member go on from what they saved, and end as if nothing had happened, to the bit."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from pliant.core.model.view import MemberState
from unit.cli.program import environment, real

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(300)

STEPS = 160
EVERY = 20
HOLD = 140  # bodies of one worker's loop: it has two of a step's four slots
PATIENCE_S = 60.0
SCRIPT = f"""
import hashlib, os, sys, threading
import torch, torch.nn.functional as F
import pliant.torch as pliant

pause = threading.Event()
torch.manual_seed(0)
x = torch.randn({STEPS * 8}, 8)
data = torch.utils.data.TensorDataset(x, (x.sum(1) > 0).long())
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=8, epochs=1, seed=7, slots=4, deterministic=True)
    for count, (a, b) in enumerate(run):
        F.cross_entropy(model(a), b).backward()
        run.step()
        pause.wait(0.02)
        while count > {HOLD} and not os.path.exists(sys.argv[1]):
            pause.wait(0.01)  # for the test to strike: else the job might be over by then
bits = b"".join(each.detach().contiguous().numpy().tobytes() for each in model.state_dict().values())
print("weights", hashlib.sha256(bits).hexdigest(), flush=True)
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def start(home: Path, train: str, keep: int = 2, grace_s: float = 30.0) -> Launched:
    options = ("--mode", "live", "--workers", "2:2", "--checkpoint-every", str(EVERY), "--checkpoint-keep", str(keep))
    return Launched(home, *options, "--grace-s", str(grace_s), train, str(home / "go"), OMP_NUM_THREADS="1")


def go(home: Path) -> None:
    """The training may go on to its end."""
    (home / "go").touch()


def weights(run: Launched) -> set[str]:
    return {line.partition("weights ")[2] for line in run.lines if "] weights" in line}


@pytest.fixture(scope="module")
def undisturbed(train: str, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    home = tmp_path_factory.mktemp("undisturbed")
    go(home)
    with start(home, train) as run:
        assert run.ended() == 0
    assert len(weights(run)) == 1
    return weights(run)


def events(home: Path) -> list[dict[str, Any]]:
    said = real(environment(home), "events", "demo", "--json")
    return [json.loads(line)["event"] for line in said.out.splitlines()]


def published(home: Path) -> list[dict[str, Any]]:
    return [event["checkpoint"] for event in events(home) if event["type"] == "CheckpointPublished"]


def is_draining(run: Launched) -> bool:
    with run.client() as client:
        return all(member.state is MemberState.DRAINING for member in client.job(run.job).members)


def rolled_back(home: Path) -> int:
    """So many steps; nothing else may be amiss."""
    found = real(environment(home), "audit", "demo", "--json").json
    assert (found["ok"], found["lost"], found["repeated"], found["samples"]) == (True, 0, 0, STEPS * 8)
    gone: int = found["rolled_back"]
    return gone


def whole(home: Path, steps: list[int]) -> None:
    """Return what is kept is what lies there: manifests, every byte as it was written, and nothing unfinished."""
    folder = home / "jobs" / "demo" / "checkpoints"
    found = [each for each in folder.iterdir() if each.is_dir()]
    assert sorted(int(each.name.split("-")[1]) for each in found) == steps
    assert all((each / "manifest.json").exists() for each in found)
    assert real(environment(home), "verify", "demo").code == 0


def test_a_job_whose_workers_were_all_killed_goes_on_from_its_newest_checkpoint(
    tmp_path: Path, train: str, undisturbed: set[str]
) -> None:
    with start(tmp_path, train) as run:
        members = run.has_members(2)
        run.sees("checkpoint saved: step 40")
        for pid in members.values():
            kill(pid)
        go(tmp_path)
        assert run.ended() == 0
    bases = [e["world"]["base"]["step"] for e in events(tmp_path) if e["type"] == "WorldFormed"]
    assert any(base and base % EVERY == 0 for base in bases)
    assert rolled_back(tmp_path) <= HOLD // 2 - EVERY
    assert weights(run) == undisturbed
    whole(tmp_path, [STEPS - EVERY, STEPS])


@pytest.mark.long
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, train: str, undisturbed: set[str]
) -> None:
    with start(tmp_path, train) as run:
        members = run.has_members(2)
        run.sees("checkpoint saved: step 60")
        for pid in members.values():  # they stand still while it is done, so that it stays the newest
            os.kill(pid, signal.SIGSTOP)
        newest = published(tmp_path)[-1]
        flip(tmp_path / "jobs" / "demo" / "checkpoints" / newest["name"] / newest["pieces"][0]["file"])
        for pid in members.values():
            kill(pid)
        go(tmp_path)
        assert run.ended() == 0
    [given_up] = [event for event in events(tmp_path) if event["type"] == "CheckpointUnreadable"]
    assert (given_up["name"], given_up["damaged"]) == (newest["name"], True)
    assert rolled_back(tmp_path) >= EVERY
    assert weights(run) == undisturbed
    shutil.rmtree(tmp_path / "jobs" / "demo" / "checkpoints" / newest["name"])  # the damaged one is left to people
    whole(tmp_path, [STEPS - EVERY, STEPS])


def flip(path: Path) -> None:
    """One bit, in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.long
def test_a_job_that_was_killed_with_everything_goes_on_when_it_is_started_again(
    tmp_path: Path, train: str, undisturbed: set[str]
) -> None:
    with start(tmp_path, train, keep=1) as run:
        run.has_members(2)
        run.sees("checkpoint saved: step 40")
        run.signal(signal.SIGKILL)
        run.ended()
    go(tmp_path)
    with start(tmp_path, train, keep=1) as again:
        assert again.ended() == 0
    assert rolled_back(tmp_path) <= HOLD // 2 - EVERY
    assert weights(again) == undisturbed
    whole(tmp_path, [STEPS])


@pytest.mark.long
@pytest.mark.parametrize(("number", "grace_s"), [(signal.SIGINT, 30.0), (signal.SIGTERM, 2.0)])
def test_a_job_that_is_told_to_stop_saves_its_last_step_and_loses_none(
    number: signal.Signals, grace_s: float, tmp_path: Path, train: str, undisturbed: set[str]
) -> None:
    with start(tmp_path, train, grace_s=grace_s) as run:
        run.has_members(2)
        run.sees("checkpoint saved: step 20")
        run.signal(number)
        run.sees(f"{number.name}: draining")
        wait_for(lambda: is_draining(run), "the coordinator to know", PATIENCE_S)
        go(tmp_path)
        assert run.ended() in (0, 128 + number)
    newest = published(tmp_path)[-1]["lineage"]
    done = [event["lines"][-1]["lineage"] for event in events(tmp_path) if event["type"] == "StepsCommitted"]
    assert newest == done[-1]
    if newest["step"] < STEPS:  # else they had all but finished when they heard of it
        with start(tmp_path, train) as run:
            assert run.ended() == 0
    assert rolled_back(tmp_path) == 0
    assert weights(run) == undisturbed
