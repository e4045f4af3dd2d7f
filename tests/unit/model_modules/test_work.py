"""The work of one worker without a coordinator, and the check before any worker starts."""

import io
import json
import logging
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.core.model.names import MemberId
from pliant.core.ps.model import BUCKETS
from pliant.core.tasks.model import TaskTerms
from pliant.errors import BadInput
from pliant.model_modules.__main__ import main
from pliant.model_modules.work import LateTables, LoadedWork, WorkLog, WorkOptions, check, evaluate, predict, train
from pliant.ps import PushPolicy
from pliant.ps.access import LocalRows, TableAccess
from pliant.ps.saving import TableSet, TableStorage, newest_set
from pliant.tasks.job import TaskJob
from pliant.tasks.source import LocalQueue
from unit.model_modules.zoo import WHOLE, written

pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("PLIANT_COORDINATOR", raising=False)
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    caplog.set_level(logging.INFO, "pliant")
    logging.getLogger("pliant").propagate = True


def save_line(tmp_path: Path, where: Path, records: int, **functions: str) -> WorkOptions:
    """Train a line on that many records, and save it as two servers save it."""
    options = WorkOptions("train", written(tmp_path, **functions), "1000", batch_size=10)
    work = LoadedWork(options)
    rows = LocalRows(work.tables, PushPolicy())
    work.bind(TableAccess("w", work.tables, PushPolicy(), rows))
    for number in range(0, records, 10):
        work.steps.train(*work.module.labelled(list(range(number, number + 10)), "train"), 10)
    storage = TableStorage(str(where), "line", "me", 2)
    for index, half in enumerate(np.array_split(np.arange(BUCKETS), 2)):
        storage.write(TableSet(1, 3, 1), index, 2, f"ps{index}", rows._here.extract(half))
    return WorkOptions("evaluate", options.model_def, "100", model=str(where), batch_size=7)


@pytest.fixture
def saved(tmp_path: Path) -> WorkOptions:
    return save_line(tmp_path, tmp_path / "model", 1000)


def changed(options: WorkOptions, **fields: Any) -> WorkOptions:
    return WorkOptions(**{name: getattr(options, name) for name in options.__dataclass_fields__} | fields)


def test_training_lowers_the_loss_that_evaluations_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    where = written(tmp_path)
    options = WorkOptions("train", where, "1000", validation_data="50", epochs=2, batch_size=10, records_per_task=100)
    assert check(options) == {"records": 1000, "saved": None}
    train(options)
    losses = [line.rpartition("loss ")[2] for line in caplog.messages if "is done: 50 records" in line]
    assert len(losses) == 2
    assert float(losses[1]) < float(losses[0]) < 1
    assert "trained 2000 records" in caplog.text


