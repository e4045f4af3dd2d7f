"""Reductions along the tree that break and are finished by others (rule 14); what they hold in memory and send."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pliant.core.member.signals import Shares
from pliant.errors import BadInput
from pliant.torch.reduce import buckets as buckets_module
from pliant.torch.reduce import deterministic as treed_module
from pliant.torch.reduce import tree_buffers as nodes_module
from pliant.torch.reduce.buckets import Bucket
from pliant.torch.state.training_state import gradient_from, gradient_state
from pliant.train.group.contract import GroupBroken
from pliant.train.state.transfer import ReceivedState
from unit.torch.treed import CPU, Case, Member, Outcome, alone, batch, loss_of, net, steps
from unit.torch.wired import wired
from unit.torch.wires import ranks, same_bits, together

pytestmark = pytest.mark.timeout(240)

SLOTS = 7
PLAIN = Case(net, SLOTS, loss_of)
THREE: Shares = ((0, 1), (2, 3, 4), (5, 6))
REDONE: Shares = ((0, 1, 5), (2, 3, 4, 6))  # the third is gone


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


NORMED = Case(normed, SLOTS, lambda model, step, slot: model(batch(step, slot)).square().mean())


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets_module, "FIRST_BYTES", 1)
    monkeypatch.setattr(buckets_module, "BUCKET_BYTES", 1)


@pytest.fixture
def nothing_rides(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last bucket travels like the others, however small."""
    monkeypatch.setattr(treed_module, "_AT_ONCE_BYTES", -1)


def all_at_once(members: list[Member], groups: Any, act: Callable[[Member, Any], Any]) -> list[Any]:
    """Every member with its group."""
    return together(*(partial(act, member, group) for member, group in zip(members, groups, strict=True)))


def operations(case: Case) -> int:
    """Return how many a second step of three takes; in the first one it is learnt which buffers move."""
    once, twice = ranks(3), ranks(3)
    steps(case, once, THREE)
    steps(case, twice, THREE, THREE)
    return len(twice[0].sent) - len(once[0].sent)


@pytest.mark.parametrize("warm", [False, True], ids=["first step", "buckets leave early"])
@pytest.mark.parametrize("rides", [False, True], ids=["", "the last bucket with what is small"])
def test_a_step_that_broke_anywhere_is_finished_by_others_from_what_was_kept(
    warm: bool, rides: bool, request: pytest.FixtureRequest
) -> None:
    """Three compute, the third is lost in some operation; the others compute its slots, and nothing of theirs again."""
    if not rides:
        request.getfixturevalue("nothing_rides")
    case = NORMED if warm == rides else PLAIN
    expected = alone(case, 1, 2)[-1]
    for cut_at in range(operations(case)):
        members = [Member(case) for _ in range(3)]
        all_at_once(members, ranks(3), lambda member, group: member.step(1, group, THREE))
        if not warm:
            for member in members:
                member.reducer._overlaps = None
        all_at_once(members, ranks(3, cut_at), lambda member, group: member.broken_step(2, group, THREE))
        assert [member.kept for member in members] == [set(share) for share in THREE]
        found = all_at_once(members[:2], ranks(2), lambda member, group: member.step(2, group, REDONE))
        assert all(each.same(expected) for each in found), f"cut at operation {cut_at}"


def test_a_step_may_break_again_and_again_and_end_with_one_member() -> None:
    (expected,) = alone(NORMED, 1)
    members = [Member(NORMED) for _ in range(3)]
    all_at_once(members, ranks(3, 2), lambda member, group: member.broken_step(1, group, THREE))
    for cut_at in (0, 1, 3):
        all_at_once(members[:2], ranks(2, cut_at), lambda member, group: member.broken_step(1, group, REDONE))
    (group,) = ranks(1)
    assert members[0].step(1, group, (tuple(range(SLOTS)),)).same(expected)


