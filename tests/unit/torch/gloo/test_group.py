"""Process groups of real processes: wired beside one another, broken by a death, by a hand, and never by a clock."""

import itertools
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from e2e.running import wait_for
from unit.torch.crew import Member, Reply, crew, introduce, start_wiring, wire

PAUSE = threading.Event()
_numbers = itertools.count(1)

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def three_processes() -> Iterator[list[Member]]:
    """Three processes for all tests that kill no member: it takes long to start them."""
    with crew("a", "b", "c") as members:
        yield members


@pytest.fixture
def trio(three_processes: list[Member]) -> Iterator[list[Member]]:
    yield three_processes
    for member in three_processes:
        member.start("tidy").answer()


@pytest.fixture
def g() -> int:
    """A generation's number that was not used before."""
    return 10 * next(_numbers)


def sums(replies: list[Reply]) -> list[object]:
    return [reply.answer() for reply in replies]


def in_flight(members: list[Member], generation: int) -> list[Reply]:
    """Every member reduces until something ends it, and has done so for a while."""
    replies = [member.reduce(generation, length=200_000, times=1_000_000) for member in members]
    assert not any(reply.done.wait(0.1) for reply in replies), [reply.said for reply in replies]
    return replies


def test_a_world_sums_and_the_next_is_wired_beside_it(trio: list[Member], g: int) -> None:
    wire(g, trio)
    for dtype in ("float32", "float64", "float16", "bfloat16", "int64"):
        assert sums([each.reduce(g, dtype=dtype) for each in trio]) == [[6.0, 6.0]] * 3, dtype
    training = in_flight(trio, g)
    wire(g + 1, trio)
    assert not any(reply.done.is_set() for reply in training)  # no member noticed
    assert sums([each.reduce(g + 1, length=1_000_000) for each in trio]) == [[6.0, 6.0]] * 3

    # Breaking the one leaves the other as it was.
    trio[0].start("break", generation=g).answer()
    for reply in training:
        reply.broken()
    assert sums([each.reduce(g + 1) for each in trio]) == [[6.0, 6.0]] * 3
    assert "broken off" in trio[0].reduce(g).broken()["broken"]


