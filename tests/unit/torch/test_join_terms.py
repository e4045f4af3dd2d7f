"""The terms of two members differ if their models compute something else, and agree if only their memory differs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pliant.core.data.grid import Grid
from pliant.torch.join_terms import LISTED_MAX, extra_terms
from pliant.torch.state.optimizers import Optimizers
from pliant.train.data.loader import SampleIndices


def terms(model: nn.Module) -> dict[str, str]:
    optimizers = Optimizers(model, torch.optim.SGD(model.parameters(), lr=0.1), None, None)
    optimizers.close()
    return dict(extra_terms(model, optimizers, SampleIndices(Grid(4, 2, 2, 1), seed=0), {}))


def mlp(activation: nn.Module, *more: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), activation, *more, nn.Linear(8, 2))


def encoder(activation: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, activation=activation)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (mlp(nn.Tanh()), mlp(nn.ReLU())),
        (mlp(nn.Dropout(0.1)), mlp(nn.Dropout(0.2))),
        (mlp(nn.ReLU(), nn.Tanh()), mlp(nn.Tanh(), nn.ReLU())),
        (mlp(nn.LayerNorm(8)), mlp(nn.LayerNorm(8, eps=1e-3))),
        (encoder(F.relu), encoder(F.gelu)),
        (encoder(torch.relu), encoder(torch.tanh)),
    ],
)
def test_a_model_that_computes_something_else_differs(one: nn.Module, other: nn.Module) -> None:
    assert terms(one)["model"] == terms(other)["model"]
    assert terms(one)["layers"] != terms(other)["layers"]


def test_the_classes_are_named_so_that_a_reader_sees_the_difference() -> None:
    assert terms(mlp(nn.Tanh()))["layers"].startswith("2 Linear, 1 Sequential, 1 Tanh (")


class Showing(nn.Module):
    """Shows what differs between processes: its weights, its device, itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.function = lambda: self

    def extra_repr(self) -> str:
        return f"{self.scale}, {object()!r}"


def test_models_of_one_structure_agree() -> None:
    builders: list[Callable[[], nn.Module]] = [Showing, lambda: mlp(nn.Tanh()), lambda: encoder(F.gelu)]
    for build in builders:
        assert terms(build()) == terms(build().eval())


def test_a_compiled_model_agrees_with_a_plain_one() -> None:
    model = mlp(nn.Tanh())
    before = terms(model)
    compiled: Any = torch.compile(model, backend="eager")
    compiled(torch.zeros(1, 4))
    assert terms(compiled._orig_mod) == before
    model.compile(backend="eager")
    assert terms(model) == before


def test_a_long_list_of_classes_fits_into_a_term() -> None:
    kinds = [type(f"A_rather_long_name_of_a_class_{number}", (nn.Identity,), {}) for number in range(20)]
    shown = terms(mlp(*(kind() for kind in kinds)))["layers"]
    assert len(shown) <= LISTED_MAX + 20
    assert "..." in shown
