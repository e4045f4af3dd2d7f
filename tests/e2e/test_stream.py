"""The event stream: in order, without a gap, and to be taken up again wherever it broke off."""

import re
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from e2e.examples import JOB, TERMS, furnish
from e2e.running import Running, start, token_of, wait_for
from pliant.client import Client
from pliant.coordinator.api.handlers import READ_AT_ONCE, STREAMS_MAX, read_page
from pliant.core import messages as m
from pliant.core.model.job import Target
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.base import Entry, Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import Scope, TokenRequest

STREAM = {"accept": "text/event-stream"}
URL = f"/v1/jobs/{JOB}/events"
Sent = tuple[int, str, str]
"""An event as it was sent: its id, its kind and its data."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with start(home=tmp_path, lease_ttl_s=3600.0, stream_quiet_s=0.2) as running:
        furnish(running)
        yield running


def slow_client(running: Running) -> httpx2.Client:
    """One whose socket takes in little that it was not asked for."""
    options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)]
    transport = httpx2.HTTPTransport(socket_options=options)
    headers = {"authorization": f"Bearer {running.token.text}"}
    return httpx2.Client(base_url=running.url, headers=headers, transport=transport, timeout=30.0)


def events_in(response: httpx2.Response) -> Iterator[Sent]:
    """The events of a stream until it ends."""
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    found: dict[str, str] = {}
    for line in response.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif found:
            yield int(found["id"]), found["event"], found["data"]
            found = {}


def resize(client: Client, times: int) -> None:
    for number in range(times):
        client.send(JOB, m.Resize(Target(3 + number % 2)))


def page(running: Running, after: int = 0) -> list[int]:
    return [line["revision"] for line in running.admin.get(f"{URL}?after={after}&limit=1000").json()["events"]]


def read(running: Running, until: int, url: str = URL, **headers: str) -> list[Sent]:
    """Read a stream of one's own up to a revision."""
    found: list[Sent] = []
    with running.http(running.token).stream("GET", url, headers=STREAM | headers) as response:
        for event in events_in(response):
            found.append(event)
            if event[0] == until:
                break
    return found


# ----------------------------------------------------------------------------------------------- order and gaps


def test_a_stream_has_every_event_in_order_as_the_pages_have_them(running: Running) -> None:
    resize(running.client(), 20)
    lines = running.admin.get(f"{URL}?limit=1000").json()["events"]
    sent = read(running, lines[-1]["revision"])
    assert [event[0] for event in sent] == list(range(1, len(lines) + 1))
    assert [event[1] for event in sent] == [line["event"]["type"] for line in lines]


def test_a_stream_goes_on_with_what_happens(running: Running) -> None:
    with running.http(running.token).stream("GET", URL, headers=STREAM) as response:
        stream, client = events_in(response), running.client()
        for _ in range(20):
            resize(client, 2)
            newest = page(running)[-1]
            assert list(iter(lambda: next(stream)[0], newest))[-1:] in ([newest - 1], [])


def test_a_stream_is_taken_up_after_the_last_id_or_a_revision(running: Running) -> None:
    resize(running.client(), 20)
    newest = page(running)[-1]
    for after in (1, 7, newest - 1):
        rest = list(range(after + 1, newest + 1))
        assert [event[0] for event in read(running, newest, f"{URL}?after={after}")] == rest
        assert [event[0] for event in read(running, newest, **{"last-event-id": str(after)})] == rest
        # What was read last counts more than what was asked for first: so a browser comes back by itself.
        assert [event[0] for event in read(running, newest, f"{URL}?after=0", **{"last-event-id": str(after)})] == rest


@pytest.mark.parametrize("text", ["-1", "x", "1.0", "9" * 17, "1 2", "1,2"])
def test_a_last_id_that_is_none_is_refused(running: Running, text: str) -> None:
    assert running.admin.get(URL, headers=STREAM | {"last-event-id": text}).status_code == 422


def test_a_stream_of_no_job_is_refused(running: Running) -> None:
    assert running.admin.get("/v1/jobs/unknown/events", headers=STREAM).status_code == 404


