"""Strangers: a member listens only to members that the coordinator named, and no stranger costs it time or memory."""

import secrets
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator

import msgspec
import pytest

from pliant.core.model.names import MemberId
from pliant.train.peer import framing
from pliant.train.peer import server as peers_module
from pliant.train.peer.framing import (
    Challenge,
    DamagedFrame,
    GenerationUnknown,
    Hello,
    PeerConnection,
    PeerNotAuthenticated,
)
from pliant.train.peer.server import PeerLost
from unit.train.pair import KEY, PATIENCE_S, Talker, introduce, talker
from unit.train.relay import Relay

A, B, C = MemberId("a"), MemberId("b"), MemberId("c")
NEVER = threading.Event()
BODY = bytes(range(256)) * 8192  # two pieces


@pytest.fixture
def b() -> Iterator[Talker]:
    """The member that strangers come to. It knows `a` and itself in generation 1."""
    member = talker("b", lambda *_: (b"head", [memoryview(BODY)]))
    member.peers.add_generation(1, KEY, {A: "127.0.0.1:1", B: member.peers.address})
    yield member
    member.peers.close()


def visit(b: Talker) -> socket.socket:
    host, _, port = b.peers.address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(PATIENCE_S)
    return sock


def turned_away(sock: socket.socket) -> bytes:
    """All that comes until the member closes the connection."""
    said = b""
    try:
        while data := sock.recv(4096):
            said += data
    except ConnectionResetError:
        pass
    return said


def framed(data: bytes) -> bytes:
    return struct.pack("!II", len(data), zlib.crc32(data)) + data


def hello(generation: int = 1, asker: MemberId = A, answerer: MemberId = B, nonce: bytes = bytes(32)) -> bytes:
    return msgspec.msgpack.encode(Hello("pliant-peers-1", generation, asker, answerer, nonce))


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: b\r\n\r\n",
        bytes(100),
        framed(b""),
        framed(b"not a hello"),
        framed(msgspec.msgpack.encode(["pliant-peers-1", "one", "a", "b", bytes(32)])),
        framed(msgspec.msgpack.encode(["pliant-peers-0", 1, "a", "b", bytes(32)])),
        framed(hello(answerer=C)),
        framed(hello(nonce=b"short")),
        struct.pack("!II", 8, 1) + b"12345678",
    ],
    ids=["http", "zeros", "empty", "garbage", "types", "protocol", "another", "nonce", "checksum"],
)
def test_who_does_not_say_hello_is_turned_away_without_a_word(b: Talker, said: bytes) -> None:
    with visit(b) as sock:
        sock.sendall(said)
        assert turned_away(sock) == b""
    assert b.heard.empty()


@pytest.mark.parametrize("length", [framing.HELLO_MAX + 1, 1 << 30, (1 << 32) - 1])
def test_a_stranger_cannot_announce_much(b: Talker, length: int) -> None:
    with visit(b) as sock:
        sock.sendall(struct.pack("!II", length, 0))
        assert turned_away(sock) == b""


@pytest.mark.parametrize(("generation", "asker"), [(2, A), (1, C), (0, A), (-1, A)])
def test_who_is_not_known_gets_no_proof_to_study(b: Talker, generation: int, asker: MemberId) -> None:
    with visit(b) as sock:
        sock.sendall(framed(hello(generation, asker)))
        assert turned_away(sock) == framed(msgspec.msgpack.encode(Challenge(known=False)))


def test_a_proof_made_with_another_key_opens_nothing(b: Talker) -> None:
    with visit(b) as sock:
        line = PeerConnection(sock)
        with pytest.raises(PeerNotAuthenticated, match="does not have the key of generation 1"):
            framing.authenticate_to_peer(line, 1, A, B, secrets.token_bytes(32))
        # A stranger that ignores the missing answer and goes on.
        sock.sendall(framed(bytes(32)) + framed(msgspec.msgpack.encode(["Told", 1, "x", b"let me in"])))
        assert turned_away(sock) == b""
    assert b.heard.empty()


