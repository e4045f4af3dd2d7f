"""Gradients added up along the tree: the same bits, whichever member computed them (rule 23)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pliant.core.member.signals import Shares
from pliant.torch.reduce import buckets as buckets_module
from pliant.torch.reduce import deterministic as treed_module
from unit.torch.treed import Case, Member, alone, batch, loss_of, net, steps
from unit.torch.wired import wired
from unit.torch.wires import ranks, same_bits, together

pytestmark = pytest.mark.timeout(240)

SLOTS = 7
PLAIN = Case(net, SLOTS, loss_of)


@contextmanager
def in_process(size: int) -> Iterator[Sequence[Any]]:
    yield ranks(size)


@pytest.fixture(params=[in_process, wired], ids=["a strict wire", "tcp"])
def wires(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["one small bucket", "one bucket", "a bucket for each parameter"])
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "one bucket":
        monkeypatch.setattr(treed_module, "_AT_ONCE_BYTES", -1)
    elif request.param == "a bucket for each parameter":
        monkeypatch.setattr(buckets_module, "FIRST_BYTES", 1)
        monkeypatch.setattr(buckets_module, "BUCKET_BYTES", 1)
    return str(request.param)


DEALT: dict[str, Shares] = {
    "one": ((0, 1, 2, 3, 4, 5, 6),),
    "two": ((0, 1, 2, 3), (4, 5, 6)),
    "two, uneven": ((0, 1, 2, 3, 4, 5), (6,)),
    "two, no runs": ((0, 2, 4, 6), (1, 3, 5)),
    "two, one without slots": ((0, 1, 2, 3, 4, 5, 6), ()),
    "three": ((0, 1), (2, 3, 4), (5, 6)),
    "three, no runs": ((6, 0), (1, 4, 3), (2, 5))[::-1],
    "three, the first without slots": ((), (0, 1, 2, 5), (3, 4, 6)),
    "four": ((0,), (1, 2), (3, 4), (5, 6)),
    "four, uneven": ((5,), (0, 1, 2, 3, 4), (), (6,)),
}


@pytest.mark.parametrize("how", DEALT)
def test_the_bits_are_those_of_one_member_with_all_slots(how: str, buckets: str, wires: Any) -> None:
    shares = tuple(tuple(sorted(share)) for share in DEALT[how])
    expected = alone(PLAIN, 1, 2, 3)
    with wires(len(shares)) as groups:
        found = steps(PLAIN, groups, shares, shares, shares)
    for by_rank, one in zip(found, expected, strict=True):
        assert all(each.same(one) for each in by_rank)


@given(st.data())
@settings(max_examples=40)
def test_any_shares_in_any_step_give_the_same_bits(data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 20), "slots")
    size = data.draw(st.integers(1, min(4, slots)), "members")
    case = Case(net, slots, loss_of, short=max(1, slots - 3))
    dealt = []
    for step in (1, 2):
        owners = data.draw(
            st.lists(st.integers(0, size - 1), min_size=case.filled(step), max_size=case.filled(step)), "owners"
        )
        dealt.append(tuple(tuple(s for s, owner in enumerate(owners) if owner == rank) for rank in range(size)))
    found = steps(case, ranks(size), *dealt)
    for by_rank, one in zip(found, alone(case, 1, 2), strict=True):
        assert all(each.same(one) for each in by_rank)


def test_the_sum_is_right(buckets: str) -> None:
    """Against plain autograd over all samples in double precision."""
    case = Case(partial(net, torch.float64), SLOTS, loss_of)
    (found,) = alone(case, 1)
    model = net(torch.float64)
    total = sum(case.weight(slot) * loss_of(model, 1, slot) for slot in range(SLOTS))
    weight = sum(case.weight(slot) for slot in range(SLOTS))
    (cast(Tensor, total) / weight).backward()  # type: ignore[no-untyped-call]
    assert found.reduced.weight == weight
    for param, grad in zip(model.parameters(), found.grads, strict=True):
        assert grad is not None
        assert param.grad is not None
        assert torch.allclose(param.grad, grad, rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
def test_who_follows_adds_nothing_and_gets_the_same_bits(size: int, buckets: str, wires: Any) -> None:
    shares: Shares = ((0, 1, 2, 3), (4, 5, 6), ())[3 - size :]
    if size == 2:
        shares = (tuple(range(SLOTS)), ())
    members = [Member(PLAIN) for _ in range(size)]

    def follow(group: Any) -> Any:
        return members[-1].apply(*members[-1].reduce(group, shares, follow=True))

    with wires(size) as groups:
        acts = [partial(m.step, 1, group, shares) for m, group in zip(members[:-1], groups, strict=False)]
        *found, followed = together(*acts, partial(follow, groups[-1]))
    (expected,) = alone(PLAIN, 1)
    assert all(each.same(expected) for each in found)
    assert followed.same(expected)


@pytest.mark.parametrize("shares", [((0, 1), ()), ((0,), (1,))])
@pytest.mark.usefixtures("buckets")
def test_a_negative_zero_stays_one(shares: Shares, wires: Any) -> None:
    """Zeros of members that have nothing to add would turn it into a positive one."""

    def loss(model: nn.Module, step: int, slot: int) -> Tensor:
        return (next(model.parameters()) * torch.tensor([-0.0, 0.0, 1e-45])).sum()

    case = Case(lambda: nn.Linear(3, 1, bias=False), 2, loss, weight=lambda slot: 1.0)
    with wires(len(shares)) as groups:
        (found,) = steps(case, groups, shares)
    for each in found:
        assert same_bits(each.reduced.buckets[0], torch.tensor([-0.0, 0.0, 3e-45]))


class Fickle(nn.Module):
    """Parameters that some slots use, one that none does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.rarely, self.never = nn.Linear(7, 2), nn.Linear(7, 2), nn.Linear(7, 2)

    def forward(self, x: Tensor, slot: int) -> Tensor:
        out: Tensor = self.always(x) + self.rarely(x) if slot in (2, 5) else self.always(x)
        return out