def test_a_saved_model_is_evaluated_and_predicts_each_record_once(
    tmp_path: Path, saved: WorkOptions, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = "def eval_metrics_fn():\n    return {'error': lambda outputs, labels: (outputs - labels).abs()}\n"
    evaluate(changed(saved, model_def=written(tmp_path, "measured", eval_metrics_fn=metrics)))
    assert "100 records, error 0." in caplog.text
    options = changed(saved, command="predict", output=str(tmp_path / "out"), records_per_task=40)
    facts = check(options)
    assert facts == {"records": 100, "saved": newest_set(str(tmp_path / "model"))}
    predict(changed(options, saved=facts["saved"]))
    found = [
        json.loads(line)
        for file in sorted((tmp_path / "out").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    assert [line["record"] for line in found] == list(range(100))
    assert found[50]["prediction"][0] == pytest.approx(2.5, abs=0.3)


@pytest.fixture
def terms(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Collect the terms with which workers join."""
    found: list[dict[str, str]] = []

    def connect(_: TaskJob, asked: TaskTerms, *_others: object) -> tuple[LocalQueue, None]:
        found.append({name: value for name, value in asked.extra if name != "tables"})
        return LocalQueue(asked, MemberId("a")), None

    monkeypatch.setattr(TaskJob, "_connect", connect)
    return found


def differing(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one | other if one.get(name) != other.get(name)}


def test_a_queue_is_of_its_data_its_module_its_model_and_its_output(
    tmp_path: Path, saved: WorkOptions, terms: list[dict[str, str]]
) -> None:
    training = changed(saved, command="train", data="20")
    train(training)
    train(changed(training, validation_data="5"))
    assert [differing(terms[0], each) for each in terms] == [set(), {"validation"}]
    terms.clear()

    evaluate(saved)
    evaluate(changed(saved, model=str(shutil.copytree(tmp_path / "model", tmp_path / "copy"))))
    evaluate(save_line(tmp_path, tmp_path / "other", 500))
    assert newest_set(str(tmp_path / "other")) == newest_set(str(tmp_path / "model"))
    evaluate(changed(saved, data="101"))
    written(tmp_path, header=WHOLE["header"] + "# corrected")
    evaluate(saved)
    assert [differing(terms[0], each) for each in terms] == [set(), set(), {"model"}, {"data"}, {"module"}]
    terms.clear()

    options = changed(saved, command="predict", output=str(tmp_path / "out"))
    predict(options)
    predict(options)
    shutil.rmtree(tmp_path / "out")
    predict(options)
    predict(changed(options, output=str(tmp_path / "elsewhere" / "out")))
    assert [differing(terms[0], each) for each in terms] == [set(), set(), {"output"}, {"output"}]


def test_predictions_do_not_stay_when_the_data_the_module_or_the_model_changed(
    tmp_path: Path, saved: WorkOptions
) -> None:
    data = """
def custom_data_reader(source):
    with open(source) as file:
        return [int(each) for each in file.read().split()]
"""
    written(tmp_path, "reads", custom_data_reader=data)
    (tmp_path / "tonight").write_text("1 2 3")
    options = changed(saved, command="predict", model_def=str(tmp_path / "reads.py"), data=str(tmp_path / "tonight"))
    options = changed(options, output=str(tmp_path / "out"))
    check(options)
    check(options)
    (tmp_path / "tonight").write_text("1 2 4")
    with pytest.raises(BadInput, match=r"something else \(data tonight \(.*\) -> tonight"):
        check(options)
    (tmp_path / "tonight").write_text("1 2 3")
    shutil.rmtree(tmp_path / "model")
    save_line(tmp_path, tmp_path / "model", 500)
    with pytest.raises(BadInput, match=r"something else \(model tables.* -> tables"):
        check(options)


def test_a_saved_model_of_other_parameters_or_none_at_all_is_refused(tmp_path: Path, saved: WorkOptions) -> None:
    other = written(tmp_path, "wider", custom_model="def custom_model():\n    return nn.Linear(1, 1, bias=False)\n")
    with pytest.raises(BadInput, match="are not those that it was saved with"):
        check(changed(saved, model_def=other))
    with pytest.raises(BadInput, match="holds no saved tables"):
        check(changed(saved, model=str(tmp_path / "empty")))
    with pytest.raises(BadInput, match=r"does not hold tables.9 any more"):
        check(changed(saved, saved="tables.9"))


FIXED = """
def custom_model():
    {seed}
    model = nn.Linear(1, 1).requires_grad_(False)
    model.register_buffer("noise", torch.rand(3))
    return model
"""


def test_a_model_whose_fixed_values_are_others_each_time_is_refused(tmp_path: Path) -> None:
    check(save_line(tmp_path, tmp_path / "equal", 0, custom_model=FIXED.format(seed="torch.manual_seed(0)")))
    options = save_line(tmp_path, tmp_path / "random", 0, custom_model=FIXED.format(seed="torch.seed()"))
    with pytest.raises(BadInput, match=r"other values each time.*set a seed in custom_model"):
        check(options)


def test_a_saved_model_cannot_be_trained(saved: WorkOptions) -> None:
    work = LoadedWork(saved)
    work.bind_saved()
    with pytest.raises(BadInput, match="cannot be trained"):
        work.steps.train(*work.module.labelled([1], "train"), 1)


@pytest.mark.parametrize(
    ("functions", "data", "why"),
    [
        ({}, "0", "--data 0 has no records"),
        ({"feed": "def feed(records, mode):\n    return 3\n"}, "9", r"must return \(features, labels\), got int"),
        (
            {"custom_model": "def custom_model():\n    return 3\n"},
            "9",
            "must return a torch.nn.Module or a keras.Model, got int",
        ),
        (
            {"custom_data_reader": "def custom_data_reader(source):\n    return iter(())\n"},
            "9",
            "of --data must return",
        ),
        (
            {"loss": "def loss(labels, outputs):\n    return torch.zeros(7)\n"},
            "9",
            r"loss returned a tensor of shape \(7,\)",
        ),
        ({"custom_model": "def custom_model(run):\n    run.pull('a', [1])\n"}, "9", "cannot use tables yet"),
        ({"custom_model": "def custom_model():\n    return nn.BatchNorm1d(1)\n"}, "9", None),
    ],
)
def test_what_does_not_fit_together_is_named_before_a_worker_starts(
    tmp_path: Path, functions: dict[str, str], data: str, why: str | None
) -> None:
    options = WorkOptions("train", written(tmp_path, "odd", **functions), data, batch_size=3)
    if why is None:
        with pytest.raises(BadInput, match="changes the buffers running_mean, running_var, num_batches_tracked"):
            train(options)
    else:
        with pytest.raises(BadInput, match=why):
            check(options)


def test_the_check_prints_one_line_or_the_reason(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["train", "--check", "--model-def", written(tmp_path), "--data", "9"]) == 0
        assert main(["train", "--check", "--model-def", "nothing.py", "--data", "9"]) == 2
        assert main(["train", "--model-def", written(tmp_path), "--data", "9"]) == 0
    assert json.loads(out.getvalue()) == {"records": 9, "saved": None}
    assert err.getvalue().startswith("pliant: There is no model module 'nothing.py'")


def test_what_a_module_prints_while_it_is_checked_is_no_part_of_the_result(tmp_path: Path) -> None:
    header = WHOLE["header"] + "print('half a line', end='')\n"
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(["train", "--check", "--model-def", written(tmp_path, header=header), "--data", "9"]) == 0
    assert json.loads(out.getvalue()) == {"records": 9, "saved": None}
    assert "half a line" in err.getvalue()


def test_progress_is_logged_every_ten_seconds_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 5.0, 10.0, 10.0, 12.0))
    told = WorkLog("trained", lambda: next(times))
    told.add(10, 1.0)
    told.add(30, 2.0)
    told.end()
    assert caplog.messages == [
        "trained 40 records, 4 a second, loss 1.7500 since the last line",
        "trained 40 records, 3 a second",
    ]


def test_tables_pass_on_to_the_run_that_began() -> None:
    class Run:
        def __init__(self) -> None:
            self.asked: list[tuple[Any, ...]] = []

        def __getattr__(self, name: str) -> Any:
            return lambda *given: self.asked.append((name, *given))

    late, run = LateTables(), Run()
    late.begin(run)
    late.pull("a", [1])
    late.push({})
    late.create("a", [1], [2])
    assert run.asked == [("pull", "a", [1]), ("push", {}), ("create", "a", [1], [2])]
