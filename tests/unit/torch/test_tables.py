"""Tables in live training, of a script that trains alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.errors import BadInput
from pliant.ps import SGD, Adagrad, Table
from pliant.torch.tables import ServerEmbedding, push_gradients

ROWS = Table("rows", 4, Adagrad(0.5), scale=0.1)
COUNTS = Table("counts", 1, SGD(1.0), scale=0.0)


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "PLIANT_CHECKPOINT_DIR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def records(count: int = 20) -> TensorDataset:
    numbers = torch.arange(count)
    return TensorDataset(numbers, (numbers % 3 == 0).float())


def start(job: pliant.TrainingJob, **more: Any) -> pliant.Run:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = {"batch_size": 8, "slots": 4, "tables": [ROWS, COUNTS], **more}
    return job.train(model, optimizer, records(), **wanted)


def ones(ids: torch.Tensor) -> dict[str, Any]:
    """Return the gradient of -1 for each record of an item, as of a mean loss."""
    return {"counts": (ids, np.full((len(ids), 1), -1.0 / len(ids)))}


def counts(run: pliant.Run) -> Any:
    return run.pull("counts", np.arange(20))[:, 0]


def test_each_record_counts_by_its_share_of_the_step() -> None:
    """The last step of the epoch has four records, and the others eight."""
    with pliant.join() as job:
        run = start(job, order="sequential", epochs=2)
        seen = []
        for ids, _ in run:
            before = counts(run)
            run.push(ones(ids))
            run.push({})
            assert (counts(run) == before).all(), "no pull sees a push of its own step"
            if run.step():
                seen.append(counts(run))
    np.testing.assert_allclose(seen[2], [1 / 8] * 16 + [1 / 4] * 4)
    np.testing.assert_allclose(seen[5], 2 * seen[2])


def test_the_slots_change_the_result_by_rounding_alone() -> None:
    found = []
    for slots in (1, 4, 8):
        with pliant.join() as job:
            run = start(job, slots=slots, epochs=4)
            model = nn.Linear(4, 1)
            rows = ServerEmbedding(run, "rows")
            for ids, labels in run:
                with torch.no_grad():
                    model.weight.fill_(1.0)
                    model.bias.fill_(0.0)
                loss = nn.functional.mse_loss(model(rows(ids)).squeeze(1), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                push_gradients(run, rows)
                if run.step() and run.step_number == run.total_steps:
                    found.append(run.pull("rows", np.arange(20)))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-4)


def test_rows_are_pulled_and_pushed_in_the_loop_alone() -> None:
    with pliant.join() as job:
        run = start(job)
        with pytest.raises(BadInput, match=r"outside of an item.*before run\.step"):
            run.push({})
        for ids, _ in run:
            run.push(ones(ids))
            run.step()
        with pytest.raises(BadInput, match="after the loop"):
            counts(run)


def test_a_weight_of_its_own_is_refused() -> None:
    with pliant.join() as job:
        run = start(job)
        ids, _ = next(run)
        run.backward(nn.Linear(1, 1)(ids.float().unsqueeze(1)).mean(), weight=7)
        with pytest.raises(BadInput, match="An item of 2 samples has the weight 7"):
            run.step()
        job.on_leave(lambda: None)


def test_a_run_without_tables_says_so() -> None:
    with pliant.join() as job:
        run = start(job, tables=())
        with pytest.raises(BadInput, match=r"no tables.*Pass tables="):
            run.pull("rows", [1])
        for _ in run:
            run.step()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"slots": None}, r"needs slots=.*got None"),
        ({"slots": 5000, "batch_size": 9000}, "got 5000"),
        ({"deterministic": True}, r"deterministic=True and tables= cannot be combined"),
        ({"nonfinite": "skip"}, r'nonfinite="skip" and tables= cannot be combined'),
        ({"scaler": torch.amp.GradScaler("cpu")}, r"scaler= and tables= cannot be combined"),
        ({"state": {"batch": pliant.BatchSize()}}, r"BatchSize and tables= cannot be combined"),
        ({"tables": [ROWS, ROWS]}, "different names"),
    ],
)
def test_settings_that_tables_exclude_are_refused(given: dict[str, Any], text: str) -> None:
    with pliant.join() as job, pytest.raises(BadInput, match=text):
        start(job, **given)


def test_a_script_alone_does_not_save_without_its_tables(tmp_path: Path) -> None:
    with pliant.join() as job, pytest.raises(BadInput, match=r"A checkpoint of a script alone and tables="):
        start(job, checkpoint_dir=tmp_path)
