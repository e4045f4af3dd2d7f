"""`pliant run --schedule` with real workers: sizes change at their steps, whatever happens in between."""

import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from pliant.errors import PliantError
from pliant.wire.api import JobStatus
from tidy.files import ROOT
from unit.cli.program import environment, real

SCRIPT = """
import sys, threading
from pathlib import Path
import numpy as np
from frames import fake
from pliant.train.live.data.tools import Arrays

chance = np.random.Generator(np.random.PCG64(1))
x = chance.normal(size=(64, 6))
go = Path(sys.argv[1])
with fake.join() as job:
    run = job.train(fake.FakeFrame(6, 0.01, 0), Arrays(x, x[:, 0]), batch_size=8, slots=8, epochs=1000)
    for a, b in run:
        _, grads = run._engine.frame.gradients(a, b)
        if run.step(grads) and not go.exists():
            threading.Event().wait(0.05)
"""


def status(run: Launched) -> JobStatus | None:
    try:
        with run.client() as client:
            return client.job(run.job)
    except (OSError, PliantError):
        return None


def wants(run: Launched, size: int) -> bool:
    found = status(run)
    return found is not None and found.job.target == size


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_size_follows_the_schedule_through_a_killed_coordinator_a_resize_and_a_restart(tmp_path: Path) -> None:
    script, go = tmp_path / "train.py", tmp_path / "go"
    script.write_text(SCRIPT)
    env = environment(tmp_path)
    args = ("--workers", "1:3", "--schedule", "0:1,20:2,3000:1", "--preload", "", str(script), str(go))
    paths = {"PYTHONPATH": str(ROOT / "tests")}
    with Launched(tmp_path, *args, **paths) as run:
        run.sees("target changed to 2 (scheduled from step 20)")
        before = run.has_members(2)
        kill(run.endpoint["pid"])
        run.sees("the coordinator answers again")
        assert wants(run, 2)
        assert run.members() == before
        shown = real(env, "status", "demo").out
        assert "0:1,20:2,3000:1; next: 1 worker from step 3000" in shown
        assert real(env, "resize", "demo", "3").code == 0
        run.has_members(3)
        assert wants(run, 3)
        go.touch()
        run.sees("target changed to 1 (scheduled from step 3000)")
        wait_for(lambda: len(run.members()) == 1, "two workers to leave", 120)
        go.unlink()
        run.signal(signal.SIGINT)
        assert run.ended() == 130
    with Launched(tmp_path, *args, **paths) as again:
        again.has_members(1)
        assert wants(again, 1)
        go.touch()
        assert again.ended() == 0
    found = real(env, "audit", "demo", "--json").json
    assert (found["ok"], found["samples"], found["lost"], found["repeated"]) == (True, 64_000, 0, 0)
