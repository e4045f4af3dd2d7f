"""Things that once differed between members or between histories, and must not."""

from typing import Any

import pytest
import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.determinism import DeterminismOptions
from pliant.torch.reduce import deterministic as treed_module
from pliant.torch.reduce.deterministic import DeterministicReducer
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.training_state import TrainingState
from pliant.train.data.loader import MicroBatch
from pliant.train.live.state_hash import StateHash
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.state.transfer import copy_state
from unit.torch.treed import CPU, Case, Member, alone, loss_of, net, steps
from unit.torch.wires import ranks, together

FOUR = Case(net, 4, loss_of)
ONE_EACH = ((0,), (1,), (2,), (3,), (), (), (), ())


@pytest.fixture
def nothing_rides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(treed_module, "_AT_ONCE_BYTES", -1)


@pytest.mark.usefixtures("nothing_rides")
def test_a_world_may_have_more_ranks_than_slots() -> None:
    """While every member is replaced, old and new are in it together."""
    expected = alone(FOUR, 1, 2, 3)
    found = steps(FOUR, ranks(8), ONE_EACH, ONE_EACH, ONE_EACH)
    assert all(each.same_gradients(one) for row, one in zip(found, expected, strict=True) for each in row)


@pytest.mark.usefixtures("nothing_rides")
def test_a_world_may_grow_beyond_the_slots_later() -> None:
    expected = alone(FOUR, 1, 2, 3, 4)
    members = [Member(FOUR) for _ in range(8)]
    for step in (1, 2):
        together(
            *[
                lambda m=m, g=g, step=step: m.step(step, g, ((0, 1), (2, 3)))
                for m, g in zip(members[:2], ranks(2), strict=True)
            ]
        )
    for step in (3, 4):
        for member in members[2:]:
            member.buffers.learn(members[0].buffers.moving)
        found = together(
            *[lambda m=m, g=g, step=step: m.step(step, g, ONE_EACH) for m, g in zip(members, ranks(8), strict=True)]
        )
        assert all(each.same_gradients(expected[step - 1]) for each in found)


def test_a_gradient_that_arrives_lies_in_memory_like_its_parameter() -> None:
    """A norm is summed in the order of memory: another layout, another norm."""

    def pictures() -> nn.Module:
        torch.manual_seed(4)
        return nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    def loss(model: nn.Module, step: int, slot: int) -> Any:
        chance = torch.Generator().manual_seed(100 * step + slot)
        return model(torch.randn(2, 3, 6, 6, generator=chance)).square().mean()

    case = Case(pictures, 4, loss)
    found = steps(case, ranks(3), ((0, 1), (2, 3), ()))[0]
    strides = {tuple(grad.stride() for grad in each.grads if grad is not None) for each in found}
    assert len(strides) == 1


def test_a_group_that_goes_before_it_is_waited_for_leaves_nothing_behind() -> None:
    """Else the next world's reduction would begin in the middle."""
    (expected,) = alone(FOUR, 1)
    members = [Member(FOUR) for _ in range(2)]
    shares = ((0, 1), (2, 3))
    for member in members:
        member.reducer._overlaps = True
    together(*[lambda m=m, g=g: m.compute_rest(1, g, shares) for m, g in zip(members, ranks(2, 0), strict=True)])
    for member in members:
        member.reducer.abandon()
        member.reducer.end_part()
    found = together(*[lambda m=m, g=g: m.step(1, g, shares) for m, g in zip(members, ranks(2), strict=True)])
    assert all(each.same(expected) for each in found)


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_who_checks_a_slot_and_who_owns_it_hash_the_same(weight: float) -> None:
    def hashed(*, owner: bool) -> int:
        model = net()
        reducer = DeterministicReducer(model, Buffers(model), StepMetrics(), CPU, FOUR.grid, lambda _step, _slot: True)
        reducer.begin_part(MicroBatch(1, (2,)), weight, None, ((0, 1), (2, 3)), idle=not owner)
        reducer.weigh(weight)
        loss_of(model, 1, 2).backward()  # type: ignore[no-untyped-call]
        if owner:
            if not weight:
                reducer.drop_part()
            reducer.end_part()
        else:
            reducer.keep_spot_hash(2)
        reducer.close()
        return reducer._hashes[2]

    assert hashed(owner=True) == hashed(owner=False)


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD, torch.optim.AdamW])
def test_a_state_that_travelled_has_the_hash_it_had(kind: Any) -> None:
    """torch casts what an optimizer keeps for a half-precision parameter, unless it is put back."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
        model = net(torch.bfloat16)
        optimizer = kind(model.parameters(), lr=0.01)
        return model, optimizer, TrainingState(model, [optimizer], Buffers(model), {})

    model, optimizer, state = made()
    for step in range(3):
        loss_of(model, step, 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    _, _, twin = made()
    twin.install(copy_state(state.capture()))
    assert StateHash(twin, 1).whole() == StateHash(state, 1).whole()


def test_a_rate_that_is_set_for_a_step_does_not_change_what_is_said_of_the_state_before_it() -> None:
    """The position of a member in its loop must not show in a comparison."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hashes = StateHash(TrainingState(model, [optimizer], Buffers(model), {}), 1)
    hashes.at_boundary(0)
    before = hashes.whole()
    optimizer.param_groups[0]["lr"] = 0.2
    assert hashes.after_backward() == before
    next(model.parameters()).detach().view(-1)[0] += 1
    assert hashes.after_backward() != before


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"verify": -1}, "number of steps between two comparisons"),
        ({"verify_slots": 1.5}, "from 0 to 1"),
        ({"verify_slots": 0.5, "deterministic": False}, "deterministic=True"),
    ],
)
def test_settings_that_say_nothing_are_refused(wrong: dict[str, Any], says: str) -> None:
    right = {"seed": 0, "deterministic": True, "other_bits": False, "verify": 0, "verify_slots": 0.0}
    with pytest.raises(BadInput, match=says):
        DeterminismOptions(**{**right, **wrong})
