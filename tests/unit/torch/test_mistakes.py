"""Mistakes users make are found early, named, and said with what to do; and how a member goes."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import pliant.torch as pliant
from pliant.agent.process.worker_env import WorkerEnvironment, environments, live_environment
from pliant.core.model.launch import Launch, Seat
from pliant.core.model.names import AgentId, MemberId
from pliant.errors import BadInput
from pliant.train.data.loader import SampleError
from pliant.train.live.errors import NonFiniteGradient


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def points(samples: int = 20) -> TensorDataset:
    return TensorDataset(torch.randn(samples, 4), torch.randint(0, 2, (samples,)))


@contextmanager
def training(model: nn.Module, optimizer: Any = None, dataset: Any = None, **more: Any) -> Iterator[pliant.Run]:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    with pliant.join() as job:
        yield job.train(model, optimizer, dataset or points(), **{"batch_size": 4, **more})


def start(model: nn.Module, *args: Any, **more: Any) -> None:
    with training(model, *args, **more):
        pass


def net() -> nn.Module:
    return nn.Linear(4, 2)


# ------------------------------------------------------------------------------------------ before the loop


def test_several_workers_without_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would train alone on everything and no member would notice."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(BadInput, match=r"WORLD_SIZE is 4, but PLIANT_COORDINATOR is not set.*pliant run"):
        pliant.join()


def test_a_coordinator_without_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://127.0.0.1:9")
    with pytest.raises(BadInput, match="PLIANT_JOB"):
        pliant.join()


def test_a_script_with_process_groups_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the first workers get the environment for them, replacements do not. So it is refused from the start."""
    monkeypatch.setenv("PLIANT_COORDINATOR", "http://127.0.0.1:9")
    monkeypatch.setenv("PLIANT_JOB", "demo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(BadInput, match=r"torch.distributed is initialized.*Remove init_process_group"):
            pliant.join()
    finally:
        torch.distributed.destroy_process_group()
    pliant.join()


def test_after_join_the_first_workers_have_the_environment_of_their_replacements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So `init_process_group` after it fails in the first attempt, and not in a later one alone."""
    seat = Seat(MemberId("vm-g1.0"), AgentId("vm"), "worker", "127.0.0.1:9")
    launch = environments(Launch(1, (seat,), ""), seat.agent, WorkerEnvironment("torch", "demo", tmp_path))[seat.member]
    replacement = live_environment(MemberId("vm-2.1"), 0, WorkerEnvironment("torch", "demo", tmp_path))
    for name, value in {**launch, "PLIANT_COORDINATOR": "http://127.0.0.1:9", "PLIANT_JOB": "demo"}.items():
        monkeypatch.setenv(name, value)
    pliant.join()
    assert {name for name in launch if name in os.environ} == set(replacement)


def test_alone_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "pliant"):
        logging.getLogger("pliant").propagate = True
        pliant.join()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "training alone, in a world of one" in said


def test_data_that_can_be_read_only_once_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadInput, match="can be iterated only once: pass an IterableDataset whose __iter__ opens"):
        start(net(), dataset=iter([1, 2]))


def test_an_optimizer_of_something_else() -> None:
    other = nn.Linear(2, 2)
    with pytest.raises(BadInput, match="not in the model"):
        start(net(), torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(BadInput, match="must be a torch optimizer"):
        start(net(), "adam")


def test_a_model_without_parameters() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    with pytest.raises(BadInput, match="no parameter to train"):
        start(model, optimizer)


def test_a_model_on_two_devices() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(BadInput, match="several devices"):
        start(model)


def test_state_without_a_state_dict() -> None:
    with pytest.raises(BadInput) as raised:
        start(net(), state={"lr": 3})
    assert raised.value.why == 'state["lr"] is an int; wrap it in an object with state_dict and load_state_dict.'


def test_state_that_cannot_travel_is_found_before_training() -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"when": object()}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError

    with pytest.raises(BadInput, match=r"\['others'\]\['odd'\]\['when'\] is a object"):
        start(net(), state={"odd": Odd()})


def test_a_micro_batch_that_cannot_be_kept() -> None:
    with pytest.raises(BadInput, match="micro_batch=1 cannot be kept"):
        start(net(), slots=2, micro_batch=1)


def test_more_slots_than_samples_in_a_batch() -> None:
    with pytest.raises(BadInput, match="slots=5 is more than batch_size=4"):
        start(net(), slots=5)


@pytest.mark.parametrize("order", ["random", lambda epoch: [20], lambda epoch: []])
def test_an_order_that_is_none(order: Any) -> None:
    with pytest.raises(BadInput, match=r"order"):
        start(net(), order=order)


def test_training_twice_in_one_job() -> None:
    model = net()
    with pliant.join() as job:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.train(model, optimizer, points(), batch_size=4)
        with pytest.raises(BadInput, match="called twice"):
            job.train(model, optimizer, points(), batch_size=4)


# ---------------------------------------------------------------------------------------------- in the loop

Body = Callable[[pliant.Run, Tensor, Tensor], object]


def loop(model: nn.Module, body: Body, **more: Any) -> None:
    """A loop with this body, to its end."""
    with training(model, **more) as run:
        for x, y in run:
            body(run, x, y)


def backward(model: nn.Module, x: Tensor, y: Tensor) -> bool:
    cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    return True


def test_forgetting_step() -> None:
    model = net()
    with pytest.raises(BadInput, match=r"run.step\(\) was not called"):
        loop(model, lambda run, x, y: backward(model, x, y))


def test_step_twice_for_one_item() -> None:
    with pytest.raises(BadInput, match="once for each"):
        loop(net(), lambda run, x, y: (run.step(), run.step()))


def test_reduce_without_apply() -> None:
    with pytest.raises(BadInput, match=r"run.apply\(\) was not called"):
        loop(net(), lambda run, x, y: run.reduce())


def test_apply_without_reduce() -> None:
    with pytest.raises(BadInput, match=r"Call it after run.reduce\(\) returned True"):
        loop(net(), lambda run, x, y: run.apply())


def test_an_optimizer_stepped_by_hand() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(BadInput, match="by hand"):
        loop(model, lambda run, x, y: (backward(model, x, y), optimizer.step()), optimizer=optimizer)


def test_an_optimizer_of_other_parameters_may_be_stepped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Such parameters are this member's alone. A probe may mean that; mostly it is a mistake."""
    model, other = net(), nn.Linear(4, 2)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    before = other.weight.detach().clone()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        backward(other, x, y)
        second.step()
        backward(model, x, y)
        run.step()

    loop(model, body)
    assert not torch.equal(other.weight, before)
    (warning,) = [each for each in caplog.records if "holds no parameter of the model" in each.getMessage()]
    assert warning.levelno == logging.WARNING


def test_an_optimizer_that_holds_some_parameters_of_the_model_must_not_be_stepped_by_hand() -> None:
    model, other = net(), nn.Linear(4, 2)
    mixed = torch.optim.SGD([*other.parameters(), next(model.parameters())], lr=0.1)
    with pytest.raises(BadInput, match="by hand, with this member's gradients alone"):
        loop(model, lambda run, x, y: (backward(model, x, y), mixed.step()))


def test_an_inner_loop_may_step_an_optimizer_of_its_own_parameters(caplog: pytest.LogCaptureFixture) -> None:
    """Adversarial examples and latent codes: what is trained lives in one item."""
    caplog.set_level(logging.WARNING)
    model = net()
    moved: list[bool] = []

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        shift = torch.zeros_like(x, requires_grad=True)
        inner = torch.optim.SGD([shift], lr=1.0)
        with run.inner_loop():
            (-cross_entropy(model(x + shift), y)).backward(inputs=[shift])  # type: ignore[no-untyped-call]
            inner.step()
        moved.append(bool(shift.detach().abs().sum()))
        backward(model, x + shift.detach(), y)
        run.step()

    loop(model, body)
    assert moved == [True] * 5
    assert not caplog.records


def test_an_inner_loop_must_not_step_the_model() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        backward(model, x, y)
        with run.inner_loop():
            optimizer.step()

    with pytest.raises(BadInput, match=r"SGD.step\(\) was called by hand, with this member's gradients alone"):
        loop(model, body, optimizer=optimizer)


class Repeating(torch.optim.SGD):
    """An optimizer of a user that calls its closure as often as it likes."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return closure()


def test_an_optimizer_that_computes_the_loss_again_within_a_step_is_refused_before_training() -> None:
    model = net()
    with pytest.raises(BadInput) as raised:
        start(model, Repeating(model.parameters(), lr=0.1))
    assert raised.value.why == (
        "Repeating needs a closure that computes the loss several times in one step. Pliant reduces one gradient in "
        "each step: use an optimizer without a closure, such as AdamW."
    )
    with pytest.raises(BadInput) as raised:
        start(model, torch.optim.LBFGS(model.parameters()))
    assert raised.value.why == (
        "LBFGS with max_iter=20 and line_search_fn=None computes the loss several times in one step, and Pliant "
        "reduces one gradient in each step. Pass max_iter=1 and no line_search_fn: every step is then one iteration, "
        "and the next step continues."
    )
    once = torch.optim.LBFGS(model.parameters(), max_iter=1)
    with pytest.raises(BadInput, match="LBFGS cannot be used with a scaler"):
        start(model, once, scaler=torch.amp.GradScaler("cpu"))


def test_optimizers_may_be_stepped_once_the_run_is_complete() -> None:
    """Without `with`, as one types it in a notebook."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job = pliant.join()
    for x, y in (run := job.train(model, optimizer, points(), batch_size=4)):
        backward(model, x, y)
        run.step()
    backward(model, *points().tensors)
    optimizer.step()
    job.__exit__(None, None, None)


def test_gradients_changed_by_hand_where_they_are_not_yet_global() -> None:
    """Every script that clips by itself does this; some reductions may have started already."""
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        backward(model, x, y)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        run.step()

    with pytest.raises(BadInput, match="clip_norm"):
        loop(model, body)


def test_gradients_changed_between_reduce_and_apply_are_the_users_business() -> None:
    model = net()
    before = [param.detach().clone() for param in model.parameters()]

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        backward(model, x, y)
        assert run.reduce()
        for param in model.parameters():
            assert param.grad is not None
            param.grad.zero_()
        run.apply()

    loop(model, body)
    assert all(torch.equal(param, was) for param, was in zip(model.parameters(), before, strict=True))


def test_optimizers_are_free_again_afterwards() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start(model, optimizer)
    model(torch.zeros(1, 4)).sum().backward()
    optimizer.step()


def test_two_weights_for_one_part() -> None:
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        run.backward(cross_entropy(model(x), y), weight=3)
        run.backward(cross_entropy(model(x), y), weight=1)

    with pytest.raises(BadInput, match="one weight"):
        loop(model, body)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weights_that_are_none(weight: float) -> None:
    model = net()

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        run.backward(cross_entropy(model(x), y), weight=weight)
        run.step()

    with pytest.raises(BadInput, match="weight"):
        loop(model, body)


def test_sparse_gradients() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    data = TensorDataset(torch.randint(0, 5, (8, 3)), torch.zeros(8))
    with pytest.raises(BadInput, match="sparse"):
        loop(model, lambda run, x, y: (model(x).sum().backward(), run.step()), dataset=data)


def test_a_parameter_that_is_unfrozen_later_is_refused() -> None:
    """Silently left out of the reduction, it would be another one on every member."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[0].requires_grad_(False)

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        if run.step_number == 3:
            model[0].requires_grad_(True)
        backward(model, x, y)
        run.step()

    with pytest.raises(BadInput, match="requires_grad"):
        loop(model, body, optimizer=optimizer)


class Late(nn.Module):
    """Begins to move its buffer in the third step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 2), 0
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 2:
            self.get_buffer("seen").add_(1.0)
        out: Tensor = self.linear(x)
        return out


