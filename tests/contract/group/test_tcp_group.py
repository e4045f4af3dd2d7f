"""Properties of the TCP group alone: credentials, interrupted threads, stopped and lost peers."""

from __future__ import annotations

import resource
import socket
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

from contract.group.worlds import KINDS, PATIENCE_S, drawn, in_order, ranked_world, results, wired_world
from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.group import links, tcp, wiring
from pliant.train.group.contract import Group, GroupBroken
from pliant.train.group.tcp import TcpGroup
from unit.train.pair import introduce

pytestmark = pytest.mark.timeout(180)

TCP = KINDS[0]


def test_a_member_with_another_key_is_never_part_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "WIRING_S", 1.0)
    with ranked_world(TCP, 2) as ranks:
        introduce(ranks.world.number, ranks.talkers[1], key="cd" * 32)
        ranks.talkers[1].peers.add_generation(
            ranks.world.number, "cd" * 32, {each.name: each.peers.address for each in ranks.talkers}
        )
        ranks.wirings = [TCP.wiring(ranks.world, each) for each in ranks.talkers]
        for running in [ranks.threads.submit(each.run) for each in ranks.wirings]:
            with pytest.raises(GroupBroken, match="could not be wired"):
                running.result(PATIENCE_S)


def test_a_member_that_does_not_answer_is_named_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "WIRING_S", 0.2)
    with ranked_world(TCP, 2) as ranks, pytest.raises(GroupBroken, match=r"no answer within 0\.2 s") as caught:
        TCP.wiring(ranks.world, ranks.talkers[0]).run()
    assert caught.value.peer == "m1"


def test_a_member_of_another_world_is_refused() -> None:
    with ranked_world(TCP, 2) as ranks, pytest.raises(BadInput, match="is not a member"):
        wiring.TcpWiring(ranks.world, MemberId("stranger"), None)


def test_the_bits_do_not_depend_on_the_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = drawn(3, 100_000, "float32")
    with wired_world(TCP, 3) as ranks:
        for small in (0, 1 << 30):
            monkeypatch.setattr(tcp, "SMALL", small)
            assert all(each.tobytes() == in_order(arrays).tobytes() for each in ranks.sums(arrays))


def test_segments_that_wait_to_be_added_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "ROOM", 1 << 20)
    arrays = drawn(2, 8_000_000, "float32")
    with wired_world(TCP, 2) as ranks:
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        mine = [each.copy() for each in arrays]
        results(ranks.start(lambda group, rank: group.all_reduce(mine[rank])))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert mine[0].tobytes() == mine[1].tobytes() == in_order(arrays).tobytes()
    assert peak - before < 2 * arrays[0].nbytes + (8 << 20)


def test_the_next_group_uses_the_memory_of_the_last_one() -> None:
    arrays, used = drawn(2, 500_000, "float32"), []
    for _ in range(2):
        with wired_world(TCP, 2) as ranks:
            assert all(each.tobytes() == in_order(arrays).tobytes() for each in ranks.sums(arrays))
            groups = [group for group in ranks.groups if isinstance(group, TcpGroup)]
            used.append({room.ctypes.data for group in groups for room in group._scratch.values()})
    assert len(used[0]) == len(used[1]) == 2
    assert used[0] & used[1]


def test_an_interrupted_operation_breaks_the_group_and_every_later_wait_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with wired_world(TCP, 2) as ranks:
        group = ranks.groups[0]
        assert isinstance(group, TcpGroup)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(tcp, "exchange", interrupted)
        first = group._enqueue(lambda: group._add_all(np.ones(3)))
        second = group._enqueue(lambda: group._add_all(np.ones(3)))
        with pytest.raises(KeyboardInterrupt):
            first.wait()
        for pending in (first, second):
            with pytest.raises(GroupBroken, match="interrupted"):
                pending.wait()


def test_a_thread_interrupted_between_two_operations_can_still_wait() -> None:
    with wired_world(TCP, 2) as ranks:
        group = ranks.groups[0]
        assert isinstance(group, TcpGroup)
        pending = group._enqueue(lambda: None)
        taken = group._queue.popleft()  # as if a signal handler had raised right after this thread took it
        group._runner = threading.get_ident()
        later = group._enqueue(lambda: None)
        assert taken is pending
        for each in (pending, later):
            with pytest.raises(GroupBroken, match="interrupted"):
                each.wait()


def test_an_array_with_holes_is_refused() -> None:
    with wired_world(TCP, 2) as ranks, pytest.raises(BadInput, match="contiguous"):
        ranks.groups[0].all_reduce(np.ones((4, 4))[:, 1])


def test_a_peer_that_announces_too_much_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with wired_world(TCP, 2) as ranks:
        one, other = ranks.groups
        assert isinstance(other, TcpGroup)
        other._links[0].sock.sendall((1 << 40).to_bytes(8, "big"))
        with pytest.raises(GroupBroken, match="announced"):
            one.gather(b"")


def test_a_machine_that_acknowledges_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with wired_world(TCP, 2) as ranks:
        one = ranks.groups[0]
        assert isinstance(one, TcpGroup)
        link = one._links[0]
        monkeypatch.setattr(links, "LOOK_S", 0.05)
        link.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, b"\0" * 8 + (50_000).to_bytes(8, "little"))

        def silent(self: links.Link) -> None:
            raise links.LinkLost(self.rank, "no response for 10 s")

        monkeypatch.setattr(links.Link, "require_answering", silent)
        with pytest.raises(GroupBroken, match="no response") as caught:
            one.gather(b"")
        assert caught.value.peer == "m1"


def test_the_system_says_since_when_a_machine_is_silent() -> None:
    with wired_world(TCP, 2) as ranks:
        one = ranks.groups[0]
        assert isinstance(one, TcpGroup)
        one._links[0].require_answering()  # it answers


def test_a_group_keeps_few_descriptors() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 256
    with wired_world(TCP, 4) as ranks:
        for group in ranks.groups:
            assert isinstance(group, TcpGroup)
            assert len(group._links) == 3
            assert not any(link.sock.get_inheritable() for link in group._links)


def test_a_world_of_one_needs_no_connection() -> None:
    with ranked_world(TCP, 1) as ranks:
        group: Group[Any] = wiring.TcpWiring(ranks.world, ranks.talkers[0].name, None).run()
        array = np.ones(3)
        group.start_all_reduce(array).wait()
        assert array.tolist() == [1, 1, 1]
        assert group.gather(b"x") == [b"x"]
        group.dispose()
