"""A model module is checked when it is loaded: what is missing or wrong is named, with what to do."""

from pathlib import Path

import pytest

from pliant.errors import BadInput
from pliant.model_modules.contract import load
from pliant.ps import SGD
from unit.model_modules.zoo import written

pytest.importorskip("torch")


def test_a_whole_module_is_loaded_and_modules_beside_it_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("RATE = 0.25\n")
    optimizer = "from beside_it import RATE\ndef optimizer():\n    return SGD(RATE)\n"
    module = load(written(tmp_path, "whole", optimizer=optimizer))
    assert module.optimizer == SGD(0.25)
    assert (module.metrics, module.tables) == ({}, ())
    monkeypatch.syspath_prepend(tmp_path)
    assert load("whole").name == "whole"


@pytest.mark.parametrize("arguments", ["labels, outputs", "outputs, labels", "predictions, labels"])
def test_losses_and_metrics_are_called_by_the_name_of_their_labels(tmp_path: Path, arguments: str) -> None:
    other = next(each for each in arguments.split(", ") if each != "labels")
    body = f"({arguments}):\n    return f'{{labels}} {{{other}}}'\n"
    metrics = f"def eval_metrics_fn():\n    return {{'m': lambda {arguments}: f'{{labels}} {{{other}}}'}}\n"
    module = load(written(tmp_path, "order", loss=f"def loss{body}", eval_metrics_fn=metrics))
    assert module.loss("y", "x") == module.metrics["m"]("y", "x") == "y x"


@pytest.mark.parametrize("name", ["custom_model", "loss", "optimizer", "feed"])
def test_a_missing_function_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match=rf"has no {name}. Add `def {name}\("):
        load(written(tmp_path, f"without_{name}", without=name))


@pytest.mark.parametrize(
    ("functions", "why"),
    [
        ({"loss": "def loss(a, b):\n    pass\n"}, r"loss\(a, b\) must take two arguments, one of them named `labels`"),
        ({"loss": "loss = 3\n"}, "loss must be a function, got int"),
        ({"feed": "def feed(records):\n    pass\n"}, r"feed\(records\) cannot be called as feed\(records, mode\)"),
        ({"custom_model": "def custom_model(a, b):\n    pass\n"}, r"called as custom_model\(\) or custom_model\(run\)"),
        ({"optimizer": "def optimizer(lr):\n    pass\n"}, r"optimizer\(lr\) cannot be called as optimizer\(\)"),
        ({"optimizer": "def optimizer():\n    return 0.1\n"}, r"optimizer\(\) returned float. Return one of pliant.ps"),
        ({"optimizer": "def optimizer():\n    return SGD(-1.0)\n"}, "rate"),
        (
            {"tables": "def tables():\n    return ['a']\n"},
            r"tables\(\) must return a list of pliant.ps.Table, got a list of 1",
        ),
        (
            {"eval_metrics_fn": "def eval_metrics_fn():\n    return [1]\n"},
            "must return a dictionary of functions by name",
        ),
        ({"eval_metrics_fn": "def eval_metrics_fn():\n    return {'loss': print}\n"}, "the loss is always reported"),
        ({"eval_metrics_fn": "def eval_metrics_fn():\n    return {'m': lambda a, b: 0}\n"}, "named `labels`"),
        ({"header": "import nothing_like_it\n"}, "No module named 'nothing_like_it'. Install that module"),
        ({"header": "1 / 0\n"}, r"ZeroDivisionError: division by zero \(.*wrong.py, line 1\)"),
        ({"header": "def\n"}, "SyntaxError: invalid syntax"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, functions: dict[str, str], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        load(written(tmp_path, "wrong", **functions))


@pytest.mark.parametrize("where", ["nothing.py", "folder/nothing", "nothing_there.at_all"])
def test_a_module_that_is_not_there_is_named(where: str) -> None:
    with pytest.raises(BadInput, match=f"There is no model module '{where}'"):
        load(where)