def test_a_buffer_that_moves_late_is_refused() -> None:
    model = Late()
    with pytest.raises(BadInput, match="buffer seen moved for the first time"):
        loop(model, lambda run, x, y: (backward(model, x, y), run.step()))


def nested(model: nn.Module, *, enter: bool) -> None:
    with training(model, epochs=3) as run:
        for epoch in run.epochs():
            for x, y in epoch if enter else ():
                backward(model, x, y)
                run.step()
                break


@pytest.mark.parametrize("enter", [True, False])
def test_a_nested_loop_left_early(enter: bool) -> None:
    with pytest.raises(BadInput, match="ended early"):
        nested(net(), enter=enter)


def test_too_many_names_logged() -> None:
    with pytest.raises(BadInput, match="at most 8"):
        loop(net(), lambda run, x, y: run.log(**{f"n{at}": 1.0 for at in range(9)}))


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_cell_of_a_notebook_may_run_again(interrupted: bool, caplog: pytest.LogCaptureFixture) -> None:
    """As one types it: without `with`, and perhaps stopped in the middle."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        job = pliant.join()
        for x, y in (run := job.train(model, optimizer, points(), batch_size=4)):
            backward(model, x, y)
            run.step()
            if interrupted:
                break
    job.__exit__(None, None, None)
    backward(model, *points().tensors)
    optimizer.step()


def nan_in_step(model: nn.Module, step: int) -> Body:
    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        loss = cross_entropy(model(x), y)
        run.backward(loss * float("nan") if run.step_number == step else loss)
        run.step()

    return body


def test_a_gradient_that_is_not_finite_ends_training_before_a_weight_is_changed() -> None:
    model = net()
    before: list[Tensor] = []

    def body(run: pliant.Run, x: Tensor, y: Tensor) -> None:
        if run.step_number == 3:
            before.extend(param.detach().clone() for param in model.parameters())
        nan_in_step(model, 3)(run, x, y)

    with pytest.raises(NonFiniteGradient) as raised:
        loop(model, body)
    assert raised.value.why == (
        "The gradient of step 3 is not finite (first in weight), so the step was not applied. Look at the loss and the "
        'learning rate, or pass nonfinite="skip" to job.train to leave such steps out.'
    )
    assert all(torch.equal(param, was) for param, was in zip(model.parameters(), before, strict=True))


def test_a_step_that_is_not_finite_can_be_left_out() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))
    with training(model, nonfinite="skip") as run:
        for x, y in run:
            body = nan_in_step(model, 1)
            before = [tensor.clone() for tensor in model.state_dict().values()]
            body(run, x, y)
            same = [torch.equal(was, now) for was, now in zip(before, model.state_dict().values(), strict=True)]
            assert all(same) if run.step_number == 1 else not any(same)
    assert run.complete
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


def test_the_check_for_finite_gradients_can_be_turned_off() -> None:
    model = net()
    loop(model, nan_in_step(model, 2), nonfinite="ignore")
    assert all(bool(param.isnan().all()) for param in model.parameters())


# ------------------------------------------------------------------------------------------------ exceptions


def test_an_exception_in_user_code_is_the_users() -> None:
    with pytest.raises(ZeroDivisionError):
        loop(net(), lambda run, x, y: 1 / 0)


class Rotten(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if index == 13:
            raise ValueError("rotten")
        return tuple(tensor[index] for tensor in self.tensors)


def test_data_that_raises_names_the_sample() -> None:
    with pytest.raises(SampleError, match=r"(?s)sample 13 .*rotten"):
        loop(net(), lambda run, x, y: run.step(), dataset=Rotten(*points().tensors))


def test_a_loop_left_early_ends_the_training_after_its_last_step() -> None:
    model = net()
    with training(model) as run:
        for x, y in run:
            backward(model, x, y)
            run.step()
            break
    assert (run.complete, run.step_number) == (True, 1)


def test_left_is_a_system_exit_with_its_code_and_why() -> None:
    left = pliant.Left(75, "fenced")
    assert isinstance(left, SystemExit)
    assert not isinstance(left, Exception)
    assert (left.code, left.why, str(left)) == (75, "fenced", "fenced")


def test_left_ends_the_process_quietly_with_its_code() -> None:
    program = "from pliant.train.live.loop import Left\nraise Left(75, 'fenced')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (75, b"", b"")


def leave(error: BaseException | None, *cleaning: Callable[[], object]) -> None:
    with pliant.join() as job:
        for fn in cleaning:
            job.on_leave(fn)  # type: ignore[arg-type]
        if error is not None:
            raise error


def test_on_leave_runs_when_a_member_leaves_and_not_otherwise() -> None:
    called: list[str] = []
    with pytest.raises(pliant.Left):
        leave(pliant.Left(0, "drained"), lambda: called.append("first"), lambda: called.append("second"))
    assert called == ["first", "second"]
    with pytest.raises(KeyError):
        leave(KeyError(), lambda: called.append("third"))
    leave(None, lambda: called.append("fourth"))
    assert called == ["first", "second"]


def test_an_on_leave_that_raises_does_not_change_how_it_left() -> None:
    called: list[str] = []
    with pytest.raises(pliant.Left) as left:
        leave(pliant.Left(75, "fenced"), lambda: 1 / 0, lambda: called.append("next"))
    assert left.value.code == 75
    assert called == ["next"]
