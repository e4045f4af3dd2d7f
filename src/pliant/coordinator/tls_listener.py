"""TLS of a coordinator: its certificate, changed without a restart, and the log of refused handshakes."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pliant.telemetry import LogLimiter
from pliant.tls import FileWatch, load_ca, load_chain

LOOK_S = 2.0  # interval of looks at the files
HANDSHAKE_S = 10.0  # limit of a handshake, in which a client has proved nothing yet
HANDSHAKES_MAX = 256  # at a time
HASTE_S = 1.0  # for a handshake, while the most are under way and others wait
ACCEPT_AGAIN_S = 0.1  # after a failure to accept a connection
SHUTDOWN_S = 3.0  # for the other side's part of an orderly end

log = logging.getLogger(__name__)

_REASONS = {
    "HTTP_REQUEST": "the client sent plain HTTP; it must use https://",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate, and --tls-client-ca requires one",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the CA of this coordinator's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this coordinator's certificate; its log has the reason",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client refused this coordinator's certificate, which has expired",
    "WRONG_VERSION_NUMBER": "the client does not use TLS; it must use https://",
}


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The files of a server. With `client_ca`, clients must present a certificate of that CA."""

    cert_file: Path
    key_file: Path
    client_ca: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca) if path is not None)

    def context(self) -> ssl.SSLContext:
        """Return a new context. Raises BadInput if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
        context.num_tickets = 0  # no session is resumed, so every connection checks the certificates
        load_chain(context, self.cert_file, self.key_file)
        if self.client_ca is not None:
            load_ca(context, self.client_ca, "The CA file of clients")
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TlsListener:
    """The context that a server listens with. Each handshake uses the files that were loaded last."""

    def __init__(self, files: ServerTls) -> None:
        self._files = files
        self._current = files.context()
        self._watch = FileWatch(files.all, self._load)
        self.context = files.context()
        self.context.sni_callback = self._use_current  # called in every handshake, before a certificate is sent
        self.context.sslobject_class = _LoggedHandshake

    def _load(self) -> None:
        self._current = self._files.context()

    def _use_current(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    async def follow_files(self) -> None:
        """Load changed files, for as long as the server runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._watch.look()


class TlsServer:
    """Accept connections on a socket and make their handshakes, a bounded number at a time.

    A client in a handshake has proved nothing yet. While the most handshakes are under way, further connections wait in
    the kernel's queue. A handshake that takes longer than `HASTE_S` then gives way to them, the oldest first. Clients
    that send nothing cannot keep others out. It has the methods of `asyncio.Server` that uvicorn calls.
    """

    limiter = LogLimiter()

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, protocol: Callable[[], asyncio.Protocol]) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._context = context
        self._protocol = protocol
        self._handshakes: dict[asyncio.Task[None], float] = {}  # under way, with the time of their begin, oldest first
        self._not_begun: dict[asyncio.Task[None], socket.socket] = {}  # the newest of them, until they first run
        self._ended = asyncio.Event()
        self._closing = False
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return (self._sock,)

    def close(self) -> None:
        """Accept no more. Connections whose handshake is complete stay open."""
        self._closing = True
        for task in (self._accepting, *self._handshakes):
            task.cancel()
        self._sock.close()

    async def wait_closed(self) -> None:
        await asyncio.wait([self._accepting, *self._handshakes])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closing:
            await self._wait_for_room()
            try:
                connection, _ = await loop.sock_accept(self._sock)
            except OSError as error:  # the client is gone, or no file descriptor is free
                log.warning("a connection could not be accepted: %s", error.strerror)
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            task = loop.create_task(self._greet(connection))
            self._handshakes[task] = loop.time()
            self._not_begun[task] = connection
            task.add_done_callback(self._end)

    async def _wait_for_room(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._handshakes) >= HANDSHAKES_MAX:
            oldest, since = next(iter(self._handshakes.items()))
            left_s = since + HASTE_S - loop.time()
            if left_s <= 0:
                oldest.cancel()
            self._ended.clear()
            with suppress(TimeoutError):  # `wait_for` of Python 3.11 may take a cancellation for the end of the wait
                async with asyncio.timeout(max(left_s, HASTE_S / 10)):
                    await self._ended.wait()

    async def _greet(self, connection: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        del self._not_begun[task]
        connection.setblocking(False)
        try:
            await loop.connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except asyncio.CancelledError:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if not self._closing and (omitted := self.limiter.admit()) is not None:
                log.warning("closed a slow connection: too many TLS handshakes are under way%s", _more(omitted))
            raise
        except OSError:  # `_LoggedHandshake` has logged the reason, if there is one to act on
            connection.close()

    def _end(self, task: asyncio.Task[None]) -> None:
        del self._handshakes[task]
        if (connection := self._not_begun.pop(task, None)) is not None:
            connection.close()  # the task was cancelled before it ran
        self._ended.set()


class _LoggedHandshake(ssl.SSLObject):
    """A connection whose failed handshake is logged, and whose client is sent the reason.

    asyncio and uvloop close such a connection without a word, and without the alert that OpenSSL has prepared. They
    send what is prepared when more bytes are needed. So a failure first asks for more bytes; the client's end of the
    connection, its next bytes or the time limit then end the handshake.
    """

    limiter = LogLimiter()
    _failure: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._failure = error
            if (omitted := self.limiter.admit()) is not None:
                log.warning("refused a connection: %s%s", describe_refusal(error), _more(omitted))
            raise ssl.SSLWantReadError from error


def _more(omitted: int) -> str:
    return f" ({omitted} more like this before it)" if omitted else ""


def describe_refusal(error: ssl.SSLError) -> str:
    """Return why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    reason = error.reason or ""
    return _REASONS.get(reason, reason.lower().replace("_", " ") or str(error))
