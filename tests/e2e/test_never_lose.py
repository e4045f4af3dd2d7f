"""Real workers lose no committed step while a healthy one holds it, and none is restarted for ever."""

import re
import signal
from pathlib import Path

import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from e2e.test_run_live import step
from unit.cli.program import environment, real

pytest.importorskip("torch")

SCRIPT = """
import os, signal, sys, time
import torch
import pliant.torch as pliant

mode, flag = sys.argv[1:3]
if mode == "slow disk":
    fsync = os.fsync
    os.fsync = lambda file: (time.sleep(1.5), fsync(file))
data = torch.utils.data.TensorDataset(torch.randn(64, 4, generator=torch.Generator().manual_seed(0)))
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
with pliant.join() as job:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    epochs = 50 if mode in ("hangs", "raises") else 10000
    run = job.train(model, optimizer, data, batch_size=8, epochs=epochs, stall_s=5.0)
    print("variables", *sorted(os.environ), flush=True)
    for (x,) in run:
        model(x).square().mean().backward()
        if run.step_number >= 10 and (mode == "segv" or run.rank == 1) and mode and not os.path.exists(flag):
            if mode == "segv":
                os.kill(os.getpid(), signal.SIGSEGV)
            if mode == "exits":
                os._exit(0)
            open(flag, "w").close()
            if mode == "raises":
                raise RuntimeError("once")
            while mode == "hangs":
                time.sleep(1)
        run.step()
        time.sleep(0.02)
"""
LOST = re.compile(r"(\d+) steps? (?:is|are) recomputed")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.py"
    path.write_text(SCRIPT)
    return path


def started(home: Path, script: Path, *words: str, mode: str = "") -> Launched:
    """With as few workers as it may have: every loss leaves fewer than the job needs."""
    flags = ("--workers", "2", "--checkpoint-every", "never", "--grace-s", "20", *words)
    return Launched(home, *flags, str(script), mode, str(home / "flag"), OMP_NUM_THREADS="1")


def resumes_at(run: Launched) -> int:
    """The step at which the next start resumes, by the closing line, which must say that nothing is lost."""
    (found,) = re.findall(r"The next start resumes at step (\d+); nothing is lost", run.output)
    return int(found)


@pytest.mark.parametrize("sent", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_while_fewer_workers_are_left_than_the_job_needs_loses_no_step(
    tmp_path: Path, script: Path, sent: signal.Signals
) -> None:
    with started(tmp_path, script) as run:
        members = run.has_members(2)
        wait_for(lambda: step(run) > 20, "some steps", 60)
        before = step(run)
        kill(members[max(members)])
        run.sees("was lost: its process ended with signal 9")
        run.signal(sent)
        assert run.ended() == 128 + sent, run.output
    assert resumes_at(run) >= before
    assert not LOST.search(run.output)


@pytest.mark.long
def test_a_save_on_a_slow_disk_begins_early_enough_after_sigterm(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, script, mode="slow disk") as run:
        run.has_members(2)
        wait_for(lambda: step(run) > 20, "some steps", 60)
        run.signal(signal.SIGTERM)
        assert run.ended() == 143, run.output
    saved = [int(found) for found in re.findall(r"checkpoint saved: step (\d+)", run.output)]
    assert saved == sorted(set(saved))  # at once, and where time allows again, after most of the grace period
    assert resumes_at(run) == saved[-1]


def test_a_cancelled_job_saves_what_its_workers_hold(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, script) as run:
        run.has_members(2)
        wait_for(lambda: step(run) > 20, "some steps", 60)
        before = step(run)
        assert real(environment(tmp_path), "cancel", "demo").code == 0
        assert run.ended() == 1, run.output
    launched = variables(run)
    with started(tmp_path, script) as run:
        run.has_members(2)
        wait_for(lambda: step(run) > before, "more steps", 60)
        run.signal(signal.SIGINT)
        run.ended()
    assert len(launched | variables(run)) == 1  # the same environment, though these workers were not launched
    assert not LOST.search(run.output)
    assert f"demo continues after step {saved_before(tmp_path, before)} of" in run.output


def variables(run: Launched) -> set[str]:
    """The names of the variables that its workers had after `pliant.join()`."""
    return set(re.findall(r"\] variables (.*)", run.output))


def saved_before(home: Path, least: int) -> int:
    """The step of the oldest checkpoint that is kept, which the cancelled job wrote."""
    oldest = min(saved_steps(home))
    assert oldest >= least
    return oldest


def saved_steps(home: Path) -> list[int]:
    return [int(each["step"]) for each in real(environment(home), "checkpoints", "demo", "--json").json["checkpoints"]]


@pytest.mark.long
def test_a_job_that_fails_saves_what_its_healthy_workers_hold(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, script, "--max-restarts", "0", mode="raises") as run:
        assert run.ended() == 1, run.output
    assert "demo failed: it crashed once (--max-restarts 0)" in run.output
    assert saved_steps(tmp_path) == [9]
    with started(tmp_path, script, mode="raises") as run:
        assert run.ended() == 0, run.output
    assert "demo continues after step 9 of" in run.output


def test_a_worker_that_hangs_in_user_code_is_replaced_and_the_job_goes_on(tmp_path: Path, script: Path) -> None:
    with started(tmp_path, script, mode="hangs") as run:
        assert run.ended() == 0, run.output
    assert "the job is finished: all 400 steps are committed" in run.output
    assert not LOST.search(run.output)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        pytest.param(
            "segv",
            r"it crashed 3 times \(--max-restarts 2\); vm-\S+: its process ended with signal 11",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "exits",
            r"\d+ workers ended without a step in between; vm-\S+: its process ended with exit code 0; its script "
            "ended before the job was finished",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_script_whose_workers_always_end_early_is_not_restarted_for_ever(
    tmp_path: Path, script: Path, mode: str, why: str
) -> None:
    with started(tmp_path, script, "--max-restarts", "2", mode=mode) as run:
        assert run.ended() == 1, run.output
    assert re.search(f"demo failed: {why}", run.output), run.output