def test_what_the_member_proves_cannot_be_used_to_answer_it(b: Talker) -> None:
    """Two connections: the challenge of the one is given back as the proof of the other, and of itself."""
    with visit(b) as first:
        line = PeerConnection(first)
        line.send(hello())
        challenge = msgspec.msgpack.decode(line.receive(1024), type=Challenge)
        with visit(b) as second:
            other = PeerConnection(second)
            other.send(hello(nonce=challenge.nonce))
            again = msgspec.msgpack.decode(other.receive(1024), type=Challenge)
            assert again.nonce != challenge.nonce
            line.send(again.proof)
            other.send(challenge.proof)
            assert turned_away(first) == b""
            assert turned_away(second) == b""


def test_a_good_conversation_played_again_opens_nothing(b: Talker) -> None:
    a = talker("a")
    recorded: list[bytes] = []

    def record(connection: int, before: int, data: bytes) -> bytes:
        recorded.append(data)
        return data

    relay = Relay(b.peers.address, record)
    try:
        a.peers.add_generation(1, KEY, {B: relay.address})
        a.peers.notify(1, B, "x", b"pay 100")
        assert b.next() == (1, A, "x", b"pay 100")
    finally:
        a.peers.close()
        relay.close()
    with visit(b) as sock:
        sock.sendall(b"".join(recorded))
        turned_away(sock)
    assert b.heard.empty()


def test_a_member_with_the_wrong_key_can_neither_tell_nor_ask(b: Talker, caplog: pytest.LogCaptureFixture) -> None:
    a = talker("a")
    refusals = threading.Semaphore(0)
    original = b.peers._key_of

    def key_of(generation: int, member: MemberId) -> bytes | None:
        refusals.release()
        return original(generation, member)

    b.peers._key_of = key_of  # type: ignore[method-assign]
    try:
        wrong = secrets.token_hex(32)
        a.peers.add_generation(1, wrong, {B: b.peers.address})
        a.peers.notify(1, B, "x", b"hear me")
        for _ in range(3):
            assert refusals.acquire(timeout=PATIENCE_S)
        with pytest.raises(PeerLost, match="does not have the key"):
            a.peers.request(1, B, "x", b"", NEVER)
        assert b.heard.empty()
    finally:
        a.peers.close()
    assert caplog.text.count("cannot be delivered") == 1
    assert wrong not in caplog.text


def test_a_member_does_not_talk_to_one_that_only_pretends() -> None:
    """A member listens on a dead peer's port. It gets a hello, and nothing after it."""
    a = talker("a")
    with socket.create_server(("127.0.0.1", 0)) as pretender:
        a.peers.add_generation(1, KEY, {B: f"127.0.0.1:{pretender.getsockname()[1]}"})
        a.peers.notify(1, B, "x", b"a secret")
        sock, _ = pretender.accept()
        with sock:
            line = PeerConnection(sock)
            line.receive(1024)
            line.send(msgspec.msgpack.encode(Challenge(True, bytes(32), bytes(32))))
            assert turned_away(sock) == b""
        a.peers.close()


def test_a_stranger_that_says_nothing_is_not_waited_for(b: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "HANDSHAKE_S", 0.1)
    with visit(b) as sock:
        assert turned_away(sock) == b""


def test_a_stranger_that_dribbles_is_not_waited_for(b: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "HANDSHAKE_S", 0.1)
    gone = threading.Event()
    with visit(b) as sock:

        def dribble() -> None:
            try:
                for byte in struct.pack("!II", 1000, 0) + bytes(1000):
                    sock.sendall(bytes([byte]))
                    if gone.wait(0.01):
                        return
            except OSError:
                pass

        thread = threading.Thread(target=dribble)
        thread.start()
        assert turned_away(sock) == b""
        gone.set()
        thread.join()


