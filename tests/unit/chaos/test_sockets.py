"""The ends of connections at which a cut is made."""

import contextlib
import os
import socket
from pathlib import Path

import pytest

from pliant.chaos.plan import COORDINATOR, Cut
from pliant.chaos.processes import ProcessRef, find_member
from pliant.chaos.sockets import (
    NetworkFacts,
    SocketEnd,
    SocketFilter,
    ends_to_cut,
    own_addresses,
    parse_tcp_table,
    plan_filters,
    read_tcp_table,
    socket_ends,
)
from unit.chaos.victims import answers, victim

HOST = "127.0.0.1"
FAR = "10.0.0.9"
UNCONNECTED = ("0.0.0.0", 0)
AT = (HOST, 7000)  # the coordinator
OURS = (HOST, 9999)

# w1 listens at 101 and has connected to w2; w2 and a member elsewhere have connected to w1. All have asked the
# coordinator; so have we.
W1 = (
    SocketEnd(1, (HOST, 101), UNCONNECTED, listens=True),
    SocketEnd(2, (HOST, 5001), (HOST, 102)),
    SocketEnd(3, (HOST, 101), (HOST, 5003)),
    SocketEnd(4, (HOST, 101), (FAR, 5004)),
    SocketEnd(5, (HOST, 5005), AT),
    SocketEnd(6, (HOST, 5006), ("10.0.0.80", 443)),  # data, from somewhere
    SocketEnd(7, (HOST, 5007), (FAR, 104)),
)
W2 = (
    SocketEnd(1, ("0.0.0.0", 102), UNCONNECTED, listens=True),
    SocketEnd(2, (HOST, 102), (HOST, 5001)),
    SocketEnd(3, (HOST, 5003), (HOST, 101)),
    SocketEnd(4, (HOST, 5014), AT),
    SocketEnd(5, (HOST, 5015), (HOST, 101)),  # about to be connected: there is no other end yet
    SocketEnd(6, (HOST, 102), (HOST, 5100)),  # with another member
)
COORDINATORS = (
    SocketEnd(1, ("0.0.0.0", 7000), UNCONNECTED, listens=True),
    SocketEnd(2, AT, (HOST, 5005)),
    SocketEnd(3, AT, (HOST, 5014)),
    SocketEnd(4, AT, OURS),
)
EVERY = {"w1": W1, "w2": W2, COORDINATOR: COORDINATORS}
AROUND = NetworkFacts(frozenset({AT}), frozenset({FAR}), frozenset({OURS}))


def named(found: set[tuple[str, int]]) -> dict[str, set[int]]:
    return {name: {handle for who, handle in found if who == name} for name in {who for who, _ in found}}


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (Cut.ISOLATED, {"w1": {1, 2, 3, 4, 5, 7}, "w2": {2, 3, 5}, COORDINATOR: {2}}),
        (Cut.PEERS, {"w1": {1, 2, 3, 4, 7}, "w2": {2, 3, 5}}),
        (Cut.COORDINATOR, {"w1": {5}, COORDINATOR: {2}}),
        (Cut.INBOUND, {"w1": {1, 2, 3, 4, 5, 7}}),
        (Cut.OUTBOUND, {"w2": {2, 3, 5}, COORDINATOR: {2}}),
    ],
)
def test_each_cut_is_made_at_its_ends_and_at_no_other(cut: Cut, expected: dict[str, set[int]]) -> None:
    assert named(ends_to_cut(cut, "w1", EVERY, AROUND)) == expected


def test_the_coordinator_is_cut_off_from_everybody_but_us() -> None:
    found = ends_to_cut(Cut.COORDINATOR_ISOLATED, COORDINATOR, EVERY, AROUND)
    assert named(found) == {COORDINATOR: {1, 2, 3}, "w1": {5}, "w2": {4}}


def test_without_the_others_ends_there_are_the_victims() -> None:
    alone = {"w1": W1}
    assert named(ends_to_cut(Cut.ISOLATED, "w1", alone, AROUND)) == {"w1": {1, 3, 4, 5, 7}}
    assert ends_to_cut(Cut.OUTBOUND, "w1", alone, AROUND) == set()
    assert ends_to_cut(Cut.INBOUND, "gone", alone, AROUND) == set()


def test_a_connection_to_the_coordinator_is_known_by_its_other_end_too() -> None:
    nowhere = NetworkFacts()
    assert named(ends_to_cut(Cut.COORDINATOR, "w1", EVERY, nowhere)) == {"w1": {5}, COORDINATOR: {2}}


