"""Operations in flight, with both ranks of a world in this process."""

import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from pliant.core.ledger import Lineage
from pliant.core.model import Kind, MemberId, World
from pliant.torch.group import Group, GroupBroken, Wiring
from pliant.train.mailbox import Mailbox

NAMES = (MemberId("a"), MemberId("b"))
PATIENCE_S = 30.0


class ToTheOther:
    """Tells the only peer there is, without a wire."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def tell(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        self._mailbox.hear(generation, head)


@pytest.fixture
def groups() -> Iterator[list[Group]]:
    world = World(1, Kind.PLANNED, NAMES, (1, 1), Lineage(0, 0, 0))
    boxes = [Mailbox(), Mailbox()]
    wirings = [Wiring(world, "ab" * 32, NAMES[rank], ToTheOther(boxes[1 - rank]), boxes[rank]) for rank in (0, 1)]
    other: list[Group] = []
    thread = threading.Thread(target=lambda: other.append(wirings[1].run()))
    thread.start()
    groups = [wirings[0].run()]
    thread.join(PATIENCE_S)
    groups += other
    yield groups
    for group in groups:
        group.dispose()
    for each in threading.enumerate():
        if each.name == "pliant-dispose":
            each.join(PATIENCE_S)
            assert not each.is_alive()


def test_a_sum_is_there_for_both_and_can_be_waited_for_twice(groups: list[Group]) -> None:
    tensors = [torch.full((4,), 1.0), torch.full((4,), 2.0)]
    pendings = [group.all_reduce(tensor) for group, tensor in zip(groups, tensors, strict=True)]
    for pending in pendings:
        pending.wait()
        pending.wait()
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 4] * 2
    assert [(group.generation, group.rank, group.size) for group in groups] == [(1, 0, 2), (1, 1, 2)]


def test_several_operations_may_be_in_flight(groups: list[Group]) -> None:
    tensors = [[torch.full((1000,), float(number)) for number in range(20)] for _ in groups]
    pendings = [[group.all_reduce(each) for each in mine] for group, mine in zip(groups, tensors, strict=True)]
    for pending in [*pendings[0], *pendings[1]]:
        pending.wait()
    assert all(tensor[-1] == 2.0 * number for mine in tensors for number, tensor in enumerate(mine))


def test_a_failure_stays_a_failure_however_often_it_is_waited_for(groups: list[Group]) -> None:
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


def test_a_signal_is_heard_while_a_member_waits_and_the_wait_can_go_on(groups: list[Group]) -> None:
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


def test_disposing_of_a_group_ends_what_others_still_wait_for(groups: list[Group]) -> None:
    pending = groups[0].all_reduce(torch.ones(1_000_000))
    groups[1].dispose()
    with pytest.raises(GroupBroken):
        pending.wait()
    groups[1].break_off()
    groups[1].dispose()


def test_a_rank_that_announces_too_much_to_gather_breaks_the_group(groups: list[Group]) -> None:
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
