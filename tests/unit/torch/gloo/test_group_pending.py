"""Operations in flight, with both ranks of a world in this process."""

import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from pliant.torch.gloo.group import GlooGroup
from pliant.torch.group.contract import GroupBroken
from unit.torch.wired import PATIENCE_S, wired
from unit.torch.wires import same_bits


@pytest.fixture
def groups() -> Iterator[list[GlooGroup]]:
    with wired(2) as both:
        yield both


def test_a_sum_is_there_for_both_and_can_be_waited_for_twice(groups: list[GlooGroup]) -> None:
    tensors = [torch.full((4,), 1.0), torch.full((4,), 2.0)]
    pendings = [group.all_reduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    for pending in pendings:
        pending.wait()
        pending.wait()
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 4] * 2
    assert [(group.generation, group.rank, group.size) for group in groups] == [(1, 0, 2), (1, 1, 2)]


def test_several_operations_may_be_in_flight(groups: list[GlooGroup]) -> None:
    tensors = [[torch.full((1000,), float(number)) for number in range(20)] for _ in groups]
    pendings = [[group.all_reduce(each) for each in mine] for group, mine in zip(groups, tensors, strict=True)]
    for pending in [*pendings[0], *pendings[1]]:
        pending.wait()
    assert all(tensor[-1] == 2.0 * number for mine in tensors for number, tensor in enumerate(mine))


@pytest.mark.parametrize("counts", [[2, 2, 2], [0, 3, 1], [0, 0, 0]])
def test_each_rank_gets_its_stretch_from_everybody_even_from_those_who_send_none(counts: list[int]) -> None:
    with wired(3) as groups:
        found = [torch.full((sum(counts),), -1.0) for _ in groups]
        pendings = []
        for group, output in zip(groups, found, strict=True):
            own = counts[group.rank]
            data = torch.arange(3.0 * own) + 100 * group.rank
            pendings.append(group.all_to_all(output, data, counts, [own] * 3))
        for pending in pendings:
            pending.wait()
    for rank, output in enumerate(found):
        expected = [100.0 * sender + own * rank + at for sender, own in enumerate(counts) for at in range(own)]
        assert output.tolist() == expected


@pytest.mark.parametrize("length", [0, 1, 5])
def test_everybodys_bits_are_gathered_unchanged_by_rank(length: int) -> None:
    odd = torch.tensor([-0.0, 1e-42, 3.5, -1e38, 0.0])[:length]
    with wired(3) as groups:
        found = [torch.full((3 * length,), 7.0) for _ in groups]
        pendings = [group.all_gather(out, odd * (1 + group.rank)) for group, out in zip(groups, found, strict=True)]
        for pending in pendings:
            pending.wait()
    assert all(same_bits(out, torch.cat([odd, odd * 2, odd * 3])) for out in found)


@pytest.mark.parametrize("length", [0, 1, 5])
def test_one_ranks_bits_reach_everybody_unchanged(length: int) -> None:
    odd = torch.tensor([-0.0, 1e-42, 3.5, -1e38, 0.0])[:length]
    with wired(3) as groups:
        found = [odd.clone() if group.rank == 1 else torch.full((length,), 7.0) for group in groups]
        for pending in [group.broadcast(out, 1) for group, out in zip(groups, found, strict=True)]:
            pending.wait()
    assert all(same_bits(out, odd) for out in found)


def test_a_scatter_and_a_gather_end_when_the_group_is_broken(groups: list[GlooGroup]) -> None:
    pendings = [
        groups[0].all_to_all(torch.zeros(4), torch.zeros(4), [2, 2], [2, 2]),
        groups[0].all_gather(torch.zeros(4), torch.zeros(2)),
        groups[0].broadcast(torch.zeros(4), 1),
    ]
    groups[1].break_off()
    for pending in pendings:
        with pytest.raises(GroupBroken):
            pending.wait()


def test_a_failure_stays_a_failure_however_often_it_is_waited_for(groups: list[GlooGroup]) -> None:
    pendings = [groups[0].all_reduce(torch.ones(10)) for _ in range(5)]
    groups[1].break_off()
    for pending in [*pendings, *pendings]:
        with pytest.raises(GroupBroken, match="generation 1"):
            pending.wait()
    for group in groups:
        with pytest.raises(GroupBroken):
            group.all_reduce(torch.ones(1))
        with pytest.raises(GroupBroken):
            group.gather(b"")


class Alarm(Exception):
    """Raised by a signal's handler."""


def test_a_signal_is_heard_while_a_member_waits_and_the_wait_can_go_on(groups: list[GlooGroup]) -> None:
    def ring(*_: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    tensor = torch.ones(3)
    pending = groups[0].all_reduce(tensor)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Alarm):
            pending.wait()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    groups[1].all_reduce(torch.ones(3)).wait()
    pending.wait()
    assert tensor.tolist() == [2.0, 2.0, 2.0]


def test_disposing_of_a_group_ends_what_others_still_wait_for(groups: list[GlooGroup]) -> None:
    pending = groups[0].all_reduce(torch.ones(1_000_000))
    groups[1].dispose()
    with pytest.raises(GroupBroken):
        pending.wait()
    groups[1].break_off()
    groups[1].dispose()


def test_a_rank_that_announces_too_much_to_gather_breaks_the_group(groups: list[GlooGroup]) -> None:
    def announce() -> None:
        groups[1]._gather(torch.tensor([1 << 40], dtype=torch.int64))
        with pytest.raises(GroupBroken):
            groups[1].barrier()

    thread = threading.Thread(target=announce)
    thread.start()
    with pytest.raises(GroupBroken, match="announced 1099511627776 bytes"):
        groups[0].gather(b"x")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
