"""A live job with parameter servers: workers and servers that are killed and added, and a job that is started again."""

import re
import signal
from pathlib import Path

import numpy as np
import pytest

from e2e.launched import Launched, kill
from e2e.running import wait_for
from e2e.test_parameter_servers import has_two_copies, processes
from pliant.core.messages import Resize
from pliant.core.model.job import Target
from pliant.errors import PliantError
from pliant.ps.saving import SavedTables, newest_set
from unit.cli.program import environment, real

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "deep_fm.py"
RECORDS, BATCH, STEPS = 512, 32, 16  # steps of an epoch

# A table counts how often each record was pushed, and another one is trained. The job ends once `hold` is gone.
SCRIPT = """
import hashlib, os, sys
import torch
import torch.nn.functional as F
import pliant.torch as pliant
from pliant.ps import SGD, Adagrad, Table
from pliant.torch.tables import ServerEmbedding, push_gradients

hold, out = sys.argv[1:3]
torch.manual_seed(0)
numbers = torch.arange(512)
data = torch.utils.data.TensorDataset(numbers, (numbers % 7 < 3).float())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
tables = [Table("counts", 1, SGD(1.0), scale=0.0), Table("rows", 4, Adagrad(0.1), scale=0.1)]
with pliant.join() as job:
    run = job.train(model, optimizer, data, batch_size=32, epochs=100_000, slots=4, verify=1, tables=tables)
    rows = ServerEmbedding(run, "rows")
    for ids, labels in run:
        loss = F.binary_cross_entropy_with_logits(model(rows(ids)).squeeze(1), labels)
        loss.backward()
        push_gradients(run, rows)
        run.push({"counts": (ids, torch.full((len(ids), 1), -1.0 / len(ids)))})
        run.log(loss=loss)
        if run.step():
            if run.step_number in (1, 16) or not os.path.exists(hold):
                print(f"loss at {run.step_number} is {run.metrics['loss']:.4f}", flush=True)
            if run.step_number % 16 == 0 and not os.path.exists(hold):
                run.finish("it was let go")
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
with open(os.path.join(out, f"{job.member}.end"), "w") as file:
    file.write(f"{run.step_number} {digest}")
"""


def step(run: Launched) -> int:
    try:
        with run.client() as client:
            return client.job(run.job).durable.step
    except (OSError, PliantError):
        return -1


def goes_on(run: Launched) -> None:
    before = step(run)
    wait_for(lambda: step(run) > before >= 0 or run.process.poll() is not None, "another durable step", 120)
    assert run.process.poll() is None


def workers(run: Launched, count: int) -> dict[str, int]:
    """Wait until so many workers are in the world."""

    def size() -> int:
        with run.client() as client:
            return client.job(run.job).job.size

    wait_for(lambda: len(processes(run, servers=False)) == count and size() == count, f"{count} workers", 120)
    return processes(run, servers=False)


def require_counts(run: Launched, epochs: int) -> None:
    """Require that the gradients of each record are in the table once for each epoch, and in one step of the ledger."""
    where = str(run.folder / "checkpoints")
    saved = SavedTables(where, newest_set(where))
    np.testing.assert_array_equal(saved.pull("counts", np.arange(RECORDS))[:, 0] * BATCH, epochs)
    found = real(environment(run.home), "audit", "demo", "--json").json
    assert (found["ok"], found["lost"], found["repeated"]) == (True, 0, 0)


def ends(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.glob("*.end")}


@pytest.fixture
def hold(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hold").touch()
    return tmp_path / "hold"


@pytest.mark.long
@pytest.mark.timeout(500)
def test_each_record_counts_once_through_kills_of_workers_and_servers_and_a_join(tmp_path: Path, hold: Path) -> None:
    arguments = ("--workers", "1:3", "--target", "2", "--ps", "2", "--mode", "live", "--checkpoint-every", "1s")
    script = (str(tmp_path / "train.py"), str(hold), str(tmp_path))
    with Launched(tmp_path, *arguments, *script, OMP_NUM_THREADS="1") as run:
        workers(run, 2)
        wait_for(lambda: has_two_copies(run), "two copies of every bucket", 120)
        goes_on(run)
        for servers in (True, False):
            victim, pid = sorted(processes(run, servers=servers).items())[0]
            kill(pid)
            wait_for(lambda: victim not in run.members(), "the loss", 120)  # noqa: B023
            wait_for(lambda: len(processes(run, servers=servers)) == 2, "its replacement", 120)  # noqa: B023
            wait_for(lambda: has_two_copies(run), "two copies of every bucket again", 120)
            workers(run, 2)
            goes_on(run)
        with run.client() as client:
            client.send("demo", Resize(Target(3)))
        workers(run, 3)
        goes_on(run)
        hold.unlink()
        assert run.process.wait(200) == 0
    ((last, _),) = [text.split() for text in ends(tmp_path)]
    assert len([*tmp_path.glob("*.end")]) == 3
    assert int(last) % STEPS == 0
    require_counts(run, int(last) // STEPS)
    losses = [float(loss) for loss in re.findall(r"loss at \d+ is ([\d.]+)", run.output)]
    assert losses[-1] < losses[0] / 2, "it learns"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_job_that_is_stopped_goes_on_with_its_state_and_its_tables(tmp_path: Path, hold: Path) -> None:
    arguments = ("--workers", "2", "--ps", "2", "--mode", "live")
    script = (str(tmp_path / "train.py"), str(hold), str(tmp_path))
    with Launched(tmp_path, *arguments, *script, OMP_NUM_THREADS="1") as run:
        workers(run, 2)
        goes_on(run)
        run.signal(signal.SIGINT)
        assert run.process.wait(100) == 128 + signal.SIGINT
    hold.unlink()
    with Launched(tmp_path, *arguments, *script, OMP_NUM_THREADS="1") as run:
        assert run.process.wait(200) == 0
    ((last, _),) = [text.split() for text in ends(tmp_path)]
    require_counts(run, int(last) // STEPS)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_steps_that_are_computed_again_after_the_loss_of_all_workers_count_once(tmp_path: Path, hold: Path) -> None:
    arguments = ("--workers", "2", "--ps", "2", "--mode", "live", "--checkpoint-every", "1s", "--max-restarts", "9")
    script = (str(tmp_path / "train.py"), str(hold), str(tmp_path))
    with Launched(tmp_path, *arguments, *script, OMP_NUM_THREADS="1") as run:
        before = workers(run, 2)
        wait_for(lambda: "checkpoint" in run.output, "a checkpoint", 120)
        goes_on(run)
        for pid in before.values():
            kill(pid)
        wait_for(lambda: not before.keys() & run.members().keys(), "the losses", 120)
        workers(run, 2)
        goes_on(run)
        hold.unlink()
        assert run.process.wait(200) == 0
    ((last, _),) = [text.split() for text in ends(tmp_path)]
    require_counts(run, int(last) // STEPS)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_example_learns(tmp_path: Path) -> None:
    arguments = ("--workers", "2", "--ps", "2", "--mode", "live", str(EXAMPLE), "--records", "20000")
    with Launched(tmp_path, *arguments, OMP_NUM_THREADS="1") as run:
        assert run.process.wait(300) == 0
    losses = [float(loss) for loss in re.findall(r"of the test ([\d.]+)", run.output)]
    assert losses[-1] < losses[0]
    assert real(environment(tmp_path), "audit", "demo", "--json").json["ok"]
