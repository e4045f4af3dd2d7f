"""How bytes go between two members: bounded frames with a checksum, and the handshake that opens a connection.

    hello      asker -> answerer    which generation, who is asking whom, and a fresh nonce
    challenge  answerer -> asker    a fresh nonce, and the proof that the answerer has the generation's key
    proof      asker -> answerer    the proof that the asker has it

Both proofs cover both nonces, the generation, both members and who of them asked, so that none can be used again
elsewhere. Before its proof was good nothing of a stranger is read but one small hello, in bounded time. What follows is
checked against damage, not encrypted: who can change packets on the way must be kept off that network.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from pliant.core.model.names import MemberId

HELLO_MAX = 1024  # bytes of a frame before both sides have shown who they are
HANDSHAKE_S = 5.0  # how long the whole handshake may take
HEAD_MAX = 1 << 20  # bytes of a message
PIECE_MAX = 1 << 20  # bytes of a body that share a checksum; small enough to be in the cache when it is computed
DEAD_PEER_S = 10  # a machine that has not acknowledged a byte for so long is gone
POLL_S = 0.05  # how often a wait that may be called off looks whether it was

_FRAME = struct.Struct("!II")  # length, checksum
_PROTOCOL = "pliant-peers-1"

T = TypeVar("T")
WaitCheck = Callable[[], None]  # raises when there is no more reason to wait


class PeerLost(Exception):
    """A member cannot be reached, went away, or is not who it should be. What it was asked for will not come."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class DamagedFrame(PeerLost):
    """What came is not what was sent, or no frame of ours at all."""


class PeerNotAuthenticated(PeerLost):
    """The other side did not show that it has the generation's key."""


