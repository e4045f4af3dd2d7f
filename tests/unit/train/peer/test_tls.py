"""Members that encrypt: nothing in between reads along or passes for a member, and one that does not is refused."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from pliant.core.model.names import MemberId
from pliant.train.peer.framing import PeerConnection, PeerNotAuthenticated, authenticate_peer, authenticate_to_peer
from pliant.train.peer.server import PeerLost
from pliant.train.peer.tls import PeerTls
from unit.train.pair import KEY, PATIENCE_S, Make, in_thread, introduce, talkers
from unit.train.relay import Relay

A, B = MemberId("a"), MemberId("b")
NEVER = threading.Event()
SECRET = b"the weights of the model"


@pytest.fixture
def make() -> Iterator[Make]:
    with talkers(tls=True) as one:
        yield one


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_what_members_send_can_be_read_on_the_wire_only_without_tls(tls: bool) -> None:
    seen: list[bytes] = []

    def listen(_connection: int, _before: int, data: bytes) -> bytes | None:
        seen.append(data)
        return data

    with talkers(tls=tls) as make:
        a, b = make("a"), make("b", lambda *_: (b"", [memoryview(SECRET * 1000)]))
        with closing(Relay(b.peers.address, listen, listen)) as relay:
            introduce(1, a, b)
            a.peers.add_generation(1, KEY, {A: a.peers.address, B: relay.address})
            a.peers.notify(1, B, "x", SECRET)
            assert b.next() == (1, A, "x", SECRET)
            with a.peers.request(1, B, "state", b"", NEVER) as reply:
                received = bytearray(reply.length)
                reply.readinto(memoryview(received))
        assert received == SECRET * 1000
    assert (SECRET in b"".join(seen)) is not tls


def pair() -> tuple[PeerConnection, PeerConnection]:
    host = socket.create_server(("127.0.0.1", 0))
    with host:
        client = socket.create_connection(host.getsockname())
        server, _ = host.accept()
    return PeerConnection(client), PeerConnection(server)


def test_a_process_in_between_cannot_pass_proofs_on() -> None:
    """It has a certificate of its own towards each side, and hands every frame of the handshake on unchanged."""
    key = secrets.token_bytes(32)
    a, to_a = pair()
    to_b, b = pair()
    between = PeerTls()

    def ask() -> None:
        PeerTls().connect(a)
        authenticate_to_peer(a, 1, A, B, key)

    def answer() -> None:
        PeerTls().accept(b)
        authenticate_peer(b, B, lambda *_: key)

    def pass_on() -> None:
        between.accept(to_a)
        between.connect(to_b)
        for source, goal in ((to_a, to_b), (to_b, to_a)):  # the hello, and the challenge
            goal.send(source.receive(1024))

    asking, answering, passing = in_thread(ask), in_thread(answer), in_thread(pass_on)
    asking[0].join(PATIENCE_S)
    passing[0].join(PATIENCE_S)
    (error,) = asking[1]
    assert isinstance(error, PeerNotAuthenticated)
    assert error.why == "the process that answers as b does not have the key of generation 1"
    for each in (a, to_a, to_b, b):
        each.shut_down()
    answering[0].join(PATIENCE_S)
    assert len(answering[1]) == 1
    for each in (a, to_a, to_b, b):
        each.close()


def test_without_a_process_in_between_the_same_handshake_succeeds() -> None:
    key = secrets.token_bytes(32)
    a, b = pair()
    found: list[object] = []

    def answer() -> None:
        PeerTls().accept(b)
        found.append(authenticate_peer(b, B, lambda *_: key))

    thread, raised = in_thread(answer)
    PeerTls().connect(a)
    authenticate_to_peer(a, 1, A, B, key)
    thread.join(PATIENCE_S)
    assert (raised, found) == ([], [(1, A)])
    a.close()
    b.close()


@pytest.mark.parametrize("encrypts", [A, B])
def test_members_that_do_not_all_encrypt_do_not_meet_and_the_log_says_what_to_set(
    make: Make, encrypts: MemberId, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (make(name, tls=name == encrypts) for name in (A, B))
    introduce(1, a, b)
    stop = threading.Event()
    asked = threading.Timer(1.0, stop.set)
    asked.start()
    with pytest.raises(PeerLost, match="the request for state to b in generation 1 failed"):
        a.peers.request(1, B, "state", b"", stop)
    asked.cancel()
    (record,) = [each for each in caplog.records if each.name == "pliant.train.peer.server"]
    why = "TLS failed" if encrypts == B else "a member connected with TLS, which this one does not use"
    assert record.getMessage().startswith(f"A connection was refused: {why}")
    assert record.getMessage().endswith("If it was a member: set PLIANT_CA_FILE for all members or for none.")


def test_a_request_that_is_called_off_ends_while_nothing_is_read(make: Make) -> None:
    """Its body is larger than every buffer on the way, so the donor is in the middle of a record."""
    a, b = make("a"), make("b", lambda *_: (b"", [memoryview(bytes(1 << 20))] * 64))
    introduce(1, a, b)
    reply = a.peers.request(1, B, "state", b"", NEVER)
    part = bytearray(1 << 20)
    reply.readinto(memoryview(part))
    for each in (a, b):
        each.peers.forget_below(2)
    with pytest.raises(PeerLost):
        reply.readinto(memoryview(bytearray(60 << 20)))
    reply.close()
