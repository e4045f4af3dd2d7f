"""Gradients on their way: weighted, kept, sent early, given back, and sent again when a group broke.

The wire is one within this process; the real one is in tests/live.
"""

import copy
import threading
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from pliant.core.data.ledger import Lineage
from pliant.core.member.control_words import Purpose, Word
from pliant.torch.group.tcp import TensorTcpGroup
from pliant.torch.reduce import base as base_module
from pliant.torch.reduce import buckets as buckets_module
from pliant.torch.reduce.buckets import ReducedGradient
from pliant.torch.reduce.floating import FloatingReducer
from pliant.torch.state import step_guard
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.training_state import gradient_from, gradient_state
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import GroupBroken
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.state.transfer import ReceivedState
from unit.torch.wires import ranks as groups
from unit.torch.wires import together

CPU = torch.device("cpu")
PART = MicroBatch(17, (0,))
WORD = Word(Purpose.STEP, 3, 17, Lineage(2, 16, 2**64 - 1), holds=True, samples=8)


class Member:
    """A model with its reducer, and the parts of a step it computes."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.reducer = FloatingReducer(model, Buffers(model), StepMetrics(), CPU)
        self.weight = 0.0

    def part(self, x: Tensor, weight: float | None = None, *, last: TensorTcpGroup | None = None) -> None:
        """One part, all but the step's last; its loss is a mean over what it holds."""
        self.reducer.begin_part(PART, float(len(x)), last, (), idle=False)
        if weight is not None:
            self.reducer.weigh(weight)
        loss(self.model, x).backward()  # type: ignore[no-untyped-call]
        self.weight += self.reducer.weight
        if last is None:
            self.reducer.end_part()

    def reduce(self, group: TensorTcpGroup, *, follow: bool = False) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        found = self.reducer.reduce(group, ControlRow(WORD, self.weight), (), follow=follow)
        self.weight = 0.0
        return found

    @property
    def gradients(self) -> list[Tensor | None]:
        return [param.grad for param in self.model.parameters()]


def loss(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x)
    return out.square().mean(dim=tuple(range(1, out.dim()))).mean()


def net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def data(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(8), dtype=dtype)


def direct(model: nn.Module, x: Tensor) -> list[Tensor]:
    twin = copy.deepcopy(model)
    for param in twin.parameters():
        param.grad = None
    loss(twin, x).backward()  # type: ignore[no-untyped-call]
    return [cast(Tensor, param.grad) for param in twin.parameters()]


def close(one: list[Any], other: list[Any], within: float = 1e-14) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=within) for a, b in zip(one, other, strict=True))


LARGE = "one bucket, filled for each parameter"


@pytest.fixture(
    params=["one bucket", LARGE, "a bucket for each parameter", "one bucket, filled and read with one kernel"]
)
def buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == LARGE:
        monkeypatch.setattr(buckets_module, "SMALL_NUMEL", 0)
    elif "kernel" in request.param:
        monkeypatch.setattr(step_guard, "is_asynchronous", lambda _: True)
    elif request.param != "one bucket":
        monkeypatch.setattr(buckets_module, "FIRST_BYTES", 1)
        monkeypatch.setattr(buckets_module, "BUCKET_BYTES", 1)
    return str(request.param)


def test_uneven_parts_come_to_the_mean_of_the_whole_batch(buckets: str) -> None:
    x = data(12)
    a, b = Member(net()), Member(net())
    one, other = groups(2)
    a.part(x[:3])
    a.part(x[3:4])
    a.part(x[4:9], last=one)
    b.part(x[9:], last=other)
    (rows, first), (_, second) = together(lambda: a.reduce(one), lambda: b.reduce(other))
    assert [row.weight for row in rows] == [9.0, 3.0]
    assert rows[0].word == WORD
    a.reducer.write_gradients(first)
    b.reducer.write_gradients(second)
    assert close(a.gradients, direct(net(), x))
    assert all(torch.equal(cast(Tensor, p), cast(Tensor, q)) for p, q in zip(a.gradients, b.gradients, strict=True))


