"""A step that was reduced and not applied: the loop ends with a reason, instead of waiting for ever."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import pliant.torch as pliant
from pliant.errors import BadInput
from pliant.train.data.loader import SampleError
from pliant.train.live.errors import NonFiniteGradient

Body = Callable[[pliant.Run, Tensor, Tensor], object]


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def points() -> TensorDataset:
    return TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))


def net() -> nn.Module:
    return nn.Linear(4, 2)


@contextmanager
def training(model: nn.Module) -> Iterator[pliant.Run]:
    with pliant.join() as job:
        yield job.train(model, torch.optim.SGD(model.parameters(), lr=0.1), points(), batch_size=4)


def loop(model: nn.Module, body: Body) -> None:
    """A loop with this body, to its end."""
    with training(model) as run:
        for x, y in run:
            body(run, x, y)


def leave_after_first(model: nn.Module, body: Body) -> None:
    """Leave the loop after one item."""
    with training(model) as run:
        for x, y in run:
            body(run, x, y)
            break


def test_a_loop_left_between_reduce_and_apply() -> None:
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        run.backward(cross_entropy(model(x), y))
        assert run.reduce()

    with pytest.raises(BadInput) as raised:
        leave_after_first(model, body)
    assert raised.value.why == (
        "The training loop was left between run.reduce() and run.apply(). Call run.apply() before leaving."
    )
    assert all(param.grad is None for param in model.parameters())


def test_a_loop_left_in_the_extra_item_of_a_missed_step() -> None:
    def miss(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        run._loop._missed = cast(Any, object())

    with pytest.raises(BadInput, match="left in a step that the other members had applied"):
        leave_after_first(net(), miss)


def test_a_loop_left_after_gradients_were_sent_breaks_the_group_off_before_it_waits_for_them() -> None:
    """The others wait for the rest of the gradients, and must not take what this member sends next for them."""
    called: list[str] = []
    with training(net()) as run, ExitStack() as patches:
        for _ in run:
            reducer = cast(Any, run._loop._reducer)
            reducer._sent = 1
            for owner, name in ((run._loop.session.group(1), "break_off"), (reducer, "abandon")):
                spy = mock.Mock(wraps=getattr(owner, name), side_effect=lambda name=name: called.append(name))
                patches.enter_context(mock.patch.object(owner, name, spy))
            break
        run._loop.leave()
        run.complete = True
    assert called[:2] == ["break_off", "abandon"]


CAUGHT = (
    "The last step was not completed, because the iterator or run.step() raised an exception. Let it end the script. "
    'To leave out steps whose gradient is not finite, pass nonfinite="skip" to job.train.'
)


def nan_step(model: nn.Module, run: pliant.Run, x: Tensor, y: Tensor) -> None:
    run.backward(cross_entropy(model(x), y) * float("nan"))
    run.step()


def test_a_loop_that_goes_on_after_a_gradient_that_is_not_finite_ends_with_what_to_do() -> None:
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        with suppress(NonFiniteGradient):
            nan_step(model, run, x, y)

    with pytest.raises(BadInput) as raised:
        loop(model, body)
    assert raised.value.why == CAUGHT


def test_a_loop_left_after_a_gradient_that_is_not_finite_ends_with_what_to_do() -> None:
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        with suppress(NonFiniteGradient):
            nan_step(model, run, x, y)

    with pytest.raises(BadInput) as raised:
        leave_after_first(model, body)
    assert raised.value.why == CAUGHT


class Damaged(Dataset[tuple[Tensor, Tensor]]):
    """Twenty points, of which some cannot be read."""

    def __init__(self, damaged: set[int]) -> None:
        self._damaged = damaged
        self._points = points()

    def __len__(self) -> int:
        return len(self._points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index in self._damaged:
            raise OSError(f"sample {index} is damaged")
        x, y = self._points[index]
        return x, y


def test_an_iterator_that_is_asked_again_after_a_damaged_sample_ends_with_what_to_do() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pliant.join() as job:
        run = job.train(model, optimizer, Damaged(set(range(20))), batch_size=4)
        with pytest.raises(SampleError, match="is damaged"):
            next(run)
        with pytest.raises(BadInput) as raised:
            next(run)
        assert raised.value.why == CAUGHT
        with pytest.raises(BadInput) as raised:
            run._loop.leave()
        assert raised.value.why == CAUGHT
        run.complete = True


def test_a_loop_that_goes_on_after_a_refused_step_ends() -> None:
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        run.backward(cross_entropy(model(x), y))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with suppress(BadInput):
            run.step()

    with pytest.raises(BadInput) as raised:
        loop(model, body)
    assert raised.value.why == CAUGHT


def test_a_cell_of_a_notebook_may_run_again_after_a_step_that_raised() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for rate in (float("nan"), 1.0):
        job = pliant.join()
        with suppress(NonFiniteGradient):
            for x, y in (run := job.train(model, optimizer, points(), batch_size=4)):
                run.backward(cross_entropy(model(x), y) * rate)
                run.step()
    assert run.complete
    job.__exit__(None, None, None)
