"""Buffers that a forward pass moves: taken down, undone, and moved once by the apply (rule 14, H14)."""

import pytest
import torch
from torch import Tensor, nn

from pliant.errors import BadInput
from pliant.torch.state.buffers import Buffers


class Counter(nn.Module):
    """Moves one buffer, leaves another, and has some that no forward pass can move."""

    mean: Tensor
    steps: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("table", torch.arange(4.0))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x: Tensor) -> None:
        self.get_buffer("mean").mul_(0.9).add_(x, alpha=0.1)
        self.get_buffer("steps").add_(1)


def room_for(buffers: Buffers) -> Tensor:
    return torch.full((buffers.numel,), 99.0)


def moving(buffers: Buffers) -> tuple[str, ...] | None:
    return buffers.moving


def filled(buffers: Buffers) -> Tensor:
    room = room_for(buffers)
    buffers.fill(room)
    return room


def one_step(model: Counter, buffers: Buffers, *parts: tuple[float, float]) -> None:
    """Parts of one step: weight, and what is seen."""
    for weight, value in parts:
        model(torch.full((2,), value))
        buffers.end_part(weight, drop=False)
    buffers.apply(filled(buffers), sum(weight for weight, _ in parts))
    buffers.rebase()  # the boundary


def test_a_part_leaves_no_trace_until_the_step_is_applied() -> None:
    model = Counter()
    buffers = Buffers(model)
    model(torch.ones(2))
    assert model.mean.tolist() == pytest.approx([0.1, 0.1])
    buffers.end_part(4.0, drop=False)
    assert model.mean.tolist() == [0.0, 0.0]
    assert model.steps.item() == 0
    buffers.apply(filled(buffers), 4.0)
    assert model.mean.tolist() == pytest.approx([0.1, 0.1])
    assert model.steps.item() == 1


def test_every_part_starts_from_the_boundary_and_counts_by_its_weight() -> None:
    model = Counter()
    one_step(model, Buffers(model), (3.0, 1.0), (1.0, 5.0))
    assert model.mean.tolist() == pytest.approx([0.1 * (3 + 5) / 4] * 2)
    assert model.steps.item() == 1  # a step is one step, however many parts it has


def test_several_members_move_by_the_mean_of_all() -> None:
    """Two members, one reduction."""
    models = [Counter(), Counter()]
    both = [Buffers(model) for model in models]
    for model, buffers, value in zip(models, both, (1.0, 3.0), strict=True):
        model(torch.full((2,), value))
        buffers.end_part(2.0, drop=False)
    total = filled(both[0]) + filled(both[1])
    for model, buffers in zip(models, both, strict=True):
        buffers.apply(total, 4.0)
        assert model.mean.tolist() == pytest.approx([0.2, 0.2])
        assert model.steps.item() == 1


def test_of_an_idle_part_nothing_is_kept() -> None:
    model = Counter()
    buffers = Buffers(model)
    model(torch.full((2,), 77.0))
    buffers.end_part(5.0, drop=True)
    assert model.mean.tolist() == [0.0, 0.0]
    assert filled(buffers).count_nonzero() == 0


def test_a_step_that_is_given_up_is_forgotten() -> None:
    model = Counter()
    buffers = Buffers(model)
    model(torch.full((2,), 77.0))
    buffers.end_part(5.0, drop=False)
    buffers.drop_staged()
    one_step(model, buffers, (1.0, 1.0))
    assert model.mean.tolist() == pytest.approx([0.1, 0.1])


def test_what_moves_is_learnt_in_the_first_step() -> None:
    model = Counter()
    buffers = Buffers(model)
    assert moving(buffers) is None
    before = buffers.numel
    one_step(model, buffers, (1.0, 1.0))
    assert sorted(moving(buffers) or ()) == ["mean", "steps"]
    assert buffers.numel < before
    one_step(model, buffers, (1.0, 1.0))
    assert model.steps.item() == 2


def test_a_member_idle_in_the_first_step_learns_with_the_others() -> None:
    """It must lay out its next reduction as they do."""
    models = [Counter(), Counter()]
    worker, idler = (Buffers(model) for model in models)
    models[0](torch.ones(2))
    worker.end_part(2.0, drop=False)
    models[1](torch.ones(2))
    idler.end_part(2.0, drop=True)
    total = filled(worker) + filled(idler)
    worker.apply(total, 2.0)
    idler.apply(total, 2.0)
    assert worker.moving == idler.moving
    assert models[1].mean.tolist() == models[0].mean.tolist()


def test_a_joiner_takes_over_what_was_learnt() -> None:
    model = Counter()
    buffers = Buffers(model)
    buffers.learn(["mean", "steps"])
    assert buffers.moving == ("mean", "steps")
    one_step(model, buffers, (1.0, 1.0))
    assert model.steps.item() == 1


def test_a_donor_gives_the_state_of_the_boundary() -> None:
    model = Counter()
    buffers = Buffers(model)
    one_step(model, buffers, (1.0, 1.0))
    model(torch.full((2,), 50.0))
    given = buffers.at_boundary("mean")
    assert given is not None
    assert given.tolist() == pytest.approx([0.1, 0.1])
    assert buffers.at_boundary("table") is None


def test_buffers_that_move_late_are_refused() -> None:
    model = Counter()
    buffers = Buffers(model)
    one_step(model, buffers, (1.0, 1.0))
    model.table.add_(1.0)
    with pytest.raises(BadInput, match="buffer table moved for the first time"):
        buffers.end_part(1.0, drop=False)


def test_nothing_weighs_nothing() -> None:
    """A step whose whole weight is zero must not make buffers not-a-number."""
    model = Counter()
    one_step(model, Buffers(model), (0.0, 1.0))
    assert model.mean.isfinite().all()


def test_a_model_without_buffers_costs_nothing() -> None:
    buffers = Buffers(nn.Linear(2, 2))
    assert buffers.numel == 0
    assert buffers.moving == ()


class Assigning(nn.Module):
    """Replaces its buffer instead of changing it, as much code in the world does."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * x


def test_a_buffer_that_is_assigned_is_one_that_moves() -> None:
    model = Assigning()
    buffers = Buffers(model)
    for step in range(2):
        for value in (1.0, 3.0):
            model(torch.full((2,), value))
            buffers.end_part(1.0, drop=False)
            assert model.mean.tolist() == pytest.approx([0.2 * step] * 2), "the next part must start from the boundary"
        buffers.apply(filled(buffers), 2.0)
        buffers.rebase()
        assert model.mean.tolist() == pytest.approx([0.2 if not step else 0.38] * 2)
