"""One member, no coordinator: a script as a user writes it, against the same training in plain PyTorch."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, TensorDataset

import pliant.torch as pliant
from pliant.core.data.grid import Grid
from pliant.errors import BadInput
from pliant.train.data.loader import SampleIndices

SAMPLES, BATCH, EPOCHS, SEED = 45, 8, 2, 7  # the last step of an epoch has 5 samples
STEPS = 12


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def made(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(dtype: torch.dtype = torch.float32) -> TensorDataset:
    x = torch.randn(SAMPLES, 6, generator=made(1), dtype=dtype)
    return TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.3).long())


def net(*more: nn.Module, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), *more, nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def batches(epochs: int = EPOCHS, order: Any = "shuffled", slots: int = BATCH) -> list[Tensor]:
    """The samples of every step, in the canonical order."""
    grid = Grid(SAMPLES, BATCH, slots, epochs)
    indices = SampleIndices(grid, seed=SEED, order=order)
    return [
        torch.cat([torch.tensor(indices.of(step, slot)) for slot in grid.filled(step)])
        for step in range(1, grid.total_steps + 1)
    ]


@contextmanager
def training(model: nn.Module, optimizer: Any, dataset: Any, **more: Any) -> Iterator[pliant.Run]:
    with pliant.join() as job:
        yield job.train(model, optimizer, dataset, **{"batch_size": BATCH, "epochs": EPOCHS, "seed": SEED, **more})


def weights(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def close(one: list[Tensor], other: list[Tensor], within: float) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=within) for a, b in zip(one, other, strict=True))


def plain(
    model: nn.Module,
    dataset: TensorDataset,
    rate: float = 1e-2,
    after: Callable[[nn.Module], None] = lambda _: None,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> list[float]:
    """The same without Pliant; the loss of each step."""
    optimizer = make(model.parameters(), lr=rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    losses = []
    for chosen in batches():
        x, y = (tensor[chosen] for tensor in dataset.tensors)
        loss = cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        after(model)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        losses.append(loss.item())
    return losses


def test_the_example_comes_to_the_bits_of_plain_pytorch() -> None:
    dataset, model = points(), net()
    expected = copy.deepcopy(model)
    losses = plain(expected, dataset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    seen = []
    with pliant.join() as job:
        run = job.train(
            model, optimizer, dataset, batch_size=BATCH, epochs=EPOCHS, seed=SEED, state={"scheduler": scheduler}
        )
        for x, y in run:
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            run.log(loss=loss)
            if run.step():
                scheduler.step()
                seen.append(run.metrics["loss"])
    assert same_bits(weights(model), weights(expected))
    assert seen == losses
    assert scheduler.last_epoch == STEPS


def test_what_a_run_says_about_itself() -> None:
    model = net()
    told = []
    with training(model, torch.optim.SGD(model.parameters(), lr=0.1), points()) as run:
        assert run.total_steps == STEPS
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            told.append((run.step_number, run.epoch, len(y), run.rank, run.size, run.generation))
            assert run.step()
    sizes = [8, 8, 8, 8, 8, 5] * 2
    assert told == [(step, (step - 1) // 6, sizes[step - 1], 0, 1, 1) for step in range(1, 13)]


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_micro_batches_come_to_the_same_up_to_rounding(micro_batch: int) -> None:
    dataset, model = points(torch.float64), net(dtype=torch.float64)
    expected = copy.deepcopy(model)
    losses = plain(expected, dataset, make=torch.optim.SGD)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    seen, largest, yields = [], 0, 0
    with training(model, optimizer, dataset, micro_batch=micro_batch, state={"scheduler": scheduler}) as run:
        for x, y in run:
            largest, yields = max(largest, len(y)), yields + 1
            loss = cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            run.log(loss=loss)
            if run.step():
                scheduler.step()
                seen.append(run.metrics["loss"])
    assert largest == micro_batch
    assert yields >= 2 * -(-SAMPLES // micro_batch)
    assert close(weights(model), weights(expected), 1e-13)
    assert seen == pytest.approx(losses, abs=1e-13)


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_token_weights_are_exact(micro_batch: int | None) -> None:
    """Rows of different lengths: a mean of means would be another number; some parts have no token at all."""
    x = torch.randn(SAMPLES, 5, 6, generator=made(1), dtype=torch.float64)
    y = torch.randint(0, 3, (SAMPLES, 5), generator=made(2))
    mask = torch.rand(SAMPLES, 5, generator=made(5)) < torch.rand(SAMPLES, 1, generator=made(6))
    mask[::3] = False
    dataset, model = TensorDataset(x, y, mask), net(dtype=torch.float64)
    expected = copy.deepcopy(model)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for chosen in batches():
        per_token = cross_entropy(expected(x[chosen]).transpose(1, 2), y[chosen], reduction="none")
        (per_token[mask[chosen]].mean()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    with training(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, micro_batch=micro_batch) as run:
        for x, y, mask in run:
            per_token = cross_entropy(model(x).transpose(1, 2), y, reduction="none")
            run.backward(per_token[mask].mean(), weight=mask.sum())
            run.step()
    assert close(weights(model), weights(expected), 1e-13)


def test_parameters_without_a_gradient_are_left_alone() -> None:
    """Weight decay on a gradient of zeros would move them; None leaves them where they are."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = net(), nn.Linear(3, 3)
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.used(x)
            return out

    model = Two()
    before = weights(model.unused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    with training(model, optimizer, points(), micro_batch=4) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.reduce():
                assert all(param.grad is None for param in model.unused.parameters())
                run.apply()
            assert all(param.grad is None for param in model.parameters())
    assert same_bits(weights(model.unused), before)
    assert model.frozen.tolist() == [1.0, 1.0]


def test_batchnorm_moves_once_a_step() -> None:
    dataset, model = points(), net(nn.BatchNorm1d(8))
    expected = copy.deepcopy(model)
    plain(expected, dataset, make=torch.optim.SGD)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    with training(model, optimizer, dataset, state={"scheduler": scheduler}) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step():
                scheduler.step()
    assert close(weights(model), weights(expected), 1e-6)
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == STEPS


def test_batchnorm_with_micro_batches_moves_by_their_mean() -> None:
    model = net(nn.BatchNorm1d(8))
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    expected = torch.zeros(8)
    parts: list[tuple[int, Tensor]] = []
    with training(model, optimizer, points(), micro_batch=4) as run:
        for x, y in run:
            parts.append((len(y), model[0](x).detach().mean(0)))
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step():
                mean = sum(count * each for count, each in parts) / sum(count for count, _ in parts)
                expected = 0.9 * expected + 0.1 * mean
                parts.clear()
                assert torch.allclose(norm.running_mean, expected, atol=1e-5)


def test_autocast_with_a_scaler_and_clipping() -> None:
    model = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
    seen = []
    with training(
        model, torch.optim.SGD(model.parameters(), lr=0.1), points(), scaler=scaler, clip_norm=0.1, micro_batch=4
    ) as run:
        for x, y in run:
            with torch.autocast("cpu", torch.bfloat16):
                loss = cross_entropy(model(x), y)
            run.backward(loss)
            if run.reduce():
                norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
                seen.append(norm.item())  # unscaled, and not yet clipped
                before = weights(model)
                run.apply()
                moved = torch.cat([(a - b).reshape(-1) for a, b in zip(before, weights(model), strict=True)]).norm()
                assert moved.item() <= 0.1 * 0.1 * 1.001
    assert all(0.1 < norm < 10 for norm in seen)
    assert scaler.get_scale() > 2.0**20


def test_a_step_that_overflows_is_skipped_and_the_scale_falls() -> None:
    model = net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = weights(model)
    with training(model, torch.optim.SGD(model.parameters(), lr=0.1), points(), epochs=1, scaler=scaler) as run:
        for x, y in run:
            run.backward(cross_entropy(model(x), y) * (float("inf") if run.step_number == 1 else 1.0))
            assert run.step()
            if run.step_number == 1:
                assert same_bits(weights(model), before)
                assert scaler.get_scale() == 2.0**9
    assert not same_bits(weights(model), before)


def plain_turns(model: nn.Sequential, optimizers: dict[str, torch.optim.Optimizer]) -> None:
    """A loop in plain PyTorch with two steps on one batch, the second after the weights of the first."""
    data = points().tensors
    for taken in batches():
        for turn, optimizer in optimizers.items():
            x, y = (tensor[taken] for tensor in data)
            model.zero_grad()
            (cross_entropy(model(x), y) * (1.0 if turn == "first" else -0.5)).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.1)
            optimizer.step()