def test_a_stream_that_has_nothing_to_say_says_so_now_and_then(running: Running) -> None:
    newest = page(running)[-1]
    with running.http(running.token).stream("GET", f"{URL}?after={newest}", headers=STREAM) as response:
        comments = (line for line in response.iter_lines() if line)
        assert [next(comments) for _ in range(3)] == [": nothing new"] * 3


def test_a_reader_that_breaks_off_again_and_again_misses_nothing(running: Running) -> None:
    resize(running.client(), 60)
    newest, seen = page(running)[-1], [0]
    while seen[-1] < newest:
        until = min(newest, seen[-1] + 7)
        seen += [event[0] for event in read(running, until, **{"last-event-id": str(seen[-1])})]
    assert seen == list(range(newest + 1))


# ------------------------------------------------------------------------------------------------- many and slow


def test_several_readers_each_have_everything_while_others_write(running: Running) -> None:
    first, last = page(running)[-1], page(running)[-1] + 300
    found: dict[int, list[int]] = {}

    def reader(number: int, after: int) -> Callable[[], None]:
        def follow() -> None:
            found[number] = [event[0] for event in read(running, last, f"{URL}?after={after}")]

        return follow

    threads = [threading.Thread(target=reader(number, number % 3)) for number in range(6)]
    for thread in threads:
        thread.start()
    resize(running.client(), last - first + 1)
    assert page(running, last - 1)[0] == last
    for thread in threads:
        thread.join(60.0)
    assert found == {number: list(range(number % 3 + 1, last + 1)) for number in range(6)}


def test_a_slow_reader_has_everything_and_holds_nobody_up(running: Running) -> None:
    client = running.client()
    members = [MemberId(f"slow-{number}") for number in range(12)]
    with slow_client(running) as http, http.stream("GET", URL, headers=STREAM) as response:
        stream = events_in(response)
        assert next(stream)[0] == 1
        for member in members:
            client.send(JOB, m.Join(member, AgentId("a1"), TERMS))
            client.send(JOB, m.Drain(member, 60.0, "x" * 500_000))  # more than the system keeps for a socket
        newest = page(running)[-1]
        assert [event[0] for event in read(running, newest)] == list(range(1, newest + 1))
        assert [next(stream)[0] for _ in range(2, newest + 1)] == list(range(2, newest + 1))


# ------------------------------------------------------------------------------------------------------ the end


def test_a_stream_ends_cleanly_when_the_coordinator_stops(running: Running) -> None:
    newest = page(running)[-1]
    with httpx2.Client(base_url=running.url, trust_env=False, timeout=20.0) as http:
        headers = STREAM | {"authorization": f"Bearer {running.token.text}"}
        with http.stream("GET", URL, headers=headers) as response:
            stream = events_in(response)
            assert [next(stream)[0] for _ in range(newest)][-1] == newest
            assert running.stop() == 0
            assert list(stream) == []  # and no error: its end was sent
    assert "Traceback" not in running.log, running.log


def test_a_coordinator_stops_although_somebody_does_not_read(running: Running) -> None:
    client = running.client()
    with slow_client(running) as http, http.stream("GET", URL, headers=STREAM):
        for number in range(12):
            member = MemberId(f"slow-{number}")
            client.send(JOB, m.Join(member, AgentId("a1"), TERMS))
            client.send(JOB, m.Drain(member, 60.0, "x" * 500_000))
        assert running.stop() == 0
    assert "Traceback" not in running.log


def test_a_reader_that_goes_is_let_go_of(running: Running) -> None:
    def open_streams() -> bool:
        return "pliant_watchers 0.0" not in running.admin.get("/metrics").text

    for _ in range(3):
        read(running, 1)
    wait_for(lambda: not open_streams(), "the streams to be closed")


def test_a_token_that_was_ended_stops_reading(running: Running) -> None:
    made = running.client().create_token(TokenRequest(Scope.READ))
    with running.http(token_of(made.token)).stream("GET", URL, headers=STREAM) as response:
        lines = response.iter_lines()
        next(lines)
        running.client().expire_token(made.line.id)
        assert list(lines)  # it comes to its end, although the job goes on


