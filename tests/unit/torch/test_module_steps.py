"""The steps of a model module in PyTorch: what its model may return, and what becomes of it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pliant.errors import BadInput
from pliant.ps import SGD, PushPolicy, Table
from pliant.ps.access import LocalRows, TableAccess
from pliant.torch.module_steps import TorchSteps
from pliant.torch.tables import ServerEmbedding


def squares(labels: Tensor, outputs: Tensor) -> Tensor:
    return (outputs - labels) ** 2


def bound(model: nn.Module, *more: Table, loss: Callable[..., Any] = squares, **metrics: Any) -> TorchSteps:
    steps = TorchSteps("zoo.py", model, loss, metrics)
    tables = [*more, *steps.tables(SGD(0.1))]
    steps.bind(TableAccess("w", tables, PushPolicy(), LocalRows(tables, PushPolicy())))
    return steps


class Returning(nn.Module):
    """A model that returns what it is given."""

    def forward(self, features: Any) -> Any:
        return features


def test_totals_are_of_values_of_each_record_and_of_means() -> None:
    steps = bound(
        Returning(),
        whole=lambda labels, outputs: (outputs > labels).float().mean(),
        each=lambda labels, outputs: outputs > labels,
        plain=lambda labels, outputs: 0.5,
    )
    found = steps.evaluate(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 2.0, 2.0]), 3)
    assert found == pytest.approx({"loss": 2.0, "whole": 2.0, "each": 2.0, "plain": 1.5})


def test_a_prediction_is_a_plain_value_for_each_record() -> None:
    steps = bound(Returning())
    assert steps.predict(torch.tensor([1.0, 2.0]), 2) == [1.0, 2.0]
    assert steps.predict({"a": torch.tensor([1, 2]), "b": torch.ones(2, 2)}, 2) == [
        {"a": 1, "b": [1.0, 1.0]},
        {"a": 2, "b": [1.0, 1.0]},
    ]


@pytest.mark.parametrize(
    ("outputs", "shown"), [(torch.ones(3), "shape (3,)"), (torch.tensor(1.0), "shape ()"), ([1, 2], "list")]
)
def test_outputs_without_one_row_for_each_record_are_refused(outputs: Any, shown: str) -> None:
    with pytest.raises(BadInput) as refused:
        bound(Returning()).predict(outputs, 2)
    assert f"for 2 records is of {shown}" in refused.value.why


def test_the_table_of_a_model_is_named_by_its_parameters() -> None:
    def name(model: nn.Module) -> str:
        return TorchSteps("zoo.py", model, squares, {}).tables(SGD(0.1))[0].name

    assert name(nn.Linear(2, 1)) == name(nn.Linear(2, 1))
    assert len({name(nn.Linear(2, 1)), name(nn.Linear(1, 2)), name(nn.Sequential(nn.Linear(2, 1)))}) == 3
    assert TorchSteps("zoo.py", Returning(), squares, {}).tables(SGD(0.1)) == []


class Fourier(nn.Module):
    """Features of random frequencies, which are a frozen parameter or a buffer, under a layer if it is trained."""

    def __init__(self, seed: int, kind: str, *, trained: bool) -> None:
        super().__init__()
        values = torch.randn(3, generator=torch.Generator().manual_seed(seed))
        if kind == "frozen":
            self.frequencies = nn.Parameter(values, requires_grad=False)
        else:
            self.register_buffer("frequencies", values, persistent=kind == "buffer")
        self.last = nn.Linear(3, 1) if trained else nn.Identity()

    def forward(self, features: Tensor) -> Any:
        return self.last(torch.cos(features * self.frequencies))


@pytest.mark.parametrize("kind", ["frozen", "buffer", "not saved"])
@pytest.mark.parametrize("trained", [True, False])
def test_values_that_no_server_keeps_are_in_the_name_of_the_table(kind: str, trained: bool) -> None:
    def name(seed: int) -> str:
        return TorchSteps("zoo.py", Fourier(seed, kind, trained=trained), squares, {}).tables(SGD(0.1))[0].name

    assert name(0) == name(0) != name(1)
    assert len(bound(Fourier(0, kind, trained=trained)).predict(torch.ones(2, 1), 2)) == 2


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([True]),
        torch.ones(2, dtype=torch.complex64),
        torch.eye(3).to_sparse(),
        torch.arange(6.0).reshape(2, 3).T,
    ],
)
def test_buffers_may_have_any_type_and_layout(values: Tensor) -> None:
    model = nn.Linear(1, 1)
    before = bound(model).tables(SGD(0.1))
    model.register_buffer("fixed", values)
    assert bound(model).tables(SGD(0.1)) != before


def test_a_model_of_embeddings_alone_learns() -> None:
    table = Table("ads", 1, SGD(0.5), scale=0.0)
    rows = TableAccess("w", [table], PushPolicy(), LocalRows([table], PushPolicy()))
    model = nn.Sequential(ServerEmbedding(rows, "ads"), nn.Flatten(0))
    steps = TorchSteps("zoo.py", model, squares, {})
    steps.bind(rows)
    losses = [steps.train(torch.tensor([3, 4]), torch.tensor([1.0, 2.0]), 2) for _ in range(20)]
    assert losses[0] == pytest.approx(2.5)
    assert losses[-1] < 0.1


def test_a_batch_is_computed_again_if_its_gradients_were_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter((False, False, True))
    monkeypatch.setattr(TableAccess, "push", lambda *_: next(answers))
    bound(nn.Linear(1, 1)).train(torch.ones(2, 1), torch.ones(2, 1), 2)
    assert list(answers) == []