def in_turns(model: nn.Sequential) -> dict[str, torch.optim.Optimizer]:
    return {
        "first": torch.optim.Adam(model[0].parameters(), lr=0.01),
        "second": torch.optim.SGD(model[-1].parameters(), lr=0.1),
    }


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_optimizers_in_turns_take_one_step_each_on_every_batch(micro_batch: int | None) -> None:
    expected, model = net(), net()
    plain_turns(expected, in_turns(expected))
    turns: list[str | None] = []
    more = {"micro_batch": micro_batch, "clip_norm": 0.1}
    with training(model, in_turns(model), points(), **more) as run:
        for x, y in run:
            loss = cross_entropy(model(x), y)
            run.backward(loss * (1.0 if run.turn == "first" else -0.5))
            if run.step():
                turns.append(run.turn)
    assert turns == ["first", "second"] * len(batches())
    assert run.total_steps == len(turns)
    assert close(weights(model), weights(expected), 1e-6)


def test_lbfgs_takes_one_iteration_in_each_step() -> None:
    """On the whole data as one batch: 12 steps of one iteration are one step of 12 iterations."""
    data = points(torch.float64)
    theirs, ours = net(dtype=torch.float64), net(dtype=torch.float64)
    whole = torch.optim.LBFGS(theirs.parameters(), lr=0.5, max_iter=12, tolerance_grad=0, tolerance_change=0)

    def closure() -> Tensor:
        whole.zero_grad()
        loss = cross_entropy(theirs(data.tensors[0]), data.tensors[1])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    whole.step(closure)  # type: ignore[no-untyped-call]
    each = torch.optim.LBFGS(ours.parameters(), lr=0.5, max_iter=1, tolerance_grad=0, tolerance_change=0)
    with training(ours, each, data, batch_size=len(data), epochs=12, micro_batch=10) as run:
        for x, y in run:
            run.backward(cross_entropy(ours(x), y))
            run.step()
    assert close(weights(ours), weights(theirs), 1e-9)
    assert not close(weights(ours), weights(net(dtype=torch.float64)), 1e-2)


