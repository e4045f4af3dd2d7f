"""Each optimizer of rows against torch's, or against the plain formula."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pliant.errors import BadInput
from pliant.ps import SGD, Adagrad, Adam, Ftrl, Momentum, Table
from pliant.ps.tables.hashing import initial_values
from pliant.ps.tables.rows import RowTable

IDS = np.arange(5, dtype=np.int64)
ONES = np.ones((5, 1), np.float32)
TORCH: dict[Any, Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]] = {
    SGD(0.1): lambda p: torch.optim.SGD(p, 0.1),
    Momentum(0.1, 0.8): lambda p: torch.optim.SGD(p, 0.1, momentum=0.8),
    Adagrad(0.1, initial=0.5): lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.5),
    Adam(0.01): lambda p: torch.optim.Adam(p, 0.01),
}


@pytest.mark.parametrize("optimizer", TORCH, ids=lambda each: type(each).__name__)
def test_rows_follow_torch(optimizer: SGD | Momentum | Adagrad | Adam) -> None:
    table = Table("t", 4, optimizer, scale=0.5, seed=3)
    rows = RowTable(table)
    parameter = torch.nn.Parameter(torch.from_numpy(initial_values(table, IDS)))
    theirs = TORCH[optimizer]([parameter])
    rng = np.random.default_rng(1)
    for _ in range(20):
        gradient = rng.standard_normal((5, 4)).astype(np.float32)
        rows.update(IDS, gradient, ONES)
        parameter.grad = torch.from_numpy(gradient)
        theirs.step()
    np.testing.assert_allclose(rows.pull(IDS), parameter.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_ftrl_follows_its_formula() -> None:
    rate, l1, l2, beta = 0.3, 0.2, 0.1, 1.0
    table = Table("t", 1, Ftrl(rate, l1, l2, beta), scale=0.0)
    rows, one = RowTable(table), np.zeros(1, np.int64)
    z = n = w = 0.0
    for gradient in (0.5, -0.1, 0.9, -2.0, 0.05):
        rows.update(one, np.full((1, 1), gradient, np.float32), ONES[:1])
        sigma = (math.sqrt(n + gradient**2) - math.sqrt(n)) / rate
        z, n = z + gradient - sigma * w, n + gradient**2
        w = 0.0 if abs(z) <= l1 else -(z - math.copysign(l1, z)) / ((beta + math.sqrt(n)) / rate + l2)
        assert rows.pull(one)[0, 0] == pytest.approx(w, rel=1e-5, abs=1e-7)


def test_a_row_that_no_push_names_rests() -> None:
    rows = RowTable(Table("t", 2, Momentum(0.1)))
    rows.update(IDS, np.ones((5, 2), np.float32), ONES)
    before = rows.pull(IDS)
    rows.update(IDS[:1], np.ones((1, 2), np.float32), ONES[:1])
    after = rows.pull(IDS)
    assert (after[1:] == before[1:]).all()
    assert (after[0] < before[0]).all()


@pytest.mark.parametrize("wrong", [SGD(0.0), SGD(-1.0), Adam(0.1, beta1=float("nan")), Ftrl(float("inf"))])
def test_settings_that_cannot_train_are_refused(wrong: SGD | Adam | Ftrl) -> None:
    with pytest.raises(BadInput, match="must be"):
        wrong.check()