def test_who_is_told_to_stop_brings_what_it_has_and_others_compute_the_rest() -> None:
    """The shares are then no runs of slots, and who joined meanwhile has some, too."""
    (expected,) = alone(PLAIN, 1)
    first, second, third = members = [Member(PLAIN) for _ in range(3)]
    first.compute(1, [0, 1], None, THREE, stop=True)
    second.compute(1, [2], None, THREE, stop=True)
    shares: Shares = ((0, 1, 4), (2, 5), (3, 6))
    found = all_at_once(members, ranks(3), lambda member, group: member.step(1, group, shares))
    assert all(each.same(expected) for each in found)
    assert third.kept == set()


def test_a_group_that_really_breaks_leaves_the_nodes_as_they_were() -> None:
    (expected,) = alone(PLAIN, 1)
    members = [Member(PLAIN) for _ in range(3)]

    def lost(member: Member, group: Any) -> None:
        if group.rank == 2:
            group.break_off()
        else:
            member.broken_step(1, group, THREE)

    with wired(3) as groups:
        all_at_once(members, groups, lost)
    with wired(2) as groups:
        found = all_at_once(members[:2], groups, lambda member, group: member.step(1, group, REDONE))
    assert all(each.same(expected) for each in found)


def test_nothing_is_left_of_a_step_when_the_state_is_another_one() -> None:
    expected = alone(NORMED, 1, 2)[-1]
    members = [Member(NORMED) for _ in range(2)]
    shares: Shares = ((0, 1, 2), (3, 4, 5, 6))
    all_at_once(members, ranks(2), lambda member, group: member.step(1, group, shares))
    all_at_once(members, ranks(2, 1), lambda member, group: member.broken_step(2, group, shares))
    for member in members:
        member.reducer.drop_kept()
        member.buffers.drop_staged()
        member.logged.clear()
        member.kept.clear()
    found = all_at_once(members, ranks(2), lambda member, group: member.step(2, group, shares))
    assert all(each.same(expected) for each in found)


def test_without_shares_nobody_can_reduce() -> None:
    groups = ranks(2)
    members = [Member(PLAIN) for _ in range(2)]

    def act(member: Member, group: Any) -> None:
        member.idle(1, ((), ()))
        with pytest.raises(GroupBroken, match="does not know the shares"):
            member.reduce(group, ((), ()))

    all_at_once(members, groups, act)


def test_buckets_leave_before_backward_is_over() -> None:
    groups = ranks(3)
    members = [Member(PLAIN) for _ in range(3)]
    all_at_once(members, groups, lambda member, group: member.step(1, group, THREE))
    before = len(groups[0].sent)
    all_at_once(members, groups, lambda member, group: member.compute(2, THREE[group.rank], group, THREE))
    for member, group in zip(members, groups, strict=True):
        member.reducer._wire.submit(lambda: None).result()  # whatever was to be sent by now is
        assert len(group.sent) > before
    found = all_at_once(members, groups, lambda m, group: m.apply(*m.reduce(group, THREE)))
    assert all(each.same(alone(PLAIN, 1, 2)[-1]) for each in found)


def test_a_member_that_missed_the_step_gets_the_same_bits() -> None:
    """Until the step after it is applied, as the sums of two steps are kept (rule 13)."""
    expected = alone(NORMED, 1)[0]
    members = [Member(NORMED) for _ in range(2)]
    shares: Shares = ((0, 1, 2), (3, 4, 5, 6))
    laggard = Member(NORMED)
    first = all_at_once(members, ranks(2), lambda member, group: member.step(1, group, shares))
    all_at_once(members, ranks(2, 3), lambda member, group: member.broken_step(2, group, shares))
    whole = gradient_state(first[0].reduced)
    contents = tuple(memoryview(bytearray(leaf.content)) for leaf in whole.leaves)
    received = gradient_from(ReceivedState(whole.tree, contents), CPU)
    found = laggard.apply((), received)
    assert found.same_gradients(expected)
    assert all(same_bits(a, b) for a, b in zip(found.buffers, expected.buffers, strict=True))