def test_the_steps_are_known_before_training_for_a_scheduler() -> None:
    model, data = net(), points()
    with pliant.join() as job:
        optimizers = in_turns(model)
        total = job.total_steps(data, batch_size=BATCH, epochs=EPOCHS, turns=len(optimizers))
        assert job.train(model, optimizers, data, batch_size=BATCH, epochs=EPOCHS).total_steps == total
    with pytest.raises(BadInput, match="batch_size must be a whole number of at least 1, got 0"):
        job.total_steps(data, batch_size=0)


def test_several_optimizers_step_together() -> None:
    dataset, model = points(), net()
    expected = copy.deepcopy(model)
    first, second = expected[0], expected[2]
    reference = [torch.optim.SGD(first.parameters(), lr=0.1), torch.optim.Adam(second.parameters(), lr=0.01)]
    for chosen in batches():
        x, y = (tensor[chosen] for tensor in dataset.tensors)
        cross_entropy(expected(x), y).backward()  # type: ignore[no-untyped-call]
        for optimizer in reference:
            optimizer.step()
            optimizer.zero_grad()
    ours = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.01)]
    with training(model, ours, dataset) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
    assert same_bits(weights(model), weights(expected))


@pytest.mark.parametrize("order", ["sequential", lambda epoch: range(SAMPLES - 1, -1, -1) if epoch else range(SAMPLES)])
def test_the_order_is_the_users(order: Any) -> None:
    model = net()
    read: list[int] = []

    class Numbered(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            read.append(index)
            return torch.zeros(6), index % 3

    with training(model, torch.optim.SGD(model.parameters(), lr=0.1), Numbered(), order=order) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
    second = range(SAMPLES) if order == "sequential" else range(SAMPLES - 1, -1, -1)
    assert read == [*range(SAMPLES), *second]


def test_nested_epochs() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    told = []
    with training(model, optimizer, points(), state={"scheduler": scheduler}) as run:
        for epoch in run.epochs():
            rates = set()
            for x, y in epoch:
                cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                run.step()
                rates.add(optimizer.param_groups[0]["lr"])
            scheduler.step()
            told.append((epoch.number, run.epoch, rates))
    assert told == [(0, 0, {0.1}), (1, 1, {0.05})]
    assert run.complete


def test_dropout_draws_the_same_every_time_and_differs_between_steps() -> None:
    """Randomness is keyed by seed, step and slot, whichever member computes it and whenever."""

    def losses(micro_batch: int | None) -> list[float]:
        torch.rand(3)  # whatever was drawn before does not matter
        model, seen = net(nn.Dropout(0.5)), []
        with training(model, torch.optim.SGD(model.parameters(), lr=0.0), points(), micro_batch=micro_batch) as run:
            for x, y in run:
                loss = cross_entropy(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                run.log(loss=loss)
                if run.step():
                    seen.append(run.metrics["loss"])
        return seen

    first = losses(None)
    assert losses(None) == first
    assert len(set(first)) == STEPS


class Drawing(TensorDataset):
    """Draws from every generator while it is read."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        random.random()
        np.random.rand()
        torch.rand(3)
        return tuple(tensor[index] for tensor in self.tensors)


def test_what_user_code_draws_does_not_depend_on_what_reading_draws() -> None:
    def drawn(dataset: TensorDataset) -> list[float]:
        model, found = net(), []
        with training(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset, max_steps=2) as run:
            for x, y in run:
                found += [random.random(), np.random.rand(), torch.rand(1).item()]
                cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                run.step()
                found += [random.random(), np.random.rand(), torch.rand(1).item()]
        return found

    assert drawn(Drawing(*points().tensors)) == drawn(points())


def test_compiled_models() -> None:
    """With the code as torch.compile leaves it when it does not generate any: no compiler is needed for that."""
    dataset, model = points(), net()
    expected = copy.deepcopy(model)
    plain(expected, dataset, make=torch.optim.SGD)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    compiled: Any = torch.compile(model, backend="aot_eager")
    with training(compiled, optimizer, dataset, state={"scheduler": scheduler}) as run:
        for x, y in run:
            cross_entropy(compiled(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step():
                scheduler.step()
    assert close(weights(model), weights(expected), 1e-6)


def test_many_steps_alone_come_to_an_end() -> None:
    """More than fit into one report, and no other member to ask for them."""
    model = nn.Linear(1, 1)
    data = TensorDataset(torch.ones(4, 1))
    with pliant.join() as job:
        run = job.train(model, torch.optim.SGD(model.parameters(), lr=0.0), data, batch_size=2, epochs=350)
        for (x,) in run:
            model(x).mean().backward()
            run.step()
    assert run.step_number == 700


def test_a_run_that_is_complete_yields_nothing_more() -> None:
    model = net()
    with training(model, torch.optim.SGD(model.parameters(), lr=0.0), points(), epochs=1) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            run.step()
        assert list(run) == []
        assert list(run.epochs()) == []


def test_several_backward_calls_add_up() -> None:
    dataset, model = points(torch.float64), net(dtype=torch.float64)
    expected = copy.deepcopy(model)
    with training(model, torch.optim.SGD(model.parameters(), lr=0.1), dataset) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            (0.5 * model(x).square().mean()).backward()
            run.step()
    with training(expected, torch.optim.SGD(expected.parameters(), lr=0.1), dataset) as run:
        for x, y in run:
            (cross_entropy(expected(x), y) + 0.5 * expected(x).square().mean()).backward()
            run.step()
    assert close(weights(model), weights(expected), 1e-13)


class Teacher(nn.Module):
    """A net with a copy of itself in buffers, as teachers and target networks are kept, and statistics beside it."""

    teacher: Tensor
    net: nn.Sequential
    norm: nn.BatchNorm1d

    def __init__(self) -> None:
        super().__init__()
        self.net, self.norm = net(), nn.BatchNorm1d(6)
        self.register_buffer("teacher", torch.zeros(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(self.norm(x))
        return out

    @property
    def first(self) -> Tensor:
        return next(self.net.parameters())

    @property
    def mean(self) -> Tensor:
        found = self.norm.running_mean
        assert found is not None
        return found

    def follow(self) -> None:
        self.teacher.mul_(0.5).add_(self.first.detach(), alpha=0.5)
        self.mean.add_(1.0)


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_buffers_may_be_changed_after_the_step(micro_batch: int | None) -> None:
    """User code between run.step() and the next item belongs to that step (rule 3)."""
    model = Teacher()
    expected, mean = torch.zeros(8, 6), torch.zeros(6)
    parts: list[tuple[int, Tensor]] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with training(model, optimizer, points(), micro_batch=micro_batch) as run:
        for x, y in run:
            parts.append((len(y), x.mean(0)))
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step():
                model.follow()
                expected = 0.5 * expected + 0.5 * model.first.detach()
                seen = torch.stack([count * each for count, each in parts]).sum(0) / sum(count for count, _ in parts)
                mean = 0.9 * mean + 0.1 * seen + 1.0
                parts.clear()
    assert torch.allclose(model.teacher, expected, atol=1e-6)
    assert torch.allclose(model.mean, mean, atol=1e-4)


# ------------------------------------------------------------------------------------------- an early end


def train_until(model: nn.Module, act: Callable[[pliant.Run], bool], **more: Any) -> pliant.Run:
    """Train, and leave the loop once `act` returns True after a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with training(model, optimizer, points(), **more) as run:
        for x, y in run:
            cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            if run.step() and act(run):
                break
    return run


def test_max_steps_ends_the_training_within_an_epoch() -> None:
    steps: list[int] = []
    run = train_until(net(), lambda run: bool(steps.append(run.step_number)), max_steps=4)  # type: ignore[func-returns-value]
    assert (steps, run.total_steps, run.complete) == ([1, 2, 3, 4], 4, True)


@pytest.mark.parametrize("leaves", [True, False])
def test_training_ends_with_the_step_after_which_it_is_finished_or_left(leaves: bool) -> None:
    steps: list[int] = []

    def at_three(run: pliant.Run) -> bool:
        steps.append(run.step_number)
        if run.step_number == 3 and not leaves:
            run.finish("good enough")
        return leaves and run.step_number == 3

    run = train_until(net(), at_three)
    assert (steps, run.complete) == ([1, 2, 3], True)


def test_a_training_cannot_be_finished_within_a_step_or_for_no_text() -> None:
    model = net()
    with training(model, torch.optim.SGD(model.parameters(), lr=0.1), points()) as run:
        next(iter(run))
        with pytest.raises(BadInput, match=r"within a step\. Call it after run\.step"):
            run.finish("now")
        with pytest.raises(BadInput, match="must be a text, got 3"):
            run.finish(3)  # type: ignore[arg-type]
