"""The listener of a coordinator with TLS: how many handshakes it makes at a time, over real sockets."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from e2e.authority import authority, for_loopback
from pliant.coordinator import tls_listener
from pliant.coordinator.tls_listener import ServerTls, TlsListener, TlsServer

MOST = 4
RUNNERS = [asyncio.run, uvloop.run]  # the coordinator runs on the second one

Run = Callable[[Coroutine[Any, Any, None]], None]


class Greeter(asyncio.Protocol):
    """Sends one word to each client whose handshake is complete."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(b"hello")


class Listening:
    """A listener on a free port, and clients of it."""

    def __init__(self, tmp_path: Path) -> None:
        ours = authority(tmp_path)
        made = for_loopback(ours)
        self._context = ssl.create_default_context(cafile=ours.cert_file)
        tls = TlsListener(ServerTls(Path(made.cert_file), Path(made.key_file)))
        bound = socket.create_server(("127.0.0.1", 0))
        self.port = bound.getsockname()[1]
        self.server = TlsServer(bound, tls.context, Greeter)

    async def silent(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect without a word."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def greeted(self) -> bytes:
        """Connect with a handshake, and return what the server sends."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._context)
        try:
            return await reader.readexactly(5)
        finally:
            writer.close()

    async def close(self) -> None:
        self.server.close()
        await self.server.wait_closed()


@pytest.fixture(params=RUNNERS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(tls_listener, "HANDSHAKES_MAX", MOST)
    monkeypatch.setattr(tls_listener, "HASTE_S", 0.05)
    found: Run = request.param
    return found


def test_clients_that_send_nothing_give_way_to_others_once_the_most_handshakes_are_under_way(
    run: Run, tmp_path: Path
) -> None:
    async def scene() -> None:
        listening = Listening(tmp_path)
        silent = [await listening.silent() for _ in range(3 * MOST)]
        assert await asyncio.wait_for(listening.greeted(), 20.0) == b"hello"
        ended = [reader for reader, _ in silent if reader.at_eof()]
        assert len(ended) >= 2 * MOST
        for _, writer in silent:
            writer.close()
        await listening.close()

    run(scene())


def test_below_the_most_a_slow_handshake_has_its_time(run: Run, tmp_path: Path) -> None:
    async def scene() -> None:
        listening = Listening(tmp_path)
        reader, writer = await listening.silent()
        for _ in range(3 * MOST):
            assert await asyncio.wait_for(listening.greeted(), 20.0) == b"hello"
        assert not reader.at_eof()
        writer.close()
        await listening.close()

    run(scene())


def test_many_quick_clients_at_once_are_all_served(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_listener, "HASTE_S", 30.0)

    async def scene() -> None:
        listening = Listening(tmp_path)
        found = await asyncio.wait_for(asyncio.gather(*[listening.greeted() for _ in range(6 * MOST)]), 60.0)
        assert found == [b"hello"] * (6 * MOST)
        await listening.close()

    run(scene())


def test_a_closed_listener_accepts_nothing_and_ends_the_handshakes_under_way(run: Run, tmp_path: Path) -> None:
    async def scene() -> None:
        listening = Listening(tmp_path)
        reader, writer = await listening.silent()
        assert await listening.greeted() == b"hello"
        await listening.close()
        assert await asyncio.wait_for(reader.read(), 20.0) == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await listening.silent()

    run(scene())


@pytest.mark.parametrize("turns", range(4))
def test_a_full_listener_closes_even_if_a_handshake_ends_at_that_moment(run: Run, tmp_path: Path, turns: int) -> None:
    async def scene() -> None:
        listening = Listening(tmp_path)
        silent = [await listening.silent() for _ in range(2 * MOST)]
        while len(listening.server._handshakes) < MOST:
            await asyncio.sleep(0)
        listening.server._ended.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        await asyncio.wait_for(listening.close(), 20.0)
        for _, writer in silent:
            writer.close()

    run(scene())
