"""The end of a connection means the same with TLS: a killed process has hung up, one that was closed has not."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.authority import authority, for_loopback, start_with_tls
from e2e.examples import JOB, furnish
from e2e.raw import Line, line
from e2e.running import Running, wait_for
from e2e.test_watch import M1, M2, broken, gone, opened, watch, watching
from pliant.core import messages as m
from pliant.credentials import TlsFiles

HOLD = """
import socket, ssl, sys
context = ssl.create_default_context(cafile=sys.argv[1])
link = context.wrap_socket(socket.create_connection(("127.0.0.1", int(sys.argv[2]))), server_hostname="127.0.0.1")
link.sendall(sys.stdin.buffer.read())
link.recv(1)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """m1 and m2 train together, with leases that outlast the test."""
    with encrypted(tmp_path, lease_ttl_s=3600.0) as running:
        client = running.client()
        worlds = [event.world for _, event in client.events(JOB, 0, 1000) if isinstance(event, m.WorldFormed)]
        client.send(JOB, m.Report(M1, 0, worlds[-1].number, ()))
        yield running


def encrypted(tmp_path: Path, **limits: Any) -> Running:
    made = authority(tmp_path / "tls")
    running = start_with_tls(tmp_path / "home", for_loopback(made), TlsFiles(made.cert_file), **limits)
    furnish(running)
    return running


def test_a_process_that_is_killed_in_its_watch_has_hung_up(running: Running) -> None:
    """Its system closes the connection without the end that TLS has for it."""
    client, before = running.client(), watching(running)
    assert running.tls.ca_file is not None
    argv = [sys.executable, "-c", HOLD, str(running.tls.ca_file), str(running.port)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        holder.stdin.write(watch(running, M1))
        holder.stdin.close()
        wait_for(lambda: watching(running) == before + 1, "the watch to be open")
        holder.kill()
        wait_for(lambda: broken(client), "the suspicion to be acted on")
    assert broken(client)[0].why == "m1 does not answer"
    assert gone(client) == []


def test_a_watch_that_is_ended_as_tls_ends_connections_has_hung_up(running: Running) -> None:
    client, one = running.client(), opened(running, M1)
    one.socket.settimeout(0.0)
    with suppress(OSError):  # why: unless the coordinator's part is there already, the operation did not complete
        one.socket.unwrap()  # type: ignore[attr-defined]  # sends its part
    wait_for(lambda: broken(client), "the suspicion to be acted on")
    assert broken(client)[0].why == "m1 does not answer"
    one.close()


def test_a_watch_that_was_answered_may_be_closed(running: Running) -> None:
    client = running.client()
    with line(running) as one:
        one.send(watch(running, M1, after=0))
        assert one.answer().status == 200
    opened(running, M2).close()
    wait_for(lambda: broken(client), "the later suspicion to be acted on")
    assert [event.why for event in broken(client)] == ["m2 does not answer"]


def test_who_dies_between_two_watches_is_lost_though_nobody_at_all_is_heard(tmp_path: Path) -> None:
    with encrypted(tmp_path, lease_ttl_s=1.0) as running:
        client, one, two = running.client(), Line(running), Line(running)
        for each, member in ((two, M2), (one, M1)):
            each.send(watch(running, member, after=0))
            assert each.answer().status == 200
        one.close()
        wait_for(lambda: gone(client), "m1 to be lost")
        assert [(event.member, event.why) for event in gone(client)] == [(M1, "its lease ran out")]
        two.close()


def lost_beside(running: Running) -> list[str]:
    """Let m2 end its connection, wait until it is lost for that, and return all who are."""
    client, two = running.client(), Line(running)
    two.send(watch(running, M2, after=0))
    assert two.answer().status == 200
    two.close()
    wait_for(lambda: M2 in [event.member for event in gone(client)], "m2 to be lost")
    return [event.member for event in gone(client)]


def test_whose_connection_the_coordinator_closed_itself_has_not_hung_up(tmp_path: Path) -> None:
    with encrypted(tmp_path, lease_ttl_s=1.0, head_time_s=0.2) as running, line(running) as one:
        one.send(watch(running, M1, after=0))
        assert one.answer().status == 200
        one.send(b"GET /v1")  # and no more: too slow
        assert one.ended()
        assert lost_beside(running) == [M2]


@pytest.mark.parametrize("ends", ["at once", "later"])
def test_who_closes_after_the_coordinator_closed_has_not_hung_up(tmp_path: Path, ends: str) -> None:
    """The coordinator closes after an answer to a request that asks for it; the client's own end is the answer."""
    with encrypted(tmp_path, lease_ttl_s=1.0) as running, line(running) as one:
        one.send(watch(running, M1, after=0).replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        assert one.answer().status == 200
        assert one.ended()
        if ends == "at once":
            one.close()
        assert lost_beside(running) == [M2]
