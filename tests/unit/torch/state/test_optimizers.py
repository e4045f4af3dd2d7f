"""The optimizers of a run: scaled, clipped, stepped together, and by no other member."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.state import step_guard
from pliant.torch.state.optimizers import Optimizers
from pliant.train.live.errors import NonFiniteGradient


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


@pytest.mark.parametrize("value", [3.0, -3e-20, 1e30, -3e38])
def test_a_finite_gradient_steps_even_if_its_square_overflows(
    model: nn.Module, closing: list[Optimizers], monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    orders: list[float] = []
    foreach_norm = torch._foreach_norm

    def counted(grads: Any, order: float) -> Any:
        orders.append(order)
        return foreach_norm(grads, order)

    monkeypatch.setattr(torch, "_foreach_norm", counted)
    ours = Optimizers(model, torch.optim.SGD(model.parameters(), lr=1.0), None, None)
    closing.append(ours)
    gradients(model, value)
    assert ours.can_step(1)
    overflows = abs(value) > 1e19
    assert orders == [2.0, float("inf")][: 1 + overflows], "the exact norm is slow on a CPU"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_number_that_is_not_finite_is_found(model: nn.Module, closing: list[Optimizers], value: float) -> None:
    ours = Optimizers(model, torch.optim.SGD(model.parameters(), lr=1.0), None, None)
    closing.append(ours)
    gradients(model, 1e30)
    last = list(model.parameters())[-1]
    assert last.grad is not None
    last.grad[-1] = value
    with pytest.raises(NonFiniteGradient, match="step 7"):
        ours.can_step(7)


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


# ---------------------------------------------------------------------------- steps launched before their check

FUSED: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    lambda params: torch.optim.SGD(params, lr=0.1, fused=True),
    lambda params: torch.optim.AdamW(params, lr=0.1, fused=True),
]


@pytest.fixture(params=["a small gradient", "a large gradient"])
def asynchronous(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the CPU as a device on which work is launched, and waited for later."""
    monkeypatch.setattr(step_guard, "is_asynchronous", lambda _: True)
    if request.param == "a large gradient":
        monkeypatch.setattr(step_guard, "SMALL_NUMEL", 0)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    return repr((list(model.parameters()), optimizer.state_dict()))


def guarded(
    model: nn.Module, closing: list[Optimizers], optimizer: torch.optim.Optimizer, policy: str, clip: float | None
) -> Optimizers:
    """Return optimizers after a first step, whose gradient was looked at before."""
    ours = Optimizers(model, optimizer, None, clip, policy)
    closing.append(ours)
    gradients(model)
    assert ours.can_step(1, may_wait=True)
    ours.step()
    ours.settle()
    return ours


@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("make", FUSED)
def test_a_step_launched_before_its_check_changes_nothing_and_is_reported_at_the_boundary(
    model: nn.Module, closing: list[Optimizers], make: Callable[[Any], torch.optim.Optimizer], clip: float | None
) -> None:
    optimizer = make(model.parameters())
    ours = guarded(model, closing, optimizer, "raise", clip)
    before = everything(model, optimizer)
    gradients(model)
    params = dict(model.named_parameters())
    params["1.weight"].grad = torch.full_like(params["1.weight"], float("inf"))
    assert ours.can_step(2, may_wait=True)
    ours.step()
    assert everything(model, optimizer) == before
    with pytest.raises(NonFiniteGradient, match=r"step 2 is not finite \(first in 1\.weight\)"):
        ours.settle()
    gradients(model)  # the next step is not affected
    assert ours.can_step(3, may_wait=True)
    ours.step()
    ours.settle()
    assert everything(model, optimizer) != before
    assert not hasattr(optimizer, "found_inf")


@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize("make", FUSED)
def test_a_step_launched_before_its_check_comes_to_the_same_bits(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    found = []
    for may_wait in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        optimizer = make(model.parameters())
        ours = Optimizers(model, optimizer, None, None)
        for step in range(1, 4):
            gradients(model, 0.1 * step)
            assert ours.can_step(step, may_wait=may_wait)
            ours.step()
            ours.settle()
        ours.close()
        found.append(everything(model, optimizer))
    assert found[0] == found[1]


@pytest.mark.usefixtures("asynchronous")
def test_a_step_left_out_after_its_launch_is_logged(
    model: nn.Module, closing: list[Optimizers], caplog: pytest.LogCaptureFixture
) -> None:
    ours = guarded(model, closing, FUSED[0](model.parameters()), "skip", None)
    gradients(model, float("nan"))
    assert ours.can_step(2, may_wait=True)
    ours.step()
    for param in model.parameters():
        param.grad = None
    assert not caplog.records
    ours.settle()
    assert [record.getMessage() for record in caplog.records] == [
        "step 2 was skipped: its gradient is not finite (first in 0.weight)"
    ]


@pytest.mark.usefixtures("asynchronous")
@pytest.mark.parametrize(
    "make",
    [
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),  # its first step has no momentum yet
        lambda params: torch.optim.SGD(params, lr=0.1),
        lambda params: torch.optim.RMSprop(params, lr=0.1),
    ],
)
def test_a_step_that_cannot_be_guarded_waits_for_its_check(
    model: nn.Module, closing: list[Optimizers], make: Callable[[Any], torch.optim.Optimizer]
) -> None:
    ours = Optimizers(model, make(model.parameters()), None, None)
    closing.append(ours)
    gradients(model, float("nan"))
    with pytest.raises(NonFiniteGradient, match="step 1"):
        ours.can_step(1, may_wait=True)
    ours.settle()
