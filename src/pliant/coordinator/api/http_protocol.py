"""uvicorn's HTTP/1.1 protocol with limits on connections, on the size and time of heads, and on unread answers.

uvicorn limits none of these for its httptools parser. A client without a credential could hold sockets for ever or send
an endless header, and one with a credential could fill the memory with answers that it does not read. The classes here
override private parts of uvicorn. They are tested with uvicorn 0.30 to 0.54, and `pyproject.toml` admits no other
version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pliant.coordinator.api.middleware import CONNECTION, HEAD_MAX
from pliant.tls import certificate_names

HEAD_TIME_S = 10.0
KEEP_ALIVE_S = 75
STALL_S = 30.0  # without a byte taken by the client, while an answer waits to be sent
PIPELINE_MAX = 16  # unanswered requests on one connection
SHUTDOWN_S = 3.0  # for clients to read the answers under way at shutdown
_SLACK = 4096  # bytes that the parser may get before it reports a header
_FRAME = 8  # bytes of chunk framing that are allowed for each byte of the body


class CoalescingTransport:
    """A transport that sends the head of a response together with its body, in one system call.

    uvicorn writes them separately, which costs a second system call for each of thousands of small answers a second.
    It also keeps in mind whether this side closed the connection.
    """

    __slots__ = ("_head", "_transport", "closed_here")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self.closed_here = False

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):  # a 100 has no body
            self._head = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head without a body, as in the response to HEAD."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self.closed_here = True
        self._transport.close()

    def abort(self) -> None:
        self.closed_here = True
        self._transport.abort()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. The server sets `connections_max` on the class."""

    connections_max = 8192

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own signature
        self._coalescing = CoalescingTransport(transport)
        super().connection_made(cast(asyncio.Transport, self._coalescing))
        self.certificate_names = certificate_names(transport.get_extra_info("peercert"))
        self._in_head = True
        self._head_bytes = 0
        self._beside_body = 0  # bytes after the head that are not of the body: chunk sizes and trailers
        self._head_since: float | None = None
        self._unsent = 0
        self._unsent_since = 0.0
        self._open_cycles: list[RequestResponseCycle] = []
        self._closed_by_client = False
        self._close_callbacks: dict[object, Callable[[bool], None]] = {}
        if len(self.connections) > self.connections_max:
            self._coalescing.abort()
            return
        self._head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        # A connection that timed out on a broken network was closed by neither side. That is a TimeoutError. A process
        # that is killed sends no end of TLS, of which asyncio reports nothing but that the connection is over.
        self._closed_by_client = not self._coalescing.closed_here and (exc is None or isinstance(exc, ConnectionError))
        super().connection_lost(exc)
        for cycle in self._open_cycles:  # uvicorn notifies only the last of several pipelined requests
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self._call_on_close()

    def on_close(self, key: object, callback: Callable[[bool], None]) -> None:
        """Call `callback` at the end of the connection, with whether the client closed it; at once if it is over."""
        self._close_callbacks[key] = callback
        if self not in self.connections:
            self._call_on_close()

    def _call_on_close(self) -> None:
        callbacks, self._close_callbacks = self._close_callbacks, {}
        for callback in callbacks.values():
            callback(self._closed_by_client)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX + _SLACK and not self._may_contain_body(data):
                self.transport.abort()
                return
        else:
            self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > HEAD_MAX + _SLACK:
            self.transport.abort()
        elif self._is_idle() and self._head_since is None:
            # These bytes (an empty line, the rest of a refused body) cancelled uvicorn's keep-alive timer.
            self._head_since = self.loop.time()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(SHUTDOWN_S, self.transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self
        self._in_head = True
        self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is not a header, and comes after the headers were checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = self._beside_body = 0
        self._head_since = None
        if not self.url.startswith(b"/"):  # a request to a proxy, perhaps for another host
            raise httptools.HttpParserError("the target of the request is not a path")
        if len(self._open_cycles) >= PIPELINE_MAX:
            self._open_cycles = [cycle for cycle in self._open_cycles if not cycle.response_complete]
            if len(self._open_cycles) >= PIPELINE_MAX:
                self.transport.abort()
                raise httptools.HttpParserError("too many unanswered requests on one connection")
        super().on_headers_complete()
        self._open_cycles = [cycle for cycle in self._open_cycles if not cycle.response_complete] + [self.cycle]

    def on_response_complete(self) -> None:
        self._coalescing.flush()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        self._beside_body = max(0, self._beside_body - (1 + _FRAME) * len(body))
        super().on_body(body)

    @staticmethod
    def _may_contain_body(data: bytes) -> bool:
        """Return whether the head may end within these bytes, so that most of them may belong to the body."""
        return b"\r\n\r\n" in data or b"\n\n" in data

    def _is_idle(self) -> bool:
        """Return whether no timer limits this connection: no request is open and no keep-alive timer runs."""
        answered = all(cycle.response_complete for cycle in self._open_cycles)
        return answered and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def is_late(self, now: float) -> bool:
        """Return whether the head of a request is overdue."""
        return self._head_since is not None and now - self._head_since > HEAD_TIME_S

    def is_stalled(self, now: float) -> bool:
        """Return whether the client has taken nothing of an answer for long. Call it every few seconds."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return now - self._unsent_since > STALL_S and unsent > 0


async def close_slow_connections(state: ServerState) -> None:
    """Close connections whose heads are overdue, or whose clients do not read.

    One periodic scan costs less than a timer for each connection.
    """
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(HEAD_TIME_S / 4)
        now = loop.time()
        for connection in list(state.connections):
            if isinstance(connection, BoundedProtocol) and (connection.is_late(now) or connection.is_stalled(now)):
                connection.transport.abort()
