"""Optimizers that can be stepped before it is known whether the gradient is finite."""

import pytest
import torch
from torch import nn

from pliant.torch.state.step_guard import Guardable


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))


def stepped(trained: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    trained(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("fused", [True, False])
def test_only_a_fused_optimizer_can_be_guarded(fused: bool) -> None:
    assert bool(Guardable(torch.optim.AdamW(model().parameters(), fused=fused))) is fused
    assert bool(Guardable(torch.optim.SGD(model().parameters(), fused=fused))) is fused
    assert not Guardable(torch.optim.Adamax(model().parameters()))


def test_momentum_is_filled_by_the_first_step() -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), momentum=0.9, fused=True)
    guardable = Guardable(optimizer)
    trained(torch.ones(1, 3)).sum().backward()
    assert not guardable
    optimizer.step()
    assert guardable
    assert guardable  # remembered


def test_a_state_that_is_replaced_or_incomplete_is_looked_at_again() -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), momentum=0.9, fused=True)
    guardable = Guardable(optimizer)
    stepped(trained, optimizer)
    assert guardable
    more = nn.Linear(3, 3)
    optimizer.add_param_group({"params": list(more.parameters())})
    assert guardable  # the new ones have no gradient
    stepped(more, optimizer)
    assert guardable
    empty = torch.optim.SGD([*trained.parameters(), *more.parameters()], momentum=0.9, fused=True)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": empty.state_dict()["state"]})
    assert not guardable


def test_a_look_adds_nothing_to_the_state() -> None:
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), momentum=0.9, fused=True)
    assert Guardable(optimizer)  # no parameter has a gradient
    assert not optimizer.state
