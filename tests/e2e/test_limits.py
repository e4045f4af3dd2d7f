"""Limits for strangers on the socket: head, body, time and connections are bounded, and no descriptor leaks.

Each test ends with `unharmed`: the same process goes on, answers others, and has let go of every connection.
"""

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.examples import JOB, furnish
from e2e.raw import Line, ask, bearer, host, line, request
from e2e.running import Running, start, wait_for
from pliant.coordinator.api.app import BODY_MAX
from pliant.coordinator.api.middleware import HEAD_MAX
from pliant.wire.routes import CREATE, HEALTH, JOBS

KIB = 1024
SHORT_S = 0.5
CHUNKED = "transfer-encoding: chunked"
JSON = "content-type: application/json"
CREATE_BODY = b'{"name":"%s","spec":{"size_min":1,"size_max":1}}'


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A coordinator that is quick to lose its patience."""
    home = tmp_path_factory.mktemp("limited")
    with start(home=home, lease_ttl_s=3600.0, head_time_s=SHORT_S, body_time_s=SHORT_S) as running:
        furnish(running)
        yield running


@contextlib.contextmanager
def unharmed(running: Running) -> Iterator[None]:
    running.admin.get("/v1/jobs")
    before, errors = running.open_files(), running.log.count("Traceback")
    yield
    assert running.alive
    assert running.admin.get("/v1/jobs").status_code == 200
    wait_for(lambda: running.open_files() <= before, "the connections to be let go of")
    assert running.log.count("Traceback") == errors, running.log


def healthz(running: Running) -> bytes:
    return request(HEALTH.path, host(running))


# ------------------------------------------------------------------------------------------------------ the head


@pytest.mark.parametrize("size", [HEAD_MAX + 1, 18 * KIB, 20 * KIB, 64 * KIB, 4096 * KIB])
def test_a_head_that_is_too_long_is_refused_or_cut_off(limited: Running, size: int) -> None:
    with unharmed(limited):
        answer = ask(limited, request(HEALTH.path, host(limited), "x-long: " + "x" * size))
        assert answer.status in (0, 431)
        many = [f"x-{number}: {'x' * 100}" for number in range(size // 100)]
        assert ask(limited, request(HEALTH.path, host(limited), *many)).status in (0, 431)


def test_a_head_within_the_limit_is_read(limited: Running) -> None:
    with unharmed(limited):
        answer = ask(limited, request(HEALTH.path, host(limited), "x-long: " + "x" * (HEAD_MAX - 100)))
        assert answer.status == 200


def test_an_address_that_is_too_long_is_refused(limited: Running) -> None:
    with unharmed(limited):
        for target in ("/" + "x" * 3000, "/v1/jobs?after=" + "1" * 3000):
            assert ask(limited, request(target, host(limited), bearer(limited))).status == 414


def test_a_header_without_end_is_cut_off(limited: Running) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.send(b"GET /healthz HTTP/1.1\r\nx-endless: ")
        sent = 0
        while opened.send(b"x" * 4096):
            sent += 4096
            assert sent < 64 * KIB * KIB
        assert opened.ended()


@pytest.mark.parametrize("first", [b"", b"G", b"GET /healthz HTTP/1.1\r\n", b"\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(limited: Running, first: bytes) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.send(first)
        assert opened.ended()


def test_a_head_that_comes_a_byte_at_a_time_is_not_waited_for(limited: Running) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.socket.settimeout(0.02)
        ended = False
        for byte in request(HEALTH.path, "x-slow: " + "x" * 10_000):
            opened.send(bytes([byte]))
            with contextlib.suppress(TimeoutError):
                ended = opened.ended()
                break
        assert ended


@pytest.mark.parametrize("nothing", [b"\r\n", b"\r", b"\n\n\n", b"G"])
def test_after_an_answer_a_connection_cannot_be_held_with_nothing(limited: Running, nothing: bytes) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.send(healthz(limited))
        assert opened.answer().status == 200
        opened.send(nothing)
        assert opened.ended()


# ------------------------------------------------------------------------------------------------------ the body


def test_a_body_of_the_largest_size_is_read(limited: Running) -> None:
    body = CREATE_BODY % b"large"
    sent = [host(limited), bearer(limited), JSON]
    with unharmed(limited):
        spaces = b" " * (BODY_MAX - len(body))
        assert ask(limited, request(CREATE.path, *sent, method="POST", body=body + spaces)).status == 200
        assert ask(limited, request(CREATE.path, *sent, method="POST", body=body + spaces + b" ")).status == 413


@pytest.mark.parametrize("who", ["admin", "stranger"])
def test_a_length_that_is_too_large_is_refused_before_anything_comes(limited: Running, who: str) -> None:
    credential = [bearer(limited)] if who == "admin" else []
    with unharmed(limited), line(limited) as opened:
        opened.send(request(CREATE.path, host(limited), *credential, JSON, f"content-length: {10**12}", method="POST"))
        assert opened.answer().status == (413 if who == "admin" else 401)
        opened.send(b"x")
        assert opened.ended()


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "99999999999999999999999", "1, 2", "x"])
def test_a_length_that_is_no_number_is_refused(limited: Running, length: str) -> None:
    sent = [host(limited), bearer(limited), JSON, f"content-length: {length}"]
    with unharmed(limited):
        assert ask(limited, request(CREATE.path, *sent, method="POST")).status == 400


def test_a_body_in_chunks_is_bounded_too(limited: Running) -> None:
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with unharmed(limited), line(limited) as opened:
        opened.send(request(CREATE.path, host(limited), bearer(limited), JSON, CHUNKED, method="POST"))
        for _ in range(BODY_MAX // 65536 + 1):
            opened.send(chunk)
        assert opened.answer().status == 413


def test_a_body_that_stops_coming_is_not_waited_for(limited: Running) -> None:
    for framing in ("content-length: 100", CHUNKED):
        with unharmed(limited), line(limited) as opened:
            opened.send(request(CREATE.path, host(limited), bearer(limited), JSON, framing, method="POST"))
            assert opened.answer().status == 408
            opened.send(b"1")
            assert opened.ended()


def test_a_body_in_the_smallest_chunks_is_read(limited: Running) -> None:
    body = CREATE_BODY % b"tiny"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body + b" " * 20_000)
    with unharmed(limited):
        head = request(CREATE.path, host(limited), bearer(limited), JSON, CHUNKED, method="POST")
        assert ask(limited, head + chunks + b"0\r\n\r\n").status == 200


@pytest.mark.parametrize("endless", [b"0\r\nx-trailer: ", b"1;extension="])
def test_what_is_around_a_body_is_bounded(limited: Running, endless: bytes) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.send(request(CREATE.path, host(limited), JSON, CHUNKED, method="POST") + endless)
        sent = 0
        while opened.send(b"x" * 4096):
            sent += 4096
            assert sent < 64 * KIB * KIB
        assert opened.ended()


def test_a_trailer_is_no_header(limited: Running) -> None:
    with unharmed(limited):
        head = request(CREATE.path, host(limited), JSON, CHUNKED, method="POST")
        trailer = f"0\r\n{bearer(limited)}\r\n\r\n".encode()
        assert ask(limited, head + trailer).status == 401


# --------------------------------------------------------------------------------------------------- connections


def test_over_a_limit_connections_are_closed_and_others_are_answered(tmp_path: Path) -> None:
    with start(home=tmp_path, connections_max=20, head_time_s=SHORT_S) as running, unharmed(running):
        opened = [Line(running) for _ in range(100)]
        closed = [each for each in opened if each.send(b"G") and each.ended()]
        assert len(closed) == 100  # most at once, the rest for being slow
        assert running.admin.get("/v1").status_code == 200
        for each in opened:
            each.close()


def test_pipelined_requests_are_answered_in_order(limited: Running) -> None:
    with unharmed(limited), line(limited) as opened:
        sent = [host(limited), bearer(limited)]
        opened.send(b"".join(request(target, *sent) for target in ("/v1/jobs", "/nowhere", "/healthz", "/v1") * 3))
        assert [opened.answer().status for _ in range(12)] == [200, 404, 200, 200] * 3


def test_a_connection_with_thousands_of_pipelined_requests_is_dropped_at_once(limited: Running) -> None:
    """Each would wait for the one before it, and cost its place in the queue: the work grew with its square."""
    with unharmed(limited), line(limited) as opened:
        opened.send(b"GET / HTTP/1.1\r\n\r\n" * 14_000)
        assert opened.ended()


def test_who_hangs_up_is_noticed_behind_a_pipelined_request_too(limited: Running) -> None:
    def streams() -> str:
        lines = limited.admin.get("/metrics").text.splitlines()
        return next(line for line in lines if line.startswith("pliant_watchers "))

    with unharmed(limited):
        sent = [host(limited), bearer(limited)]
        with line(limited) as opened:
            stream = request(f"/v1/jobs/{JOB}/events", *sent, "accept: text/event-stream")
            opened.send(stream + request(JOBS.path, *sent))
            wait_for(lambda: streams() == "pliant_watchers 1.0", "the stream to be open")
        wait_for(lambda: streams() == "pliant_watchers 0.0", "the stream to be closed")


TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(189)
NOISE = random.Random(0).randbytes(4096)
GARBAGE = [b"\x00" * 100, NOISE, TLS_HELLO, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET\r\n\r\n", b"\xff\xfe\r\n"]


@pytest.mark.parametrize("garbage", GARBAGE, ids=["zeros", "noise", "tls", "http2", "no-target", "bom"])
def test_what_is_no_http_is_refused(limited: Running, garbage: bytes) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.send(garbage)
        assert opened.answer().status in (0, 400)
        assert opened.ended()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n content: folded\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost : 127.0.0.1\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\nhost: 127.0.0.1\r\n\r\n",
        b"NOTHING /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx: \x00\r\n\r\n",
    ],
    ids=["two-lengths", "folded", "space", "version", "method", "zero"],
)
def test_http_that_could_be_read_in_two_ways_is_refused(limited: Running, head: bytes) -> None:
    with unharmed(limited):
        assert ask(limited, head).status == 400


def test_an_upgrade_is_not_made(limited: Running) -> None:
    with unharmed(limited):
        for kind in ("websocket", "h2c"):
            sent = [host(limited), bearer(limited), "connection: upgrade", f"upgrade: {kind}"]
            assert ask(limited, request(JOBS.path, *sent, "sec-websocket-key: eA==")).status == 200


def test_http_1_0_is_answered_and_closed(limited: Running) -> None:
    with unharmed(limited), line(limited) as opened:
        opened.send(request(HEALTH.path, host(limited), version="HTTP/1.0"))
        assert opened.answer().status == 200
        assert opened.ended()


def test_a_half_closed_connection_is_let_go_of(limited: Running) -> None:
    watch = f"/v1/jobs/{JOB}/members/m1/watch?after={job_revision(limited)}&wait_s=60"
    for data in (b"", b"GET /hea", healthz(limited), request(watch, host(limited), bearer(limited))):
        with unharmed(limited), line(limited) as opened:
            opened.send(data)
            opened.socket.shutdown(socket.SHUT_WR)
            assert opened.ended()


def job_revision(running: Running) -> int:
    revision: int = json.loads(running.admin.get(f"/v1/jobs/{JOB}").content)["job"]["revision"]
    return revision
