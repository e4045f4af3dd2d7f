"""Members tell one another things: in order, once, and only those whom the coordinator named."""

import itertools
import os
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial

import pytest

from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.peer import rpc
from pliant.train.peer.server import PeerLost, PeerServer
from unit.descriptors import many_descriptors
from unit.train.pair import (
    KEY,
    PATIENCE_S,
    Make,
    Talker,
    count_calls,
    ended,
    gives_nothing,
    introduce,
    none_left,
    talker,
    talkers,
)
from unit.train.relay import Relay

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
NEVER = threading.Event()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with talkers(tls=request.param) as one:
        yield one


def test_what_is_told_is_heard_in_order(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    for number in range(300):
        a.peers.notify(1, B, "count", str(number).encode())
    assert [b.next() for _ in range(300)] == [(1, A, "count", str(number).encode()) for number in range(300)]


def test_both_ways_and_several_generations_do_not_mix(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    introduce(2, a, b)
    a.peers.notify(1, B, "x", b"old")
    a.peers.notify(2, B, "x", b"new")
    b.peers.notify(2, A, "y", b"back")
    assert {b.next(), b.next()} == {(1, A, "x", b"old"), (2, A, "x", b"new")}
    assert a.next() == (2, B, "y", b"back")


def test_a_peer_that_hears_of_the_generation_later_hears_what_was_told_before(make: Make) -> None:
    a, b = make("a"), make("b")
    a.peers.add_generation(1, KEY, {B: b.peers.address})
    asked = count_calls(b.peers, "_key_of")
    a.peers.notify(1, B, "x", b"early")
    a.peers.notify(1, B, "x", b"later")
    assert asked.acquire(timeout=PATIENCE_S)  # it came once, and was sent away
    assert asked.acquire(timeout=PATIENCE_S)  # and it came again
    assert b.heard.empty()
    introduce(1, a, b)
    assert [b.next()[3], b.next()[3]] == [b"early", b"later"]


@pytest.mark.parametrize("make", [False], indirect=True, ids=["plain"])
def test_what_a_cut_connection_swallowed_is_told_again_and_heard_once(make: Make) -> None:
    a, b = make("a"), make("b")
    sizes = itertools.cycle([300, 500, 400])
    limits = [next(sizes) for _ in range(10_000)]

    def onward(connection: int, before: int, data: bytes) -> bytes | None:
        return None if before + len(data) > limits[connection] else data

    def back(connection: int, before: int, data: bytes) -> bytes | None:
        """Now and then the message arrives, and the word that it was heard does not."""
        return None if connection % 3 == 1 and before > 100 else data

    relay = Relay(b.peers.address, onward, back)
    a.peers.add_generation(1, KEY, {B: relay.address})
    b.peers.add_generation(1, KEY, {A: a.peers.address})
    try:
        for number in range(60):
            a.peers.notify(1, B, "count", str(number).encode())
        assert [int(b.next()[3]) for _ in range(60)] == list(range(60))
        assert b.heard.empty()
        assert relay.connections > 3  # it was really cut
    finally:
        a.peers.close()
        relay.close()


def test_telling_a_dead_peer_is_given_up_when_it_is_forgotten(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    b.peers.close()
    a.peers.notify(1, B, "x", b"no receiver")
    [teller] = [thread for thread in threading.enumerate() if thread.name == "pliant-tell"]
    a.peers.forget_below(2)
    assert ended(teller)
    a.peers.notify(1, B, "x", b"too late, and no error")


def test_a_queue_that_nobody_empties_is_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "QUEUED_MAX", 10)
    a = make("a")
    a.peers.add_generation(1, KEY, {B: "127.0.0.1:1"})
    for _ in range(10):
        a.peers.notify(1, B, "x", b"")
    say = partial(a.peers.notify, 1, B, "x", b"")
    with pytest.raises(PeerLost, match="10 notifications are queued"):
        deque(iter(say, "never"), maxlen=0)  # one of the ten may be out of the queue, being tried


@pytest.mark.parametrize("make", [False], indirect=True, ids=["plain"])
def test_a_listener_that_fails_does_not_block_what_comes_after(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    heard = threading.Event()

    def hear(generation: int, sender: MemberId, kind: str, head: bytes) -> None:
        if head == b"bad":
            raise ValueError("a bug")
        heard.set()

    a = make("a")
    b = Talker(B, PeerServer("127.0.0.1", B, hear, gives_nothing))
    try:
        introduce(1, a, b)
        a.peers.notify(1, B, "x", b"bad")
        a.peers.notify(1, B, "x", b"good")
        assert heard.wait(PATIENCE_S)
        assert "could not be handled" in caplog.text
    finally:
        b.peers.close()


# --------------------------------------------------------------------------------------------- what callers do wrong


def test_an_unknown_peer_cannot_be_told_or_asked(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    for act in (lambda: a.peers.notify(1, C, "x", b""), lambda: a.peers.request(2, B, "x", b"", NEVER)):
        with pytest.raises(BadInput, match="call `add_generation` first"):
            act()


@pytest.mark.parametrize("key", ["", "abcd", "no hexadecimal digits at all, but long enough"])
def test_a_key_that_protects_nothing_is_refused(make: Make, key: str) -> None:
    with pytest.raises(BadInput, match="hexadecimal digits"):
        make("a").peers.add_generation(1, key, {})


def test_a_message_that_is_too_long_is_refused(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    with pytest.raises(BadInput, match="Send it as a body"):
        a.peers.notify(1, B, "x", bytes(rpc.PAYLOAD_MAX + 1))
    a.peers.notify(1, B, "x", bytes(rpc.PAYLOAD_MAX))
    assert len(b.next()[3]) == rpc.PAYLOAD_MAX


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_a_member_listens_where_others_can_reach_it(host: str) -> None:
    with pytest.raises(BadInput, match="Pass the address of an interface"):
        PeerServer(host, A, lambda *_: None, gives_nothing)


def test_members_talk_over_version_6_of_the_internet_protocol() -> None:
    heard = threading.Event()
    b = PeerServer("::1", B, lambda *_: heard.set(), gives_nothing)
    a = PeerServer("::1", A, lambda *_: None, gives_nothing)
    try:
        assert b.address.startswith("[::1]:")
        a.add_generation(1, KEY, {B: b.address})
        b.add_generation(1, KEY, {A: a.address})
        a.notify(1, B, "x", b"")
        assert heard.wait(PATIENCE_S)
    finally:
        a.close()
        b.close()


def test_a_process_with_many_open_files_reaches_its_peers(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    with many_descriptors(), a.peers.request(1, B, "x", b"", NEVER):
        pass


def test_closing_leaves_no_thread_and_no_descriptor(make: Make) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    a, b = talker("a"), talker("b")
    for generation in range(1, 6):
        introduce(generation, a, b)
        a.peers.notify(generation, B, "x", b"")
        b.next()
        with a.peers.request(generation, B, "x", b"", NEVER):
            pass
        for each in (a, b):
            each.peers.forget_below(generation)
    a.peers.close()
    b.peers.close()
    assert all(none_left(name) for name in ("pliant-peer", "pliant-tell", "pliant-listen"))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_nothing_secret_is_in_a_repr(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    assert KEY[:16] not in repr(vars(a.peers))
    assert repr(bytes.fromhex(KEY))[2:12] not in repr(vars(a.peers))
