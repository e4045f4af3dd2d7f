"""Notifications and requests over an authenticated connection.

One connection carries either notifications, each acknowledged once it was delivered, or one request and its reply. It
is written here because no library in the tree does all of this: mutual authentication with the generation's key, bodies
sent from live memory without a copy, and waits that another thread ends in less than a millisecond.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from pliant.core.model.names import MemberId
from pliant.errors import BadInput
from pliant.train.peer.framing import (
    HEAD_MAX,
    PIECE_MAX,
    DamagedFrame,
    GenerationUnknown,
    PeerConnection,
    PeerLost,
    PeerNotAuthenticated,
    decode,
)

PAYLOAD_MAX = HEAD_MAX - 1024  # bytes of a head; the rest of the frame is for the envelope
QUEUED_MAX = 4096  # notifications queued for one member
RETRY_FIRST_S = 0.002
RETRY_MAX_S = 0.25

_log = logging.getLogger(__name__)

NotificationHandler = Callable[[int, MemberId, str, bytes], None]


@dataclass(frozen=True, slots=True)
class RpcBody:
    """A body whose parts are produced, and may be read, only while they are sent; then `close` is called."""

    length: int
    views: Iterator[memoryview]
    close: Callable[[], None]


RequestHandler = Callable[[int, MemberId, str, bytes], tuple[bytes, Iterable[memoryview] | RpcBody]]


class RequestRefused(Exception):
    """Raised by a request handler, and so by `request` at the other end: the request was understood and refused."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RpcNotification(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int  # counts from 1 for each sender, so that a repeated notification is delivered once
    kind: str
    head: bytes


class RpcRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    kind: str
    head: bytes


