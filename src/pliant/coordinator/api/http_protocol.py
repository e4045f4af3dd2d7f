"""Connections that may not cost more than they should: bounded in number, in the size of a request's head and in time.

uvicorn bounds none of the three for its quick parser, so a stranger could hold sockets for ever, a byte a minute, or
send a header without end, all before a credential is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pliant.coordinator.api.middleware import CONNECTION, HEAD_MAX

HEAD_TIME_S = 10.0
KEEP_ALIVE_S = 75
PIPELINE_MAX = 16  # requests on one connection that were not answered yet
LAST_S = 3.0  # how long an answer under way may take to be read once we were asked to stop
_SLACK = 4096  # what the parser may have been given before it reports a header
_FRAME = 8  # bytes around a chunk of a body that one byte in it pays for


class CoalescingTransport:
    """A transport that sends the head of an answer together with what follows it: one call to the system, not two.

    uvicorn writes them apart, and thousands of small answers are sent in a second.
    """

    __slots__ = ("_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        elif data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 1"):  # 100 has nothing to follow it
            self._head = data
        else:
            self._transport.write(data)

    def flush(self) -> None:
        """Send a head that nothing follows: the answer to HEAD has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's parser of HTTP/1.1, with bounds. `connections_max` is set on the class when the server is made."""

    connections_max = 8192

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(cast(asyncio.Transport, CoalescingTransport(transport)))
        self._in_head = True
        self._head_bytes = 0
        self._beside_body = 0  # bytes after the head that are not of the body: sizes of chunks, and trailers
        self._head_since: float | None = None
        self._under_way: list[RequestResponseCycle] = []
        self._closed_by_them = False
        self._told: dict[object, Callable[[bool], None]] = {}
        if len(self.connections) > self.connections_max:
            transport.abort()
            return
        self._head_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._under_way:  # of pipelined requests, uvicorn tells the last one alone
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        # A connection that broke because nothing got through was closed by nobody: that is a TimeoutError.
        self._closed_by_them = self._closed_by_them or isinstance(exc, ConnectionError)
        self._tell_over()

    def eof_received(self) -> None:
        self._closed_by_them = not self.transport.is_closing()
        super().eof_received()

    def on_close(self, whose: object, told: Callable[[bool], None]) -> None:
        """Have this connection's end told, once for each that it is noted for, with whether the other side closed it.

        At once if it is over already.
        """
        self._told[whose] = told
        if self not in self.connections:
            self._tell_over()

    def _tell_over(self) -> None:
        told, self._told = self._told, {}
        for each in told.values():
            each(self._closed_by_them)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX + _SLACK and not self._body_may_be_in(data):
                self.transport.abort()
                return
        else:
            self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > HEAD_MAX + _SLACK:
            self.transport.abort()
        elif self._is_idle() and self._head_since is None:
            # Whatever that was (an empty line, the rest of a body that was refused), it ended the time we had given.
            self._head_since = self.loop.time()

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(LAST_S, self.transport.abort)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self
        self._in_head = True
        self._head_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # a trailer is no header, and comes when the headers were looked at
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_bytes = self._beside_body = 0
        self._head_since = None
        if not self.url.startswith(b"/"):  # a proxy is asked like that, for another host perhaps
            raise httptools.HttpParserError("the request's target is not a path")
        if len(self._under_way) >= PIPELINE_MAX:
            self._under_way = [cycle for cycle in self._under_way if not cycle.response_complete]
            if len(self._under_way) >= PIPELINE_MAX:
                self.transport.abort()
                raise httptools.HttpParserError("too many requests at once on one connection")
        super().on_headers_complete()
        self._under_way = [cycle for cycle in self._under_way if not cycle.response_complete] + [self.cycle]

    def on_response_complete(self) -> None:
        cast(CoalescingTransport, self.transport).flush()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        self._beside_body = max(0, self._beside_body - (1 + _FRAME) * len(body))
        super().on_body(body)

    @staticmethod
    def _body_may_be_in(data: bytes) -> bool:
        """Whether the head may end within these bytes, so that most of them are not of it."""
        return b"\r\n\r\n" in data or b"\n\n" in data

    def _is_idle(self) -> bool:
        """Whether nothing bounds how long this connection stays: no request is being answered, no timer runs."""
        answered = all(cycle.response_complete for cycle in self._under_way)
        return answered and self.timeout_keep_alive_task is None and not self.transport.is_closing()

    def is_late(self, now: float) -> bool:
        """Whether a head has been in coming for too long."""
        return self._head_since is not None and now - self._head_since > HEAD_TIME_S


async def close_slow_connections(state: ServerState) -> None:
    """Drop connections whose heads do not come, a few times in the time they have: a timer each would cost more."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(HEAD_TIME_S / 4)
        now = loop.time()
        for connection in list(state.connections):
            if isinstance(connection, BoundedProtocol) and connection.is_late(now):
                connection.transport.abort()