def test_the_number_of_strangers_is_bounded_and_members_still_come_through(
    b: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_module, "UNAUTHENTICATED_MAX", 5)
    strangers = [visit(b) for _ in range(40)]
    a = talker("a")
    try:
        a.peers.add_generation(1, KEY, {B: b.peers.address})
        a.peers.notify(1, B, "x", b"through")
        assert b.next()[3] == b"through"
        for sock in strangers[:35]:
            assert turned_away(sock) == b""
        assert len(b.peers._unauthenticated) <= 5
    finally:
        a.peers.close()
        for sock in strangers:
            sock.close()


def test_a_connection_without_a_thread_is_closed_and_the_next_one_is_served(
    b: Talker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, failures = threading.Thread.start, ["can't start new thread"] * 2

    def scarce(thread: threading.Thread) -> None:
        if thread.name == "pliant-peer" and failures:
            raise RuntimeError(failures.pop())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    with visit(b) as sock:
        assert turned_away(sock) == b""
    a = talker("a")
    try:
        a.peers.add_generation(1, KEY, {B: b.peers.address})
        a.peers.notify(1, B, "x", b"through")
        assert b.next()[3] == b"through"
    finally:
        a.peers.close()
    assert not b.peers._unauthenticated
    assert caplog.text.count("A connection could not be served: can't start new thread.") == 2


# ------------------------------------------------------------------------------------------------ damage on the way


def spoiled(at: int) -> Callable[[int, int, bytes], bytes]:
    """Flip one bit of what comes back, that many bytes in."""

    def spoil(connection: int, before: int, data: bytes) -> bytes:
        if before <= at < before + len(data):
            place = at - before
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return data

    return spoil


@pytest.mark.parametrize("at", [5_000, 1 << 20, len(BODY)])
def test_a_flipped_bit_is_found_before_the_bytes_are_used(b: Talker, at: int) -> None:
    a = talker("a")
    relay = Relay(b.peers.address, back=spoiled(at))
    try:
        a.peers.add_generation(1, KEY, {B: relay.address})
        answer = a.peers.request(1, B, "state", b"", NEVER)
        with answer, pytest.raises(DamagedFrame, match=r"damaged on the way|was announced"):
            answer.readinto(memoryview(bytearray(answer.length)))
    finally:
        a.peers.close()
        relay.close()


def test_a_flipped_bit_in_what_is_told_is_never_heard(b: Talker) -> None:
    a = talker("a")

    def onward(connection: int, before: int, data: bytes) -> bytes:
        return data.replace(b"pay 100", b"pay 900") if connection < 2 else data

    relay = Relay(b.peers.address, onward)
    try:
        a.peers.add_generation(1, KEY, {B: relay.address})
        a.peers.notify(1, B, "x", b"pay 100")
        assert b.next()[3] == b"pay 100"
        assert b.heard.empty()
        assert relay.connections == 3
    finally:
        a.peers.close()
        relay.close()


def test_a_member_that_sends_what_is_no_message_is_hung_up_on(b: Talker) -> None:
    for said in (framed(b"no message"), struct.pack("!II", framing.HEAD_MAX + 1, 0)):
        with visit(b) as sock:
            line = PeerConnection(sock)
            framing.authenticate_to_peer(line, 1, A, B, bytes.fromhex(KEY))
            sock.sendall(said)
            assert turned_away(sock) == b""
    assert b.heard.empty()


def test_a_generation_that_is_over_is_not_known_any_more(b: Talker) -> None:
    b.peers.forget_below(2)
    b.peers.add_generation(1, KEY, {A: "127.0.0.1:1"})  # a view that came late
    with visit(b) as sock, pytest.raises(GenerationUnknown):
        framing.authenticate_to_peer(PeerConnection(sock), 1, A, B, bytes.fromhex(KEY))


def test_what_came_before_it_was_over_is_hung_up_on(b: Talker) -> None:
    a = talker("a")
    introduce(3, a, b)
    with visit(b) as sock:
        framing.authenticate_to_peer(PeerConnection(sock), 3, A, B, bytes.fromhex(KEY))
        b.peers.forget_below(4)
        assert turned_away(sock) == b""
    a.peers.close()