def test_strangers_at_a_wired_group_use_up_no_descriptor(trio: list[Member], g: int) -> None:
    victim = trio[0]
    victim.start("count").answer()  # then the groups of other tests are gone
    wire(g, trio)
    ports = [
        each.laddr.port
        for each in psutil.Process(victim.process.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port != int(victim.address.rpartition(":")[2])
    ]
    assert len(ports) == 1  # gloo's
    before = victim.start("count").answer()
    with ExitStack() as strangers:
        for _ in range(200):
            silent = strangers.enter_context(socket.socket())
            silent.setblocking(False)
            silent.connect_ex(("127.0.0.1", ports[0]))
            with pytest.raises(OSError, match="not connected"):
                silent.getpeername()
        assert victim.start("count").answer() == before
        assert sums([each.reduce(g) for each in trio]) == [[6.0, 6.0]] * 3


def test_bytes_of_any_length_are_gathered_by_rank(trio: list[Member], g: int) -> None:
    wire(g, trio)
    words = [each.start("gather", generation=g, data=each.name * 1000 * rank) for rank, each in enumerate(trio)]
    assert sums(words) == [["", "b" * 1000, "c" * 2000]] * 3
    assert sums([each.start("gather", generation=g, data="") for each in trio]) == [["", "", ""]] * 3


def test_no_program_started_by_a_member_inherits_a_socket(trio: list[Member], g: int) -> None:
    wire(g, trio)
    assert sums([each.start("inherited") for each in trio]) == [0, 0, 0]


@pytest.mark.long
def test_survivors_of_a_killed_member_hear_at_once_and_go_on_without_it() -> None:
    with crew("a", "b", "c", "d") as members:
        wire(1, members)
        training = in_flight(members, 1)
        began = time.monotonic()
        members[1].signal(signal.SIGKILL)
        survivors = [members[0], *members[2:]]
        for reply in [training[0], *training[2:]]:
            broken = reply.broken()
            assert "generation 1" in broken["broken"]
            assert "GLHF" not in broken["broken"]
            assert reply.at - began < 5.0
        # A member saw whose end it was; the others may have seen only that one's.
        assert "b" in {training[0].said["peer"], training[2].said["peer"], training[3].said["peer"]}
        for each in survivors:
            each.start("dispose", generation=1).answer()
        wire(2, survivors)
        assert sums([each.reduce(2) for each in survivors]) == [[6.0, 6.0]] * 3


def test_a_stopped_member_is_broken_off_by_another_thread_and_fails_when_it_wakes(trio: list[Member], g: int) -> None:
    a, b, c = trio
    wire(g, trio)
    training = in_flight(trio, g)
    b.signal(signal.SIGSTOP)
    try:
        assert not training[0].done.wait(0.3)  # its sockets are open, and they all wait for it
        began = time.monotonic()
        a.start("break", generation=g)
        for reply in (training[0], training[2]):
            reply.broken()
            assert reply.at - began < 1.0
        # The two that run can let go, and have a world of their own, while it still stands.
        for each in (a, c):
            each.start("dispose", generation=g).answer()
        wire(g + 1, [a, c])
        assert sums([each.reduce(g + 1) for each in (a, c)]) == [[3.0, 3.0]] * 2
    finally:
        b.signal(signal.SIGCONT)
    training[1].broken()
    assert sums([each.reduce(g + 1) for each in (a, c)]) == [[3.0, 3.0]] * 2


def test_large_messages_cut_in_the_middle_are_noticed_every_time(trio: list[Member], g: int) -> None:
    """gloo itself forgets an operation that waits for the rest of a message whose connection ended."""
    for generation in range(g, g + 8):
        wire(generation, trio)
        training = [each.reduce(generation, length=2_000_000, times=1_000_000) for each in trio]
        assert not training[0].done.wait(0.05)
        began = time.monotonic()
        trio[generation % 3].start("break", generation=generation).answer()
        for reply in training:
            reply.broken()
            assert reply.at - began < 5.0
        for each in trio:
            each.start("dispose", generation=generation).answer()


def test_members_wait_for_a_slow_one_for_as_long_as_it_takes(trio: list[Member], g: int) -> None:
    """gloo's own patience while wiring is shorter than this; it must not be that of operations (H25)."""
    for each in trio:
        each.start("patience", connect_s=0.5).answer()
    wire(g, trio)
    first = [each.reduce(g) for each in trio[:2]]
    assert not first[0].done.wait(3.0)
    assert trio[2].reduce(g).answer() == [6.0, 6.0]
    assert sums(first) == [[6.0, 6.0]] * 2
    for each in trio:
        each.start("patience", connect_s=30.0).answer()


@pytest.mark.parametrize("knows", [True, False])
def test_a_wiring_that_waits_for_somebody_who_does_not_come_can_be_broken_off(
    trio: list[Member], g: int, knows: bool
) -> None:
    introduce(g, trio, told=trio if knows else trio[:2])
    wirings = start_wiring(g, trio[:2], trio)
    assert not any(reply.done.wait(0.2) for reply in wirings)
    began = time.monotonic()
    for each in trio[:2]:
        each.start("break_wiring", generation=g).answer()
    for reply in wirings:
        assert f"wiring of generation {g} was broken off" in reply.broken()["broken"]
        assert reply.at - began < 2.0
    wire(g + 1, trio)
    assert sums([each.reduce(g + 1) for each in trio]) == [[6.0, 6.0]] * 3


def test_a_wiring_broken_off_before_it_began_does_not_begin(trio: list[Member], g: int) -> None:
    introduce(g, trio)
    trio[0].start("prepare", generation=g, members=["a", "b", "c"]).answer()
    trio[0].start("break_wiring", generation=g).answer()
    assert "broken off" in trio[0].start("run", generation=g).broken()["broken"]


def test_a_wiring_during_which_a_member_dies_ends_and_the_rest_wire_again() -> None:
    """The joiner is killed at another moment each time: before it published, while it connects, or after."""
    with crew("a", "b", "joiner-1", "joiner-2") as members:
        for generation, (joiner, delay_s) in enumerate(zip(members[2:], (0.0, 0.004), strict=True), 1):
            world = [*members[:2], joiner]
            introduce(generation, world)
            wirings = start_wiring(generation, world)
            PAUSE.wait(delay_s)
            joiner.signal(signal.SIGKILL)
            for each in members[:2]:
                each.start("break_wiring", generation=generation)
            for reply in wirings[:2]:
                reply.wait()  # wired a moment before, or broken off
        wire(9, members[:2])
        assert sums([each.reduce(9) for each in members[:2]]) == [[3.0, 3.0]] * 2


def test_a_member_stopped_while_it_wires_does_not_hold_up_the_others(trio: list[Member], g: int) -> None:
    introduce(g, trio)
    late = trio[2].start("wire", generation=g, members=["a", "b", "c"])
    trio[2].signal(signal.SIGSTOP)
    try:
        wirings = start_wiring(g, trio[:2], trio)
        assert not any(reply.done.wait(0.2) for reply in wirings)
        began = time.monotonic()
        for each in trio[:2]:
            each.start("break_wiring", generation=g).answer()
        for reply in wirings:
            reply.broken()
            assert reply.at - began < 2.0
    finally:
        trio[2].signal(signal.SIGCONT)
    trio[2].start("break_wiring", generation=g)
    late.broken()


def test_a_world_of_one_needs_nobody(trio: list[Member], g: int) -> None:
    a = trio[0]
    before = a.start("count").answer()
    [reply] = start_wiring(g, [a])
    reply.answer()
    assert a.reduce(g).answer() == [1.0, 1.0]
    assert a.start("gather", generation=g, data="alone").answer() == ["alone"]

    def has_no_more() -> bool:
        now = a.start("count").answer()
        return all(now[what] <= before[what] for what in before)

    wait_for(has_no_more, "the threads that answered to end")
    a.start("break", generation=g).answer()
    assert "broken off" in a.reduce(g).broken()["broken"]
    assert "broken off" in a.start("gather", generation=g, data="").broken()["broken"]


def test_fifty_rewirings_leave_no_descriptor_and_no_thread_behind(trio: list[Member], g: int) -> None:
    counts: list[list[dict[str, int]]] = []
    for generation in range(1000 * g, 1000 * g + 50):
        wire(generation, trio)
        sums([each.reduce(generation) for each in trio])
        if generation % 3 == 0:
            trio[generation % 2].start("break", generation=generation).answer()
        for each in trio:
            each.start("dispose", generation=generation).answer()
            each.start("forget", below=generation).answer()
        counts.append([each.start("count").answer() for each in trio])
    # Threads come and go; the least of the last few must not be more than the least of the first few.
    for rank, what in itertools.product(range(3), ("descriptors", "threads")):
        figures = [count[rank][what] for count in counts]
        assert min(figures[-10:]) <= min(figures[5:15]), (what, figures)


def test_a_process_ends_when_it_should_though_an_operation_never_did() -> None:
    with crew("a", "b") as members:
        for generation in range(1, 6):
            wire(generation, members)
            training = [each.reduce(generation, length=2_000_000, times=1_000_000) for each in members]
            assert not training[0].done.wait(0.05)
            members[0].start("break", generation=generation).answer()
            for reply in training:
                reply.broken()
            for each in members:
                each.start("dispose", generation=generation).answer()
        assert [each.leave() for each in members] == [0, 0]


def test_who_hears_nothing_any_more_is_found_though_its_machine_is_there() -> None:
    """Its packets are dropped, no member closes anything, and the coordinator may well hear from it."""
    with crew("a", "b") as members:
        for each in members:
            each.start("patience", vanished_s=2).answer()
        wire(1, members)
        training = in_flight(members, 1)
        members[1].start("deafen", generation=1).answer()
        said = [reply.broken() for reply in training]
        assert any(each["peer"] in ("a", "b") for each in said)


@pytest.mark.long
def test_who_does_not_wire_is_named_to_the_coordinator() -> None:
    with crew("a", "b", "c") as members:
        for each in members:
            each.start("patience", wiring_s=1.0).answer()
        introduce(1, members)
        wirings = start_wiring(1, members[:2], members)
        assert [reply.broken()["peer"] for reply in wirings] == ["c", "c"]