@pytest.mark.parametrize(
    ("cut", "guards", "free"),
    [
        (Cut.ISOLATED, {"w2": {1}, COORDINATOR: {1}}, {"w1": {6}, "w2": {4, 6}, COORDINATOR: {3, 4}}),
        (Cut.PEERS, {"w2": {1}}, {"w1": {5, 6}, "w2": {4, 6}}),
        (Cut.COORDINATOR, {COORDINATOR: {1}}, {COORDINATOR: {3, 4}}),
        (Cut.INBOUND, {"w2": {1}, COORDINATOR: {1}}, {"w1": {6}, "w2": {2, 3, 4, 5, 6}, COORDINATOR: {2, 3, 4}}),
        (
            Cut.OUTBOUND,
            {"w1": {1}, "w2": {1}, COORDINATOR: {1}},
            {"w1": {2, 3, 4, 5, 6, 7}, "w2": {4, 6}, COORDINATOR: {3, 4}},
        ),
    ],
)
def test_new_connections_are_looked_at_and_others_let_free(
    cut: Cut, guards: dict[str, set[int]], free: dict[str, set[int]]
) -> None:
    found = plan_filters(cut, "w1", EVERY, AROUND)
    kinds = [kind for _, _, kind in found]
    assert kinds == sorted(kinds)  # no member is let free before the victim is cut off
    by_kind = {kind: named({(name, end.fd) for name, end, each in found if each is kind}) for kind in SocketFilter}
    assert by_kind[SocketFilter.DROP_ALL] == named(ends_to_cut(cut, "w1", EVERY, AROUND))
    assert by_kind[SocketFilter.HANDSHAKES_ONLY] == guards
    assert by_kind[SocketFilter.ACCEPT_ALL] == free


def test_who_connects_to_nobody_needs_no_guard() -> None:
    assert {kind for _, _, kind in plan_filters(Cut.COORDINATOR_ISOLATED, COORDINATOR, EVERY, AROUND)} == {
        SocketFilter.DROP_ALL
    }


def test_what_the_system_says_is_understood() -> None:
    said = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100\n"
        "   1: 0100007F:1F90 0200A8C0:C001 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 100\n"
        "   2: 0000000000000000FFFF00000100007F:0050 00000000000000000000000001000000:0051 01 0:0 00:0 0 0 0 13 1\n"
    )
    assert list(parse_tcp_table(said, (12,))) == [(12, ("127.0.0.1", 8080), ("192.168.0.2", 49153), False)]
    assert list(parse_tcp_table(said, range(20))) == [
        (11, ("127.0.0.1", 8080), ("0.0.0.0", 0), True),
        (12, ("127.0.0.1", 8080), ("192.168.0.2", 49153), False),
        (13, ("127.0.0.1", 80), ("::1", 81), False),
    ]


@pytest.mark.parametrize("names", [("tcp",), ("tcp6",), ("tcp", "tcp6")])
def test_a_system_may_have_one_kind_of_addresses_alone(names: tuple[str, ...], tmp_path: Path) -> None:
    hosts = {"tcp": ("127.0.0.1", socket.AF_INET), "tcp6": ("::1", socket.AF_INET6)}
    with contextlib.ExitStack() as listening:
        inodes = set()
        for name in names:
            host, family = hosts[name]
            if not Path("/proc/net", name).exists():
                pytest.skip(f"this one has no {name}")
            server = listening.enter_context(socket.create_server((host, 0), family=family))
            inodes.add(os.fstat(server.fileno()).st_ino)
            (tmp_path / name).write_text(Path("/proc/net", name).read_text())
        assert {
            inode for inode, _, _, listens in parse_tcp_table(read_tcp_table(tmp_path), inodes) if listens
        } == inodes


def test_a_process_s_ends_are_found() -> None:
    with victim() as one, one.connect() as ours:
        assert answers(ours)  # so it has accepted it
        found = socket_ends(one.process)
        assert [end.local for end in found if end.listens] == [("127.0.0.1", one.port)]
        assert ours.getsockname() in [end.remote for end in found]
        assert ours.getsockname() in own_addresses()
    assert socket_ends(one.process) == []


def test_a_connection_that_is_only_asked_for_has_its_other_end_already() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as asking:
        where = server.getsockname()
        for _ in range(4):  # more than wait to be accepted: the last ones are not answered
            one = asking.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(where)
        own = ProcessRef(os.getpid(), int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]))
        assert [end.remote for end in socket_ends(own)].count(where) == 4


def test_ours_can_be_looked_at_like_any_other() -> None:
    own = find_member(os.getpid(), "no job", "stranger", "mark:", 0)
    assert own is None  # but no member is taken for a member who does not say so
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname() in [end.local for end in socket_ends(ProcessRef(os.getpid(), 0))]
