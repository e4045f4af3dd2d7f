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
from pliant.train.peer.framing import HEAD_MAX, PIECE_MAX, Line, NotYet, PeerLost, Unproven, decode

SAY_MAX = HEAD_MAX - 1024  # bytes of a head; the rest of a frame is for what goes with it
TOLD_MAX = 4096  # messages that may wait for one member
PAUSE_FIRST_S = 0.002
PAUSE_MAX_S = 0.25

_log = logging.getLogger(__name__)

Hear = Callable[[int, MemberId, str, bytes], None]


@dataclass(frozen=True, slots=True)
class Stream:
    """A body whose parts are made, and may be read, only while they are sent; `close` is called when that is over."""

    length: int
    views: Iterator[memoryview]
    close: Callable[[], None]


Give = Callable[[int, MemberId, str, bytes], tuple[bytes, Iterable[memoryview] | Stream]]


class Declined(Exception):
    """Raised by `give`, and so by `ask` at the other end: the question was understood, and the answer is no."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Told(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int  # counts from 1 for each teller, so that what is sent again is not heard again
    kind: str
    head: bytes


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=True):
    kind: str
    head: bytes


class Given(msgspec.Struct, frozen=True, array_like=True, tag=True):
    head: bytes
    length: int


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    why: str


_HEARD = b""  # an empty frame acknowledges
_encode = msgspec.msgpack.encode
_said: msgspec.msgpack.Decoder[Told | Asked] = msgspec.msgpack.Decoder(Told | Asked)
_answered: msgspec.msgpack.Decoder[Given | Refusal] = msgspec.msgpack.Decoder(Given | Refusal)


class Ear:
    """What one member tells in one generation, over however many connections it takes."""

    def __init__(self, generation: int, sender: MemberId, hear: Hear, give: Give) -> None:
        self._generation = generation
        self._sender = sender
        self._hear = hear
        self._give = give
        self._hearing = threading.Lock()
        self._number = 0

    def listen(self, line: Line) -> None:
        """Read one connection until it ends."""
        while True:
            match decode(_said, line.receive(HEAD_MAX)):
                case Told() as told:
                    self._take(told)
                    line.send(_HEARD)
                case Asked() as asked:
                    self._answer(line, asked)

    def _take(self, told: Told) -> None:
        # A new connection may bring again what an old one, not yet known to be dead, is just being heard with.
        with self._hearing:
            if told.number <= self._number:
                return
            self._number = told.number
            try:
                self._hear(self._generation, self._sender, told.kind, told.head)
            except Exception:
                # why: it is our own listener's bug; heard again it would fail again, and block all that comes after.
                _log.exception("What %s told (%s) could not be taken in.", self._sender, told.kind)

    def _answer(self, line: Line, asked: Asked) -> None:
        try:
            head, body = self._give(self._generation, self._sender, asked.kind, asked.head)
            given = body if isinstance(body, Stream) else _stream(body)
        except Declined as no:
            line.send(_encode(Refusal(no.why)))
            return
        except Exception as error:
            # why: whatever went wrong in giving, the asker must hear that there will be no answer.
            _log.exception("%s could not be given to %s.", asked.kind, self._sender)
            line.send(_encode(Refusal(f"giving it failed: {type(error).__name__}")))
            return
        try:
            line.send(_encode(Given(head, given.length)))
            for view in map(_plain, given.views):
                for start in range(0, len(view), PIECE_MAX):
                    line.send_piece(view[start : start + PIECE_MAX])
        finally:
            given.close()


class Answer:
    """What came back from a question. Leave its `with`, or `close` it, when no more of it is wanted."""

    def __init__(self, given: Given, line: Line, leave: Callable[[], None], lost: str) -> None:
        self.head = given.head
        self.length = given.length
        self._line = line
        self._leave = leave
        self._lost = lost
        self._left = given.length
        self._rest = memoryview(b"")  # checked bytes of a piece that did not fit into the view it was read for
        if self._left == 0:
            self.close()

    def readinto(self, view: memoryview) -> None:
        """Fill `view` with what comes next, checked: bytes that were damaged on the way raise `Damaged`.

        Whoever gives waits while nothing is read; after ten seconds without a read it may hang up.
        """
        view = _plain(view)
        if len(view) > self._left:
            raise BadInput(f"{len(view)} bytes were asked of an answer that has {self._left} left.")
        self._left -= len(view)
        try:
            while len(view) > 0:
                view = view[self._some(view) :]
        except OSError as error:
            raise PeerLost(f"{self._lost}: {error}") from error
        if self._left == 0:
            self.close()

    def _some(self, view: memoryview) -> int:
        if not self._rest:
            length, checksum = self._line.piece_header()
            if length <= len(view):
                self._line.receive_piece(view[:length], checksum)
                return length
            self._rest = memoryview(bytearray(length))
            self._line.receive_piece(self._rest, checksum)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._leave()

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def question(line: Line, kind: str, head: bytes, leave: Callable[[], None], lost: str) -> Answer:
    """Ask over an open connection; raises `Declined` if the answer is no."""
    line.send(_encode(Asked(kind, head)))
    answer = decode(_answered, line.receive(HEAD_MAX))
    if isinstance(answer, Refusal):
        raise Declined(answer.why)
    return Answer(answer, line, leave, lost)


class Teller:
    """What is told to one member in one generation, in order, until `over` is set and `wake` was called."""

    def __init__(self, open_line: Callable[[], Line], leave: Callable[[Line], None], over: threading.Event) -> None:
        self._open_line = open_line
        self._leave = leave
        self._over = over
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._count = 0
        self._line: Line | None = None
        self._warned = False
        self.thread = threading.Thread(target=self._run, name="pliant-tell", daemon=True)
        self.thread.start()

    def put(self, kind: str, head: bytes) -> None:
        with self._changed:
            if len(self._queue) >= TOLD_MAX:
                raise PeerLost(f"{TOLD_MAX} messages wait for a member that takes none")
            self._count += 1
            self._queue.append(_encode(Told(self._count, kind, head)))
            self._changed.notify()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _run(self) -> None:
        while (message := self._next()) is not None:
            pause_s = PAUSE_FIRST_S
            while not self._over.is_set() and not self._delivered(message):
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        self._hang_up()

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._over.is_set())
            return None if self._over.is_set() else self._queue.popleft()

    def _delivered(self, message: bytes) -> bool:
        try:
            if self._line is None:
                self._line = self._open_line()
            self._line.send(message)
            self._line.receive(len(_HEARD))
        except (OSError, NotYet, PeerLost) as error:
            if isinstance(error, Unproven) and not self._warned:
                self._warned = True  # once: it is tried again until the generation is forgotten
                _log.warning("A message cannot be delivered: %s.", error)
            self._hang_up()
            return False
        return True

    def _hang_up(self) -> None:
        if self._line is not None:
            self._leave(self._line)
            self._line = None


def _stream(body: Iterable[memoryview]) -> Stream:
    views = [_plain(view) for view in body]
    return Stream(sum(len(view) for view in views), iter(views), views.clear)


def _plain(view: memoryview) -> memoryview:
    """The bytes of it; Python casts everything but what is empty."""
    return view.cast("B") if view.nbytes else memoryview(b"")


def require_short(kind: str, head: bytes) -> None:
    if len(kind) > 64 or len(head) > SAY_MAX:
        raise BadInput(f"A message has at most {SAY_MAX} bytes; {kind[:64]!r} has {len(head)}. Give it as a body.")