def test_the_streams_of_one_token_are_limited(running: Running) -> None:
    reader = token_of(running.client().create_token(TokenRequest(Scope.READ)).token)
    headers = STREAM | {"authorization": f"Bearer {reader.text}"}
    with ExitStack() as opened:
        for _ in range(STREAMS_MAX):
            answer = opened.enter_context(running.admin.stream("GET", URL, headers=headers))
            assert answer.status_code == 200
        refused = running.admin.get(URL, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (503, "busy")
        with running.admin.stream("GET", URL, headers=STREAM) as other:
            assert other.status_code == 200
    wait_for(lambda: _opens(running, headers), "a stream to be free again")


def _opens(running: Running, headers: dict[str, str]) -> bool:
    with running.admin.stream("GET", URL, headers=headers) as answer:
        return answer.status_code == 200


def test_a_page_ends_where_it_would_be_too_long() -> None:
    store = MemoryStore("a store")
    store.write([Write("job", 0, tuple(bytes([number]) * 100 for number in range(5)), b"record")])

    def revisions(after: int, limit: int, nbytes: int) -> tuple[list[int], bool]:
        page, is_last = read_page(store, "job", after, limit, nbytes)
        return [entry.revision for entry in page], is_last

    assert revisions(0, 100, 300) == ([1, 2, 3], False)
    assert revisions(3, 100, 300) == ([4, 5], True)
    assert revisions(0, 100, 50) == ([1], False)
    assert revisions(0, 2, 500) == ([1, 2], False)
    assert revisions(0, 5, 500) == ([1, 2, 3, 4, 5], False)  # whether more came is asked with the next page
    assert revisions(5, 5, 500) == ([], True)


class Counted(MemoryStore):
    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        assert limit <= READ_AT_ONCE
        return super().events(job, after, limit)


def test_large_events_are_never_read_all_at_once() -> None:
    store = Counted("a store")
    store.write([Write("job", 0, (bytes(1 << 16),) * (2 * READ_AT_ONCE), b"record")])
    assert len(read_page(store, "job", 0, 1000, 1 << 18)[0]) == 4
    assert len(read_page(store, "job", 0, 1000, 1 << 30)[0]) == 2 * READ_AT_ONCE


# ---------------------------------------------------------------------------------------- readers that do not read


def test_readers_that_do_not_read_fill_no_memory_and_are_let_go_of(tmp_path: Path) -> None:
    with start(home=tmp_path, lease_ttl_s=3600.0, stall_s=2.0, head_time_s=2.0) as running, ExitStack() as opened:
        furnish(running)
        fill(running)
        assert len(running.admin.get(f"{URL}?limit=1000").content) > 200_000
        before = most_memory(running)
        reader = token_of(running.client().create_token(TokenRequest(Scope.READ)).token)
        headers = f"Host: {running.url[7:]}\r\nAuthorization: Bearer {reader.text}\r\n"
        silent = []
        for number in range(300):
            sock = opened.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", running.port))
            accept = "Accept: text/event-stream\r\n" if number % 10 == 0 else ""
            sock.sendall(f"GET {URL}?limit=1000 HTTP/1.1\r\n{headers}{accept}\r\n".encode() * 12)
            silent.append(sock)
        wait_for(lambda: len(select.select(silent, [], [], 0)[0]) == len(silent), "every silent reader's answer")
        assert page(running)[0] == 1  # others are served meanwhile
        allowed = {"authorization": f"Bearer {reader.text}"}
        wait_for(lambda: running.admin.get(URL, headers=allowed).status_code == 200, "the token to be served again")
        assert most_memory(running) - before < 100e6


def fill(running: Running) -> None:
    """Give the job events of two megabytes."""
    client = running.client()
    fingerprint = tuple((f"name-{number}", "x" * 255) for number in range(32))
    for number in range(200):
        member = MemberId(f"filler-{number}")
        client.send(JOB, m.Join(member, AgentId("a1"), TERMS, fingerprint=fingerprint))
        client.send(JOB, m.Leave(member, 0, "it has filled enough"))


def most_memory(running: Running) -> int:
    """The most bytes that the coordinator has had in memory."""
    (kib,) = re.findall(r"VmHWM:\s+([0-9]+) kB", Path(f"/proc/{running.pid}/status").read_text())
    return int(kib) * 1024