def test_a_world_of_another_size_uses_the_same_memory(buckets: str) -> None:
    a, members, x = Member(net()), [Member(net()) for _ in range(20)], data(40)
    a.reducer.prepare(2)
    prepared = places(a)
    for size in (2, 5, 16, 3, 20, 2):
        ranks = groups(size)
        share = 40 // size
        world = [a, *members[: size - 1]]
        for at, member in enumerate(world):
            member.part(x[at * share : (at + 1) * share], last=ranks[at])
        results = together(*(partial(each.reduce, rank) for each, rank in zip(world, ranks, strict=True)))
        rows, reduced = results[0]
        assert [row.weight for row in rows] == [share] * size
        a.reducer.write_gradients(reduced)
        assert close(a.gradients, direct(net(), x[: size * share]))
        for each in world:
            each.reducer.drop_part()
        if size <= 16:
            assert places(a) == prepared
        else:
            assert len(set(places(a)) - set(prepared)) == 2
            prepared = places(a)


def test_a_follower_that_was_not_prepared_reduces_like_one_that_was(buckets: str) -> None:
    x, found = data(12), []
    for prepares in (False, True):
        a, follower = Member(net()), Member(net())
        if prepares:
            follower.reducer.prepare(2)
        one, other = groups(2)
        a.part(x, last=one)
        _, (_, followed) = together(partial(a.reduce, one), partial(follower.reduce, other, follow=True))
        found.append(followed.buckets)
    assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))


def places(member: Member) -> list[int]:
    """The addresses of the memory of both turns."""
    return [wire.data_ptr() for memory in member.reducer._memory for wire in memory.wires]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bucket_of_small_parameters_is_filled_at_once_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    x, found = data(6, dtype), []
    for small in (0, 1 << 20):
        monkeypatch.setattr(buckets_module, "SMALL_NUMEL", small)
        a, b = Member(net(dtype)), Member(net(dtype))
        one, other = groups(2)
        a.part(x[:5], 0.7, last=one)
        b.part(x[5:], 0.1, last=other)
        (_, first), _ = together(partial(a.reduce, one), partial(b.reduce, other))
        found.append(first.buckets)
    assert all(torch.equal(p, q) for p, q in zip(*found, strict=True))