class RpcStream(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """After this message the connection carries bytes without frames, for the process group of the generation."""


class RpcReplyHeader(msgspec.Struct, frozen=True, array_like=True, tag=True):
    head: bytes
    length: int


class RpcRefusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    why: str


_ACKNOWLEDGED = b""  # an empty frame acknowledges
_encode = msgspec.msgpack.encode
_request_decoder: msgspec.msgpack.Decoder[RpcNotification | RpcRequest | RpcStream] = msgspec.msgpack.Decoder(
    RpcNotification | RpcRequest | RpcStream
)
_reply_decoder: msgspec.msgpack.Decoder[RpcReplyHeader | RpcRefusal] = msgspec.msgpack.Decoder(
    RpcReplyHeader | RpcRefusal
)


class RpcReceiver:
    """The server side for one member in one generation, over any number of connections."""

    def __init__(
        self, generation: int, sender: MemberId, on_notification: NotificationHandler, on_request: RequestHandler
    ) -> None:
        self._generation = generation
        self._sender = sender
        self._on_notification = on_notification
        self._on_request = on_request
        self._receiving = threading.Lock()
        self._number = 0

    def serve(self, connection: PeerConnection) -> None:
        """Serve one connection until it ends, or becomes a stream: then return."""
        while True:
            match decode(_request_decoder, connection.receive(HEAD_MAX)):
                case RpcNotification() as notification:
                    self._deliver(notification)
                    connection.send(_ACKNOWLEDGED)
                case RpcRequest() as request:
                    self._reply(connection, request)
                case RpcStream():
                    return

    def _deliver(self, notification: RpcNotification) -> None:
        # A new connection may repeat a notification that a thread of the old, dead one is just delivering.
        with self._receiving:
            if notification.number <= self._number:
                return
            self._number = notification.number
            try:
                self._on_notification(self._generation, self._sender, notification.kind, notification.head)
            except Exception:
                # why: a bug in our own handler; a repetition would fail again and block all later notifications.
                _log.exception("The notification from %s (%s) could not be handled.", self._sender, notification.kind)

    def _reply(self, connection: PeerConnection, request: RpcRequest) -> None:
        try:
            head, body = self._on_request(self._generation, self._sender, request.kind, request.head)
            sent = body if isinstance(body, RpcBody) else _body_of(body)
        except RequestRefused as refused:
            connection.send(_encode(RpcRefusal(refused.why)))
            return
        except Exception as error:
            # why: the client must learn that there will be no reply, whatever the error.
            _log.exception("The request for %s from %s failed.", request.kind, self._sender)
            connection.send(_encode(RpcRefusal(f"the request failed: {type(error).__name__}")))
            return
        try:
            connection.send(_encode(RpcReplyHeader(head, sent.length)))
            for view in map(_as_bytes, sent.views):
                for start in range(0, len(view), PIECE_MAX):
                    connection.send(view[start : start + PIECE_MAX])
        finally:
            sent.close()


class RpcReply:
    """The reply to a request. Leave its `with` block, or call `close`, once no more of it is needed."""

    def __init__(
        self, header: RpcReplyHeader, connection: PeerConnection, release: Callable[[], None], failure: str
    ) -> None:
        self.head = header.head
        self.length = header.length
        self._connection = connection
        self._release = release
        self._failure = failure
        self._left = header.length
        self._rest = memoryview(b"")  # verified bytes of a piece that did not fit into the caller's view
        if self._left == 0:
            self.close()

    def readinto(self, view: memoryview) -> None:
        """Fill `view` with the next bytes. Raises `DamagedFrame` if they were damaged in transit.

        The server waits while nothing is read. After ten seconds without a read it may close the connection.
        """
        view = _as_bytes(view)
        if len(view) > self._left:
            raise BadInput(f"{len(view)} bytes were requested from a reply that has {self._left} left.")
        self._left -= len(view)
        try:
            while len(view) > 0:
                view = view[self._read_some(view) :]
        except OSError as error:
            raise PeerLost(f"{self._failure}: {error}") from error
        if self._left == 0:
            self.close()

    def _read_some(self, view: memoryview) -> int:
        if not self._rest:
            length, checksum = self._connection.piece_header()
            if length <= len(view):
                self._connection.receive_piece(view[:length], checksum)
                return length
            self._rest = memoryview(bytearray(length))
            self._connection.receive_piece(self._rest, checksum)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._release()

    def __enter__(self) -> RpcReply:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def request_stream(connection: PeerConnection) -> None:
    """Make an open connection a stream."""
    connection.send(_encode(RpcStream()))


def send_request(
    connection: PeerConnection, kind: str, head: bytes, release: Callable[[], None], failure: str
) -> RpcReply:
    """Send a request over an open connection. Raises `RequestRefused` if it is refused."""
    connection.send(_encode(RpcRequest(kind, head)))
    header = decode(_reply_decoder, connection.receive(HEAD_MAX))
    if isinstance(header, RpcRefusal):
        raise RequestRefused(header.why)
    if header.length < 0:
        raise DamagedFrame(f"a reply of {header.length} bytes was announced")
    return RpcReply(header, connection, release, failure)


class NotificationSender:
    """Sends notifications to one member in one generation, in order, until `over` is set and `wake` was called."""

    def __init__(
        self,
        open_connection: Callable[[], PeerConnection],
        release: Callable[[PeerConnection], None],
        over: threading.Event,
    ) -> None:
        self._open = open_connection
        self._release = release
        self._over = over
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._count = 0
        self._connection: PeerConnection | None = None
        self._warned = False
        self.thread = threading.Thread(target=self._run, name="pliant-tell", daemon=True)
        self.thread.start()

    def put(self, kind: str, head: bytes) -> None:
        with self._changed:
            if len(self._queue) >= QUEUED_MAX:
                raise PeerLost(f"{QUEUED_MAX} notifications are queued for a member that accepts none")
            self._count += 1
            self._queue.append(_encode(RpcNotification(self._count, kind, head)))
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            pauses = retry_pauses()
            while not self._over.is_set() and not self._deliver(message):
                self._over.wait(next(pauses))
        self._disconnect()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._over.is_set())
            return None if self._over.is_set() else self._queue.popleft()

    def _deliver(self, message: bytes) -> bool:
        try:
            if self._connection is None:
                self._connection = self._open()
            self._connection.send(message)
            self._connection.receive(len(_ACKNOWLEDGED))
        except (OSError, GenerationUnknown, PeerLost) as error:
            if isinstance(error, PeerNotAuthenticated) and not self._warned:
                self._warned = True  # log it once: retries continue until the generation is over
                _log.warning("A notification cannot be delivered: %s.", error)
            self._disconnect()
            return False
        return True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._release(self._connection)
            self._connection = None


def retry_pauses() -> Iterator[float]:
    """Yield the seconds to wait between attempts: doubled each time, up to a limit."""
    pause_s = RETRY_FIRST_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, RETRY_MAX_S)


def _body_of(body: Iterable[memoryview]) -> RpcBody:
    views = [_as_bytes(view) for view in body]
    return RpcBody(sum(len(view) for view in views), iter(views), views.clear)


def _as_bytes(view: memoryview) -> memoryview:
    """Return the view as bytes; Python cannot cast an empty view."""
    return view.cast("B") if view.nbytes else memoryview(b"")


def require_small(kind: str, head: bytes) -> None:
    if len(kind) > 64 or len(head) > PAYLOAD_MAX:
        raise BadInput(
            f"A message may have at most {PAYLOAD_MAX} bytes; {kind[:64]!r} has {len(head)}. Send it as a body."
        )
