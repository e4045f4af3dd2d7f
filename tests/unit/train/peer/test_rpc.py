"""Members ask one another, and every question ends: with an answer, a no, or the news that no member will answer."""

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.peer.server import PeerLost, RequestRefused
from unit.train.pair import KEY, PATIENCE_S, Make, count_calls, ended, in_thread, introduce, none_left, talkers

A, B = MemberId("a"), MemberId("b")
NEVER = threading.Event()


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    with talkers(tls=request.param) as one:
        yield one


def test_an_answer_of_64_megabytes_arrives_whole(make: Make) -> None:
    body = os.urandom(1 << 20) * 64
    parts = [memoryview(body)[: 3 << 20], memoryview(body)[3 << 20 : (3 << 20) + 5], memoryview(body)[(3 << 20) + 5 :]]

    def give(generation: int, asker: MemberId, kind: str, head: bytes) -> tuple[bytes, Iterable[memoryview]]:
        assert (generation, asker, kind, head) == (1, A, "state", b"all of it")
        return b"the head", parts

    a, b = make("a"), make("b", give)
    introduce(1, a, b)
    received = bytearray(len(body))
    with a.peers.request(1, B, "state", b"all of it", NEVER) as answer:
        assert (answer.head, answer.length) == (b"the head", len(body))
        # Views that do not end where pieces do.
        for start in range(0, len(body), 5_000_001):
            answer.readinto(memoryview(received)[start : start + 5_000_001])
    assert received == body


def test_an_answer_can_be_read_into_any_memory(make: Make) -> None:
    a, b = make("a"), make("b", lambda *_: (b"", [memoryview(b"12345678")]))
    introduce(1, a, b)
    numbers = memoryview(bytearray(8)).cast("I")
    with a.peers.request(1, B, "x", b"", NEVER) as answer:
        answer.readinto(numbers)
    assert numbers.tobytes() == b"12345678"


def test_an_answer_without_a_body_is_its_head(make: Make) -> None:
    a, b = make("a"), make("b", lambda *_: (b"head", []))
    introduce(1, a, b)
    with a.peers.request(1, B, "x", b"", NEVER) as answer:
        assert (answer.head, answer.length) == (b"head", 0)
        answer.readinto(memoryview(bytearray()))
        with pytest.raises(BadInput, match="has 0 left"):
            answer.readinto(memoryview(bytearray(1)))


def test_a_no_comes_with_its_reason(make: Make) -> None:
    def give(*_: object) -> tuple[bytes, Iterable[memoryview]]:
        raise RequestRefused("this member holds no state")

    a, b = make("a"), make("b", give)
    introduce(1, a, b)
    with pytest.raises(RequestRefused, match="holds no state"):
        a.peers.request(1, B, "state", b"", NEVER)