def reduced_on_a_gpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, factor: float = 1.0) -> tuple[Member, Member]:
    """Return two members with the gradient of a step, of which one's loss is multiplied by a factor."""
    monkeypatch.setattr(step_guard, "is_asynchronous", lambda _: True)
    x = data(4, dtype)
    a, b = Member(net(dtype)), Member(net(dtype))
    one, other = groups(2)
    a.part(x[:2], last=one)
    b.reducer.begin_part(PART, 2.0, other, (), idle=False)
    (factor * loss(b.model, x[2:])).backward()  # type: ignore[no-untyped-call]
    (_, first), (_, second) = together(partial(a.reduce, one), partial(b.reduce, other))
    a.reducer.write_gradients(first)
    b.reducer.write_gradients(second)
    return a, b


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_known_to_be_finite_by_its_sums(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    for member in reduced_on_a_gpu(monkeypatch, dtype):
        assert member.reducer.is_surely_finite
        member.reducer.drop_part()
        assert not member.reducer.is_surely_finite


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 1e38])
def test_a_gradient_that_may_not_be_finite_is_checked(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    monkeypatch.setattr(base_module, "SURELY_FINITE", 1e30)
    for member in reduced_on_a_gpu(monkeypatch, torch.float32, factor):
        assert not member.reducer.is_surely_finite


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_sums_do_not_tell_of_types_with_another_range(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    for member in reduced_on_a_gpu(monkeypatch, dtype):
        assert not member.reducer.is_surely_finite


def test_a_gradient_that_user_code_changed_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = reduced_on_a_gpu(monkeypatch, torch.float32)
    first, second = next(a.model.parameters()), next(b.model.parameters())
    assert first.grad is not None
    assert second.grad is not None
    first.grad.mul_(0.5)
    second.grad = second.grad * 0.5
    assert not a.reducer.is_surely_finite
    assert not b.reducer.is_surely_finite


def test_buckets_leave_before_backward_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets_module, "BUCKET_BYTES", 1)
    x = data(4)
    a, b = Member(net()), Member(net())
    for step in range(3):
        one, other = groups(2)
        a.part(x[:2], last=one)
        b.part(x[2:], last=other)
        if step:  # in the first one it is learnt that backward runs once
            assert len(one.sent) == 4
            assert len(other.sent) == 4
        else:
            assert not one.sent
        (_, first), (_, second) = together(partial(a.reduce, one), partial(b.reduce, other))
        assert len(one.sent) == 5
        a.reducer.write_gradients(first)
        b.reducer.write_gradients(second)
        assert close(a.gradients, direct(net(), x))
        for member in (a, b):
            member.reducer.drop_part()
            member.reducer.drop_kept()
            member.reducer.swap_buffers()


def test_a_parameter_with_a_gradient_somewhere_has_one_everywhere_and_else_nowhere() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.always, self.rarely, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
            self.use = False

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.always(x) + self.rarely(x) if self.use else self.always(x)
            return out

    a, b = Member(Two()), Member(Two())
    a.model.use = True  # type: ignore[assignment]
    x = data(4, torch.float32)
    one, other = groups(2)
    a.part(x[:2], last=one)
    b.part(x[2:], last=other)
    (_, first), (_, second) = together(lambda: a.reduce(one), lambda: b.reduce(other))
    a.reducer.write_gradients(first)
    b.reducer.write_gradients(second)
    for member in (a, b):
        found = {name: param.grad is not None for name, param in member.model.named_parameters()}
        assert found == {
            f"{part}.{what}": part != "never" for part in ("always", "rarely", "never") for what in ("weight", "bias")
        }


def test_who_follows_adds_nothing_and_gets_everything(buckets: str) -> None:
    x = data(6)
    a, joiner = Member(net()), Member(net())
    one, other = groups(2)
    a.part(x, last=one)
    (_, first), (rows, second) = together(lambda: a.reduce(one), lambda: joiner.reduce(other, follow=True))
    assert sum(row.weight for row in rows) == 6.0
    a.reducer.write_gradients(first)
    joiner.reducer.write_gradients(second)
    assert close(a.gradients, direct(net(), x))
    assert close(joiner.gradients, cast("list[Tensor]", a.gradients), 0.0)


def test_a_step_that_broke_is_finished_from_what_was_kept(buckets: str) -> None:
    """Three compute, one dies in the reduction; what the others have is not computed again (rule 14)."""
    x = data(9)
    a, b = Member(net()), Member(net())
    one, other, _ = groups(3)
    a.part(x[:3], last=one)
    b.part(x[3:6], last=other)
    weights = a.weight, b.weight

    def broken(member: Member, group: Any) -> None:
        with pytest.raises(GroupBroken):
            member.reduce(group)
        member.reducer.end_part()

    threading.Timer(0.1, one.wire.cut).start()
    together(lambda: broken(a, one), lambda: broken(b, other))
    assert all(grad is None for grad in a.gradients)
    a.weight, b.weight = weights
    one, other = groups(2)
    a.part(x[6:8], last=one)
    b.part(x[8:], last=other)
    (rows, first), (_, second) = together(lambda: a.reduce(one), lambda: b.reduce(other))
    assert [row.weight for row in rows] == [5.0, 4.0]
    a.reducer.write_gradients(first)
    b.reducer.write_gradients(second)
    assert close(a.gradients, direct(net(), x))


def test_an_idle_part_is_no_part_of_it() -> None:
    """Of a member that has nothing left to compute what it kept counts, and nothing else (rule 22)."""
    x = data(6)
    a, b = Member(net()), Member(net())
    one, other = groups(2)
    a.part(x[:4])
    a.reducer.begin_part(PART, 2.0, None, (), idle=True)
    loss(a.model, x[4:] * float("nan")).backward()  # type: ignore[no-untyped-call]
    a.reducer.drop_part()
    b.part(x[4:], last=other)
    (_, first), _ = together(lambda: a.reduce(one), lambda: b.reduce(other))
    a.reducer.write_gradients(first)
    assert close(a.gradients, direct(net(), x))


def test_a_part_that_weighs_nothing_is_dropped_not_multiplied(buckets: str) -> None:
    x = data(6)
    a, b = Member(net()), Member(net())
    one, other = groups(2)
    a.part(x[:4], last=one)
    b.part(x[4:] * float("nan"), 0.0, last=other)
    b.reducer.drop_part()
    (_, first), (_, second) = together(lambda: a.reduce(one), lambda: b.reduce(other))
    a.reducer.write_gradients(first)
    b.reducer.write_gradients(second)
    assert close(a.gradients, direct(net(), x[:4]))
    assert close(b.gradients, direct(net(), x[:4]))


def test_a_member_that_missed_the_step_gets_its_gradient(buckets: str) -> None:
    x = data(6)
    a, b, laggard = Member(net()), Member(net()), Member(net())
    one, other = groups(2)
    a.part(x[:3], last=one)
    b.part(x[3:], last=other)
    (_, reduced), _ = together(lambda: a.reduce(one), lambda: b.reduce(other))
    a.reducer.write_gradients(reduced)
    reduced.means = (0.5,)
    whole = gradient_state(reduced)
    contents = tuple(memoryview(bytearray(leaf.content)) for leaf in whole.leaves)
    received = gradient_from(ReceivedState(whole.tree, contents), CPU)
    laggard.reducer.write_gradients(received)
    assert received.means == (0.5,)
    assert close(laggard.gradients, cast("list[Tensor]", a.gradients), 0.0)


def test_the_last_sums_outlive_the_next_reduction() -> None:
    """Until the step after is applied a member may need them (rule 13)."""
    x = data(8)
    a, b = Member(net()), Member(net())
    one, other = groups(2)
    a.part(x[:2], last=one)
    b.part(x[2:4], last=other)
    (_, kept), _ = together(lambda: a.reduce(one), lambda: b.reduce(other))
    before = [flat.clone() for flat in kept.buckets]
    for member in (a, b):
        member.reducer.drop_part()
        member.reducer.swap_buffers()
    one, other = groups(2)
    a.part(x[4:6], last=one)
    b.part(x[6:], last=other)
    together(lambda: a.reduce(one), lambda: b.reduce(other))
    assert close(kept.buckets, before, 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2])
