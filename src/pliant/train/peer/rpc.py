"""What members say over an open connection: things told in order, and questions with their answers.

Over one connection either things are told, each acknowledged once it was heard, or one question is answered.
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
    GenerationUnknown,
    PeerConnection,
    PeerLost,
    PeerNotAuthenticated,
    decode,
)

PAYLOAD_MAX = HEAD_MAX - 1024  # bytes of a head; the rest of a frame is for what goes with it
QUEUED_MAX = 4096  # messages that may wait for one member
RETRY_FIRST_S = 0.002
RETRY_MAX_S = 0.25

_log = logging.getLogger(__name__)

NotificationHandler = Callable[[int, MemberId, str, bytes], None]


@dataclass(frozen=True, slots=True)
class RpcBody:
    """A body whose parts are made, and may be read, only while they are sent; `close` is called when that is over."""

    length: int
    views: Iterator[memoryview]
    close: Callable[[], None]


RequestHandler = Callable[[int, MemberId, str, bytes], tuple[bytes, Iterable[memoryview] | RpcBody]]


class RequestRefused(Exception):
    """Raised by `give`, and so by `ask` at the other end: the question was understood, and the answer is no."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RpcNotification(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int  # counts from 1 for each teller, so that what is sent again is not heard again
    kind: str
    head: bytes


class RpcRequest(msgspec.Struct, frozen=True, array_like=True, tag=True):
    kind: str
    head: bytes


class RpcReplyHeader(msgspec.Struct, frozen=True, array_like=True, tag=True):
    head: bytes
    length: int


class RpcRefusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    why: str


_ACKNOWLEDGED = b""  # an empty frame acknowledges
_encode = msgspec.msgpack.encode
_request_decoder: msgspec.msgpack.Decoder[RpcNotification | RpcRequest] = msgspec.msgpack.Decoder(
    RpcNotification | RpcRequest
)
_reply_decoder: msgspec.msgpack.Decoder[RpcReplyHeader | RpcRefusal] = msgspec.msgpack.Decoder(
    RpcReplyHeader | RpcRefusal
)


class RpcReceiver:
    """What one member tells in one generation, over however many connections it takes."""

    def __init__(self, generation: int, sender: MemberId, hear: NotificationHandler, give: RequestHandler) -> None:
        self._generation = generation
        self._sender = sender
        self._on_notification = hear
        self._on_request = give
        self._receiving = threading.Lock()
        self._number = 0

    def serve(self, line: PeerConnection) -> None:
        """Read one connection until it ends."""
        while True:
            match decode(_request_decoder, line.receive(HEAD_MAX)):
                case RpcNotification() as told:
                    self._deliver(told)
                    line.send(_ACKNOWLEDGED)
                case RpcRequest() as asked:
                    self._reply(line, asked)

    def _deliver(self, told: RpcNotification) -> None:
        # A new connection may bring again what an old one, not yet known to be dead, is just being heard with.
        with self._receiving:
            if told.number <= self._number:
                return
            self._number = told.number
            try:
                self._on_notification(self._generation, self._sender, told.kind, told.head)
            except Exception:
                # why: it is our own listener's bug; heard again it would fail again, and block all that comes after.
                _log.exception("What %s told (%s) could not be taken in.", self._sender, told.kind)

    def _reply(self, line: PeerConnection, asked: RpcRequest) -> None:
        try:
            head, body = self._on_request(self._generation, self._sender, asked.kind, asked.head)
            given = body if isinstance(body, RpcBody) else _body_of(body)
        except RequestRefused as no:
            line.send(_encode(RpcRefusal(no.why)))
            return
        except Exception as error:
            # why: whatever went wrong in giving, the asker must hear that there will be no answer.
            _log.exception("%s could not be given to %s.", asked.kind, self._sender)
            line.send(_encode(RpcRefusal(f"giving it failed: {type(error).__name__}")))
            return
        try:
            line.send(_encode(RpcReplyHeader(head, given.length)))
            for view in map(_as_bytes, given.views):
                for start in range(0, len(view), PIECE_MAX):
                    line.send_piece(view[start : start + PIECE_MAX])
        finally:
            given.close()


class RpcReply:
    """What came back from a question. Leave its `with`, or `close` it, when no more of it is wanted."""

    def __init__(self, given: RpcReplyHeader, line: PeerConnection, leave: Callable[[], None], lost: str) -> None:
        self.head = given.head
        self.length = given.length
        self._connection = line
        self._release = leave
        self._failure = lost
        self._left = given.length
        self._rest = memoryview(b"")  # checked bytes of a piece that did not fit into the view it was read for
        if self._left == 0:
            self.close()

    def readinto(self, view: memoryview) -> None:
        """Fill `view` with what comes next, checked: bytes that were damaged on the way raise `Damaged`.

        Whoever gives waits while nothing is read; after ten seconds without a read it may hang up.
        """
        view = _as_bytes(view)
        if len(view) > self._left:
            raise BadInput(f"{len(view)} bytes were asked of an answer that has {self._left} left.")
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


def send_request(line: PeerConnection, kind: str, head: bytes, leave: Callable[[], None], lost: str) -> RpcReply:
    """Ask over an open connection; raises `RequestRefused` if the answer is no."""
    line.send(_encode(RpcRequest(kind, head)))
    answer = decode(_reply_decoder, line.receive(HEAD_MAX))
    if isinstance(answer, RpcRefusal):
        raise RequestRefused(answer.why)
    return RpcReply(answer, line, leave, lost)


class NotificationSender:
    """What is told to one member in one generation, in order, until `over` is set and `wake` was called."""

    def __init__(
        self, open_line: Callable[[], PeerConnection], leave: Callable[[PeerConnection], None], over: threading.Event
    ) -> None:
        self._open = open_line
        self._release = leave
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
                raise PeerLost(f"{QUEUED_MAX} messages wait for a member that takes none")
            self._count += 1
            self._queue.append(_encode(RpcNotification(self._count, kind, head)))
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            pause_s = RETRY_FIRST_S
            while not self._over.is_set() and not self._deliver(message):
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
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
                self._warned = True  # once: it is tried again until the generation is forgotten
                _log.warning("A message cannot be delivered: %s.", error)
            self._disconnect()
            return False
        return True

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._release(self._connection)
            self._connection = None


def _body_of(body: Iterable[memoryview]) -> RpcBody:
    views = [_as_bytes(view) for view in body]
    return RpcBody(sum(len(view) for view in views), iter(views), views.clear)


def _as_bytes(view: memoryview) -> memoryview:
    """The bytes of it; Python casts everything but what is empty."""
    return view.cast("B") if view.nbytes else memoryview(b"")


def require_small(kind: str, head: bytes) -> None:
    if len(kind) > 64 or len(head) > PAYLOAD_MAX:
        raise BadInput(f"A message has at most {PAYLOAD_MAX} bytes; {kind[:64]!r} has {len(head)}. Give it as a body.")
