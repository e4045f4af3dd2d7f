"""A wiring ends, with the reason, whatever its peers are up to."""

import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
import torch

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId
from pliant.core.model.world import World, WorldKind
from pliant.errors import BadInput
from pliant.torch.gloo.group import GATHER_MAX, GlooGroup
from pliant.torch.gloo.sockets import parse_published
from pliant.torch.gloo.wiring import GlooWiring
from pliant.torch.group.contract import GroupBroken
from pliant.train.peer.framing import PeerLost
from pliant.train.peer.kv import PeerValue, PeerValues
from unit.torch.blob import blob

ME, OTHER = MemberId("me"), MemberId("other")
PATIENCE_S = 30.0


class Forger:
    """The other member of a world of two, as far as this wiring can tell: it answers letters as a test wants."""

    def __init__(self, answer: Callable[[str, bytes], dict[str, bytes]]) -> None:
        self.mailbox = PeerValues()
        self._answer = answer
        world = World(5, WorldKind.PLANNED, (ME, OTHER), (1, 1), Lineage(0, 0, 0))
        self.wiring = GlooWiring(world, "ab" * 32, ME, self, self.mailbox)
        self.raised: list[Exception] = []
        self.thread = threading.Thread(target=self._run)

    def notify(self, generation: int, member: MemberId, kind: str, head: bytes) -> None:
        assert (generation, member, kind) == (5, OTHER, "store")
        told = msgspec.msgpack.decode(head, type=PeerValue)
        for key, value in self._answer(told.key, told.value).items():
            self.mailbox.put(5, key, value)

    def _run(self) -> None:
        try:
            self.wiring.run()
        except GroupBroken as error:
            self.raised.append(error)

    def broken(self) -> GroupBroken:
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()
        [error] = self.raised
        assert isinstance(error, GroupBroken)
        return error


def rank_1(key: str) -> str:
    assert key.endswith("/0")
    return key.removesuffix("0") + "1"


def test_a_peer_that_published_and_never_connects_is_given_up_when_the_wiring_is_broken_off() -> None:
    """gloo waits for it within its constructor, where nothing but a visitor reaches it."""
    published_both = threading.Event()

    def answer(key: str, value: bytes) -> dict[str, bytes]:
        published_both.set()
        return {rank_1(key): blob(("127.255.255.254", 65535), [0, 1])}  # the greater address connects to the lesser

    forger = Forger(answer)
    forger.thread.start()
    assert published_both.wait(PATIENCE_S)
    forger.thread.join(0.2)
    assert forger.thread.is_alive()
    began = time.monotonic()
    forger.wiring.break_off()
    assert "was broken off" in forger.broken().why
    assert time.monotonic() - began < 5.0


def test_a_peer_that_died_after_it_published_is_named() -> None:
    # The lowest address there is, so that it is we who are to connect; no member listens there.
    forger = Forger(lambda key, _: {rank_1(key): blob(("127.0.0.0", 1), [0, 1])})
    forger.thread.start()
    broken = forger.broken()
    assert "generation 5 could not be wired" in broken.why
    assert broken.peer == OTHER


def test_a_peer_that_connects_and_says_nothing_more_is_given_up_when_the_wiring_is_broken_off() -> None:
    visitors: list[socket.socket] = []
    connected = threading.Event()

    def answer(key: str, value: bytes) -> dict[str, bytes]:
        if "/links/" in key:
            connected.set()
            return {}
        mine = parse_published(value)
        visitors.append(socket.create_connection(mine.address))
        visitors[0].sendall(struct.pack("=q", mine.places[1]))
        return {rank_1(key): blob(("127.255.255.254", 65535), [0, 1])}

    forger = Forger(answer)
    forger.thread.start()
    assert connected.wait(PATIENCE_S)
    forger.wiring.break_off()
    assert "was broken off" in forger.broken().why
    visitors[0].settimeout(PATIENCE_S)
    assert visitors[0].recv(1) == b""
    visitors[0].close()


def test_a_connection_that_no_member_calls_its_own_breaks_the_wiring() -> None:
    """A member on the network took the place of a member at gloo's port, which asks no member for a credential."""
    stranger: list[socket.socket] = []

    def answer(key: str, value: bytes) -> dict[str, bytes]:
        if "/links/" in key:
            return {rank_1(key): msgspec.msgpack.encode([(("127.0.0.1", 9), ("127.0.0.1", 10))])}
        mine = parse_published(value)
        stranger.append(socket.create_connection(mine.address))
        stranger[0].sendall(struct.pack("=q", mine.places[1]))
        return {rank_1(key): blob(("127.255.255.254", 65535), [0, 1])}

    forger = Forger(answer)
    forger.thread.start()
    broken = forger.broken()
    assert f"no member claims the connection with 127.0.0.1:{stranger[0].getsockname()[1]}" in broken.why
    stranger[0].close()


@pytest.mark.parametrize("value", [b"nonsense", b"\xc1", blob(("10.0.0.1", 1), [0])[:-1]], ids=["text", "byte", "cut"])
def test_a_peer_that_publishes_nonsense_breaks_the_wiring_with_the_reason(value: bytes) -> None:
    forger = Forger(lambda key, _: {rank_1(key): value})
    forger.thread.start()
    assert "in another form" in forger.broken().why


def test_a_peer_that_cannot_be_told_breaks_the_wiring_with_the_reason() -> None:
    def answer(key: str, value: bytes) -> dict[str, bytes]:
        raise PeerLost("4096 messages wait for a member that takes none")

    forger = Forger(answer)
    forger.thread.start()
    assert "4096 messages wait" in forger.broken().why


def test_who_is_not_in_the_world_cannot_wire_it() -> None:
    world = World(5, WorldKind.PLANNED, (OTHER,), (1,), Lineage(0, 0, 0))
    with pytest.raises(BadInput, match="me is not a member of generation 5"):
        GlooWiring(world, "", ME, Forger(lambda *_: {}), PeerValues())


def test_the_prefix_cannot_be_guessed_and_does_not_give_the_key_away() -> None:
    keys: list[str] = []

    def answer(key: str, value: bytes) -> dict[str, bytes]:
        keys.append(key)
        raise PeerLost("enough")

    forger = Forger(answer)
    forger.thread.start()
    forger.broken()
    assert len(keys[0].partition("/")[0]) == 64
    assert "ab" * 8 not in keys[0]


# -------------------------------------------------------------------------------------------------- a world of one


def alone() -> GlooGroup:
    world = World(3, WorldKind.PLANNED, (ME,), (1,), Lineage(0, 0, 0))
    return GlooWiring(world, "", ME, Forger(lambda *_: {}), PeerValues()).run()


def test_a_world_of_one_leaves_its_tensors_as_they_are() -> None:
    group = alone()
    assert (group.generation, group.rank, group.size) == (3, 0, 1)
    tensor = torch.arange(5.0)
    pending = group.all_reduce(tensor)
    pending.wait()
    pending.wait()
    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    group.barrier()
    assert group.gather(b"x") == [b"x"]
    group.dispose()
    group.dispose()
    with pytest.raises(GroupBroken, match="broken off"):
        group.all_reduce(tensor)


def test_what_is_gathered_is_bounded() -> None:
    with pytest.raises(BadInput, match="At most 16777216 bytes"):
        alone().gather(bytes(GATHER_MAX + 1))