def test_half_precision_sums_do_not_overflow(dtype: torch.dtype, size: int, buckets: str) -> None:
    """A gradient of 1000 in a batch of 512 is nothing unusual with a loss scale."""
    members = [Member(nn.Linear(1, 1, bias=False).to(dtype)) for _ in range(size)]
    each = groups(size)
    for member, group in zip(members, each, strict=True):
        for last in (None, group):
            member.reducer.begin_part(PART, 512.0, last, (), idle=False)
            (member.model.weight.sum() * 1000.0).backward()  # type: ignore[operator]
            member.weight += 512.0
            if last is None:
                member.reducer.end_part()
    found = together(*(partial(member.reduce, group) for member, group in zip(members, each, strict=True)))
    for member, (_, reduced) in zip(members, found, strict=True):
        member.reducer.write_gradients(reduced)
        assert [float(cast(Tensor, grad)) for grad in member.gradients] == [1000.0]


def test_types_travel_in_buckets_of_their_own(buckets: str) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.single, self.double_, self.brain = (
                nn.Linear(3, 2),
                nn.Linear(3, 2).double(),
                nn.Linear(3, 2).bfloat16(),
            )

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.single(x.float()).double() + self.double_(x) + self.brain(x.bfloat16()).double()
            return out

    x = data(4)
    a, b = Member(Mixed()), Member(Mixed())
    one, other = groups(2)
    a.part(x[:2], last=one)
    b.part(x[2:], last=other)
    (_, first), _ = together(lambda: a.reduce(one), lambda: b.reduce(other))
    a.reducer.write_gradients(first)
    for param, expected in zip(a.model.parameters(), direct(Mixed(), x), strict=True):
        assert param.grad is not None
        assert param.grad.dtype is param.dtype
        assert torch.allclose(param.grad, expected, rtol=3e-2 if param.dtype is torch.bfloat16 else 1e-5, atol=1e-2)


def test_alone_with_one_part_the_gradient_is_not_touched() -> None:
    a = Member(net())
    (one,) = groups(1)
    a.part(data(5), last=one)
    before = [cast(Tensor, grad) for grad in a.gradients]
    copies = [grad.clone() for grad in before]
    _, reduced = a.reduce(one)
    a.reducer.write_gradients(reduced)
    assert all(now is was for now, was in zip(a.gradients, before, strict=True))
    assert close(before, copies, 0.0)


def test_hooks_are_gone_afterwards() -> None:
    member = Member(net())
    member.reducer.begin_part(PART, 1.0, None, (), idle=False)
    member.reducer.close()
    loss(member.model, data(2)).backward()  # type: ignore[no-untyped-call]
    assert not any(member.reducer._fired)