def test_a_gradient_that_user_code_changed_is_refused() -> None:
    member = Member(PLAIN)
    (group,) = ranks(1)
    member.compute(1, [0], group, ((0,),))
    next(member.model.parameters()).grad.mul_(2)  # type: ignore[union-attr]
    with pytest.raises(BadInput, match="was changed between backward and"):
        member.reduce(group, ((0,),))


# ------------------------------------------------------------------------------------------------ memory and bytes


@pytest.fixture
def flats(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all room that was made for gradients."""
    made: list[int] = []

    class Counted(nodes_module.FlatBuffer):
        def __init__(self, bucket: Bucket, extra: int) -> None:
            made.append(bucket.numel)
            super().__init__(bucket, extra)

    monkeypatch.setattr(nodes_module, "FlatBuffer", Counted)
    return made


def one_weight() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(7, 1000, bias=False)


def squared(model: nn.Module, step: int, slot: int) -> Tensor:
    out: Tensor = model(batch(step, slot))
    return out.square().mean()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_member_holds_about_as_many_gradients_as_the_logarithm_of_its_slots(size: int, flats: list[int]) -> None:
    slots = 64
    case = Case(one_weight, slots, squared)
    shares = tuple(tuple(range(slots * rank // size, slots * (rank + 1) // size)) for rank in range(size))
    found = steps(case, ranks(size), shares, shares, shares)
    assert len({each.reduced.weight for by_rank in found for each in by_rank}) == 1
    nodes, leaf, results = 6, 1, 2
    assert len(flats) <= size * (nodes + leaf + results)


@pytest.mark.usefixtures("nothing_rides")
def test_steps_that_break_make_no_new_room(flats: list[int]) -> None:
    members = [Member(Case(one_weight, SLOTS, squared)) for _ in range(2)]
    shares: Shares = ((0, 1, 2), (3, 4, 5, 6))
    counts = []
    for step in range(1, 6):
        all_at_once(members, ranks(2, 1), lambda member, group, at=step: member.broken_step(at, group, shares))  # type: ignore[misc]
        all_at_once(members, ranks(2), lambda member, group, at=step: member.step(at, group, shares))  # type: ignore[misc]
        counts.append(len(flats))
    assert counts[2:] == [counts[2]] * 3


def sent(slots: int, size: int) -> float:
    """Bytes that a step sends from each rank, over the least that an all-reduce takes."""
    case = Case(one_weight, slots, squared)
    shares = tuple(tuple(range(slots * rank // size, slots * (rank + 1) // size)) for rank in range(size))
    members = [Member(case) for _ in range(size)]
    all_at_once(members, ranks(size), lambda member, group: member.step(1, group, shares))
    least = 2 * (size - 1) / size * 7000 * 4
    return max(member.reducer.sent_bytes for member in members) / least


@pytest.mark.usefixtures("nothing_rides")
def test_with_a_node_on_each_rank_hardly_more_is_sent_than_in_any_all_reduce() -> None:
    assert sent(16, 4) < 1.1
    assert sent(2, 2) < 1.1
    assert sent(4, 2) < 1.1


@pytest.mark.usefixtures("nothing_rides")
def test_with_other_shares_a_few_nodes_more_are_sent() -> None:
    assert sent(12, 3) < 2.1
    assert sent(16, 3) < 2.6


def test_what_is_small_takes_one_message() -> None:
    groups = ranks(3)
    steps(Case(one_weight, SLOTS, squared), groups, THREE)
    assert [len(group.sent) for group in groups] == [1, 1, 1]


def test_outcomes_that_differ_in_one_bit_are_told_apart() -> None:
    """The assumption behind all of this."""
    (one,) = alone(PLAIN, 1)
    (other,) = alone(PLAIN, 1)
    assert one.same(other)
    changed = [None if grad is None else grad.clone() for grad in one.grads]
    assert changed[0] is not None
    changed[0].view(torch.int32)[0, 0] ^= 1
    assert not Outcome(changed, one.reduced, one.rows, one.buffers).same(other)
