"""The optimizers of a run: scaled, clipped, stepped together, and by no other member."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.state.optimizers import Optimizers


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


@pytest.fixture
def closing() -> Iterator[list[Optimizers]]:
    """A hook is for the whole process: it must not stay."""
    made: list[Optimizers] = []
    yield made
    for each in made:
        each.close()


def gradients(model: nn.Module, value: float = 3.0) -> None:
    for param in model.parameters():
        param.grad = torch.full_like(param, value)


def norm(model: nn.Module) -> float:
    return float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm())


def test_clipping_is_of_the_norm_over_all_optimizers(model: nn.Module, closing: list[Optimizers]) -> None:
    both: list[torch.optim.Optimizer] = [torch.optim.SGD(part.parameters(), lr=1.0) for part in model]  # type: ignore[attr-defined]
    ours = Optimizers(model, both, None, 1.0)
    closing.append(ours)
    gradients(model)
    assert norm(model) > 5
    ours.step()
    assert norm(model) == pytest.approx(1.0, rel=1e-4)


def test_without_clip_norm_gradients_are_used_as_they_are(model: nn.Module, closing: list[Optimizers]) -> None:
    before = [param.detach().clone() for param in model.parameters()]
    ours = Optimizers(model, torch.optim.SGD(model.parameters(), lr=0.5), None, None)
    closing.append(ours)
    gradients(model)
    ours.step()
    for was, param in zip(before, model.parameters(), strict=True):
        assert torch.equal(param.detach(), was - 1.5)


def test_clipping_works_on_the_true_gradient_not_the_scaled_one(model: nn.Module, closing: list[Optimizers]) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ours = Optimizers(model, torch.optim.SGD(model.parameters(), lr=1.0), scaler, 100.0)
    closing.append(ours)
    ours.scaled(model(torch.ones(1, 2)).sum()).backward()  # type: ignore[no-untyped-call]
    scaled = norm(model)
    ours.unscale()
    true = norm(model)
    assert scaled == pytest.approx(1024 * true)
    ours.step()
    assert norm(model) == pytest.approx(true)  # below 100: not clipped


def test_a_scaler_that_is_off_is_none(model: nn.Module, closing: list[Optimizers]) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    ours = Optimizers(model, torch.optim.SGD(model.parameters(), lr=1.0), scaler, None)
    closing.append(ours)
    loss = torch.tensor(2.0)
    assert ours.scaled(loss) is loss
    gradients(model)
    ours.unscale()
    ours.step()


def test_steps_by_hand_are_refused_until_it_is_closed(model: nn.Module, closing: list[Optimizers]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ours = Optimizers(model, optimizer, None, None)
    closing.append(ours)
    gradients(model)
    second = torch.optim.Adam(list(model.parameters())[:1])
    for by_hand in (optimizer, second):
        with pytest.raises(BadInput, match="by hand"):
            by_hand.step()
    ours.step()
    with pytest.raises(BadInput, match="by hand"):
        optimizer.step()
    ours.close()
    optimizer.step()
    second.step()


def test_an_optimizer_that_fails_leaves_the_refusal_in_place(model: nn.Module, closing: list[Optimizers]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    ours = Optimizers(model, optimizer, None, None)
    closing.append(ours)
    gradients(model)
    handle = optimizer.register_step_post_hook(lambda *_: 1 / 0)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        ours.step()
    handle.remove()
    with pytest.raises(BadInput, match="by hand"):
        optimizer.step()