@pytest.mark.parametrize("how", ["one", "two", "two, one without slots", "three", "four"])
def test_a_parameter_without_a_gradient_in_some_slots_has_one_where_any_slot_has(how: str, buckets: str) -> None:
    case = Case(Fickle, SLOTS, lambda model, step, slot: model(batch(step, slot), slot).square().mean())
    (found,) = steps(case, ranks(len(DEALT[how])), DEALT[how])
    (expected,) = alone(case, 1)
    assert [grad is not None for grad in expected.grads] == [True, True, True, True, False, False]
    assert all(each.same(expected) for each in found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("how", ["two", "three"])
def test_other_types_give_the_same_bits_and_halves_are_summed_in_single_precision(
    dtype: torch.dtype, how: str, wires: Any
) -> None:
    def loss(model: nn.Module, step: int, slot: int) -> Tensor:
        out: Tensor = model(batch(step, slot).to(dtype).clamp(-9, 9))
        return (out * 3).square().mean()

    case = Case(partial(net, dtype), SLOTS, loss)
    with wires(len(DEALT[how])) as groups:
        (found,) = steps(case, groups, DEALT[how])
    (expected,) = alone(case, 1)
    assert all(each.same(expected) for each in found)
    assert {grad.dtype for grad in expected.grads if grad is not None} == {dtype}
    sums = torch.float64 if dtype is torch.float64 else torch.float32
    assert {bucket.dtype for bucket in expected.reduced.buckets if len(bucket)} == {sums}


@pytest.mark.parametrize("how", ["one", "two", "three", "four, uneven"])
def test_a_slot_without_weight_adds_nothing_even_if_it_is_no_number(how: str, buckets: str) -> None:
    def loss(model: nn.Module, step: int, slot: int) -> Tensor:
        return loss_of(model, step, slot) * (float("nan") if slot in (0, 3, 6) else 1.0)

    case = Case(net, SLOTS, loss, weight=lambda slot: 0.0 if slot in (0, 3, 6) else 2.0)
    found = steps(case, ranks(len(DEALT[how])), DEALT[how], DEALT[how])
    for by_rank, one in zip(found, alone(case, 1, 2), strict=True):
        assert one.reduced.weight == 8.0
        assert all(bool(grad.isfinite().all()) for grad in one.grads if grad is not None)
        assert all(each.same(one) for each in by_rank)


def test_a_step_in_which_nothing_has_weight_gives_no_gradient() -> None:
    case = Case(net, 2, loss_of, weight=lambda slot: 0.0)
    (found,) = steps(case, ranks(2), ((0,), (1,)))
    for each in found:
        assert each.grads == [None] * 4
        assert each.reduced.weight == 0.0
        assert each.reduced.means == ()


@pytest.mark.parametrize("how", [each for each in DEALT if each != "one"])
def test_buffers_move_alike_whoever_moved_them(how: str, wires: Any) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))

    case = Case(model, SLOTS, lambda model, step, slot: model(batch(step, slot)).square().mean())
    shares = tuple(tuple(sorted(share)) for share in DEALT[how])
    with wires(len(shares)) as groups:
        found = steps(case, groups, shares, shares)
    for by_rank, one in zip(found, alone(case, 1, 2), strict=True):
        assert all(each.same(one) for each in by_rank)
    mean = one.buffers[0]
    assert mean.dtype is torch.float32
    assert bool((mean != 0).all())


def test_what_was_logged_is_the_same_number_everywhere() -> None:
    (expected,) = alone(PLAIN, 1)
    for how in ("two, no runs", "three", "four"):
        (found,) = steps(PLAIN, ranks(len(DEALT[how])), DEALT[how])
        assert all(each.reduced.means == expected.reduced.means for each in found)
    losses = [loss_of(net(), 1, slot).item() for slot in range(SLOTS)]
    weights = [PLAIN.weight(slot) for slot in range(SLOTS)]
    mean = sum(w * value for w, value in zip(weights, losses, strict=True)) / sum(weights)
    assert expected.reduced.means[0] == pytest.approx(mean)