def test_a_giver_that_fails_says_no_without_its_secrets(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def give(*_: object) -> tuple[bytes, Iterable[memoryview]]:
        raise KeyError("something private")

    a, b = make("a"), make("b", give)
    introduce(1, a, b)
    with pytest.raises(RequestRefused, match="the request failed: KeyError") as refused:
        a.peers.request(1, B, "state", b"", NEVER)
    assert "private" not in str(refused.value)
    assert "The request for state from a failed" in caplog.text


def test_a_question_waits_until_the_peer_knows_the_generation(make: Make) -> None:
    a, b = make("a"), make("b", lambda *_: (b"yes", []))
    a.peers.add_generation(1, KEY, {B: b.peers.address})
    asked = count_calls(b.peers, "_key_of")
    answers: list[bytes] = []
    thread, raised = in_thread(lambda: answers.append(a.peers.request(1, B, "x", b"", NEVER).head))
    assert asked.acquire(timeout=PATIENCE_S)
    b.peers.add_generation(1, KEY, {A: a.peers.address})
    assert ended(thread)
    assert (answers, raised) == ([b"yes"], [])


class Slow:
    """Gives when it is told to, and knows whether it was asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.ready = threading.Event()

    def __call__(self, *_: object) -> tuple[bytes, Iterable[memoryview]]:
        self.asked.set()
        assert self.ready.wait(PATIENCE_S)
        return b"at last", [memoryview(bytearray(1 << 24))]


@pytest.fixture
def slow() -> Iterator[Slow]:
    giver = Slow()
    yield giver
    giver.ready.set()


@pytest.mark.parametrize("how", ["stop", "forget", "close", "giver forgets", "giver closes"])
def test_a_question_in_flight_ends_at_once(make: Make, slow: Slow, how: str) -> None:
    a, b = make("a"), make("b", slow)
    introduce(1, a, b)
    stop = threading.Event()
    thread, raised = in_thread(lambda: a.peers.request(1, B, "state", b"", stop))
    assert slow.asked.wait(PATIENCE_S)
    began = time.monotonic()
    {
        "stop": stop.set,
        "forget": lambda: a.peers.forget_below(2),
        "close": a.peers.close,
        "giver forgets": lambda: b.peers.forget_below(2),
        "giver closes": b.peers.close,
    }[how]()
    assert ended(thread)
    assert time.monotonic() - began < 5.0
    [error] = raised
    assert isinstance(error, PeerLost)
    assert "the request for state to b in generation 1 failed" in error.why


@pytest.mark.parametrize("how", ["stop", "forget", "giver closes"])
def test_reading_an_answer_ends_at_once(make: Make, slow: Slow, how: str) -> None:
    a, b = make("a"), make("b", slow)
    introduce(1, a, b)
    slow.ready.set()
    stop = threading.Event()
    with a.peers.request(1, B, "state", b"", stop) as answer:
        answer.readinto(memoryview(bytearray(1 << 20)))
        {"stop": stop.set, "forget": lambda: a.peers.forget_below(2), "giver closes": b.peers.close}[how]()
        with pytest.raises(PeerLost):
            answer.readinto(memoryview(bytearray(15 << 20)))


def test_a_giver_whose_asker_is_gone_is_free_again(make: Make, slow: Slow) -> None:
    a, b = make("a"), make("b", slow)
    introduce(1, a, b)
    slow.ready.set()
    a.peers.request(1, B, "state", b"", NEVER).close()  # of 16 MB nothing was read
    assert none_left("pliant-peer")


def test_asking_a_dead_peer_fails_at_once(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    b.peers.close()
    with pytest.raises(PeerLost, match="Connection refused"):
        a.peers.request(1, B, "x", b"", NEVER)


def test_asking_in_a_generation_that_is_over_fails(make: Make) -> None:
    a, b = make("a"), make("b")
    introduce(1, a, b)
    a.peers.forget_below(2)
    with pytest.raises(PeerLost, match="the generation is over"):
        a.peers.request(1, B, "x", b"", NEVER)


@pytest.mark.parametrize("how", ["stop", "forget", "close"])
def test_the_wait_for_a_machine_that_does_not_answer_ends_at_once(make: Make, how: str) -> None:
    """A listener whose queue is full takes no connection: to us it looks like a machine that is gone."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    port = full.getsockname()[1]
    waiting = [socket.socket() for _ in range(3)]
    for sock in waiting:
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
    a = make("a")
    a.peers.add_generation(1, KEY, {B: f"127.0.0.1:{port}"})
    stop = threading.Event()
    a.peers.notify(1, B, "x", b"")
    thread, raised = in_thread(lambda: a.peers.request(1, B, "x", b"", stop))
    began = time.monotonic()
    {"stop": stop.set, "forget": lambda: a.peers.forget_below(2), "close": a.peers.close}[how]()
    assert ended(thread)
    assert time.monotonic() - began < 5.0
    assert isinstance(raised[0], PeerLost)
    for sock in (full, *waiting):
        sock.close()