class GenerationUnknown(Exception):
    """The other side does not know the generation (yet), or not us in it."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    protocol: str
    generation: int
    client: MemberId
    server: MemberId
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    known: bool  # False: no proof is given, the connection ends here, and the asker may come again
    nonce: bytes = b""
    proof: bytes = b""


_encode = msgspec.msgpack.encode
_hello = msgspec.msgpack.Decoder(Hello)
_challenge = msgspec.msgpack.Decoder(Challenge)


class PeerConnection:
    """One connection, read by one thread at a time. `end` from any thread ends whatever waits on it."""

    def __init__(self, sock: socket.socket, check: WaitCheck | None = None) -> None:
        self._sock = sock
        self._closing = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
        self.set_check(check)

    def set_check(self, check: WaitCheck | None) -> None:
        """Have `check` asked while waiting, and whenever something came; without one waits only end by `end`."""
        self._check = check
        self._sock.settimeout(None if check is None else POLL_S)

    def shut_down(self) -> None:
        """From any thread: whoever reads or sends here fails now, and closes."""
        with self._closing, suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """By the thread that reads and sends: under anybody else's feet the number could be another file's."""
        with self._closing:
            self._sock.close()

    def send(self, frame: bytes) -> None:
        self._send([_FRAME.pack(len(frame), zlib.crc32(frame)), frame])

    def send_piece(self, piece: memoryview) -> None:
        self._send([_FRAME.pack(len(piece), zlib.crc32(piece)), piece])

    def receive(self, length_max: int) -> bytes:
        length, checksum = self._header(length_max)
        frame = bytearray(length)
        self._fill(memoryview(frame))
        _require_checksum(zlib.crc32(frame), checksum)
        return bytes(frame)

    def piece_header(self) -> tuple[int, int]:
        """Length and checksum of the piece that comes next."""
        return self._header(PIECE_MAX)

    def receive_piece(self, view: memoryview, checksum: int) -> None:
        """Fill `view` with the piece whose header was read."""
        self._fill(view)
        _require_checksum(zlib.crc32(view), checksum)

    def _header(self, length_max: int) -> tuple[int, int]:
        header = bytearray(_FRAME.size)
        self._fill(memoryview(header))
        length, checksum = _FRAME.unpack(header)
        if length > length_max:
            raise DamagedFrame(f"a frame of {length} bytes was announced; at most {length_max} are taken here")
        return length, checksum

    def _fill(self, view: memoryview) -> None:
        filled = 0
        while filled < len(view):
            try:
                count = self._sock.recv_into(view[filled:])
                if count == 0:
                    raise ConnectionResetError("the other side closed the connection")
                filled += count
            except TimeoutError as error:
                _raise_if_peer_is_dead(error)
            if self._check is not None:
                self._check()

    def _send(self, parts: Sequence[bytes | memoryview]) -> None:
        left = [memoryview(part) for part in parts]
        while left:
            try:
                count = self._sock.sendmsg(left)
            except TimeoutError as error:
                _raise_if_peer_is_dead(error)
                count = 0
            if self._check is not None:
                self._check()
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left:
                left[0] = left[0][count:]


def deadline_check(limit_s: float) -> WaitCheck:
    """A check that raises once `limit_s` have passed from now."""
    until = time.monotonic() + limit_s

    def check() -> None:
        if time.monotonic() > until:
            raise ConnectionResetError(f"there was no answer in {limit_s:g} s")

    return check


def authenticate_to_peer(line: PeerConnection, generation: int, me: MemberId, peer: MemberId, key: bytes) -> None:
    """Open a connection as the asking side."""
    nonce = secrets.token_bytes(32)
    hello = Hello(_PROTOCOL, generation, me, peer, nonce)
    line.send(_encode(hello))
    challenge = decode(_challenge, line.receive(HELLO_MAX))
    if not challenge.known:
        raise GenerationUnknown(f"{peer} does not know generation {generation} with {me} in it")
    _require_nonce(challenge.nonce)
    if not hmac.compare_digest(challenge.proof, _proof("answerer", hello, challenge.nonce, key)):
        raise PeerNotAuthenticated(f"what answers for {peer} does not have the key of generation {generation}")
    line.send(_proof("asker", hello, challenge.nonce, key))


def authenticate_peer(
    line: PeerConnection, me: MemberId, key_of: Callable[[int, MemberId], bytes | None]
) -> tuple[int, MemberId]:
    """Let a stranger show who it is: the generation it may speak in, and its name."""
    hello = decode(_hello, line.receive(HELLO_MAX))
    if hello.protocol != _PROTOCOL or hello.server != me:
        raise DamagedFrame("somebody connected who does not speak to us")
    _require_nonce(hello.nonce)
    key = key_of(hello.generation, hello.client)
    if key is None:
        line.send(_encode(Challenge(known=False)))
        raise GenerationUnknown(f"{hello.client} came for generation {hello.generation}, where it is not known")
    nonce = secrets.token_bytes(32)
    line.send(_encode(Challenge(True, nonce, _proof("answerer", hello, nonce, key))))
    if not hmac.compare_digest(line.receive(HELLO_MAX), _proof("asker", hello, nonce, key)):
        raise PeerNotAuthenticated(f"who came as {hello.client} does not have the key of generation {hello.generation}")
    return hello.generation, hello.client


def _proof(side: str, hello: Hello, nonce: bytes, key: bytes) -> bytes:
    what = (_PROTOCOL, side, hello.generation, hello.client, hello.server, hello.nonce, nonce)
    return hmac.new(key, _encode(what), hashlib.sha256).digest()


def _raise_if_peer_is_dead(error: TimeoutError) -> None:
    """Time to look around, or has the system given up on a machine that vanished? Only then there is a number."""
    if error.errno is not None:
        raise ConnectionResetError(f"no sign of the other machine for {DEAD_PEER_S} s") from error


def _require_nonce(nonce: bytes) -> None:
    if len(nonce) != 32:
        raise DamagedFrame(f"a nonce has 32 bytes; this one has {len(nonce)}")


def decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    try:
        return decoder.decode(frame)
    except msgspec.MsgspecError as error:
        raise DamagedFrame(f"not a message of ours: {error}") from error


def _require_checksum(computed: int, announced: int) -> None:
    if computed != announced:
        raise DamagedFrame(
            f"a frame's checksum is {computed:08x}, and {announced:08x} was announced: damaged on the way"
        )
