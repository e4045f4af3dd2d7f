"""Transport between two members: bounded frames with a checksum, and the handshake that opens a connection.

    hello      client -> server    the generation, both members, and a fresh nonce
    challenge  server -> client    a fresh nonce, and the proof that the server has the generation's key
    proof      client -> server    the proof that the client has it

Both proofs cover both nonces, the generation, both members and their roles, so none can be reused elsewhere. Before its
proof a client can send only one small hello, in bounded time. Later frames are checked against damage. If a CA is
configured, all of this runs inside TLS, and the proofs cover the server's certificate (`pliant.train.peer.tls`).
Without TLS nothing is encrypted: the network must be closed to parties that can read or change packets.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from pliant.core.model.names import MemberId

HELLO_MAX = 1024  # bytes of a frame before both sides are authenticated
HANDSHAKE_S = 5.0  # limit for the whole handshake
HEAD_MAX = 1 << 20  # bytes of a message
PIECE_MAX = 1 << 20  # bytes of a body that share a checksum; small enough to stay in the processor's cache
DEAD_PEER_S = 10  # a machine that acknowledged no byte for this long is gone
POLL_S = 0.05  # interval at which a wait calls its check

RECORD_MAX = 1 << 14  # bytes of a record of TLS; frames up to that are sent as one

_FRAME = struct.Struct("!II")  # length, checksum
_TLS_HELLO = 0x160301  # the first three bytes of a client that uses TLS
_PROTOCOL = "pliant-peers-1"

T = TypeVar("T")
WaitCheck = Callable[[], None]  # raises to end a wait


class PeerLost(Exception):
    """A member cannot be reached, went away, or is not authentic. Its reply will not arrive."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class DamagedFrame(PeerLost):
    """Received bytes differ from what was sent, or are no frame at all."""


class OtherEncryption(PeerLost):
    """One side uses TLS, the other does not."""


class PeerNotAuthenticated(PeerLost):
    """The other side did not prove that it has the generation's key."""


class GenerationUnknown(Exception):
    """The other side does not have the generation (yet), or this member is not in it."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    protocol: str
    generation: int
    client: MemberId
    server: MemberId
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    known: bool  # False: no proof is sent, the connection ends, and the client may try again
    nonce: bytes = b""
    proof: bytes = b""


_encode = msgspec.msgpack.encode
_hello = msgspec.msgpack.Decoder(Hello)
_challenge = msgspec.msgpack.Decoder(Challenge)


class PeerConnection:
    """One connection, used by one thread at a time. `shut_down` from any thread ends every wait on it."""

    def __init__(self, sock: socket.socket, check: WaitCheck | None = None) -> None:
        self._sock = sock
        self.channel: tuple[bytes, ...] = ()  # covered by the proofs: the fingerprint of the server's certificate
        self._closing = threading.Lock()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
        self.set_check(check)

    def set_check(self, check: WaitCheck | None) -> None:
        """Call `check` while waiting and after each arrival. Without a check only `shut_down` ends a wait."""
        self._check = check
        self._sock.settimeout(None if check is None else POLL_S)

    def shut_down(self) -> None:
        """Make the thread that reads or sends here fail now; that thread closes the connection. Thread-safe."""
        with self._closing, suppress(OSError):
            # Not the method of `SSLSocket`: it drops TLS first, and another thread could then send in the clear.
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket.

        Only for the thread that uses it: for others the descriptor may belong to another file already.
        """
        with self._closing:
            self._sock.close()

    def detach(self) -> socket.socket:
        """Return the socket, which belongs to the caller from now on."""
        return self._sock

    def start_tls(self, wrap: Callable[[socket.socket], ssl.SSLSocket]) -> bytes:
        """Encrypt the connection; return the certificate of the server, empty if this side is the server."""
        with self._closing:
            self._sock = encrypted = wrap(self._sock)
        try:
            while True:
                try:
                    encrypted.do_handshake()
                    break
                except TimeoutError as error:
                    _raise_if_peer_is_dead(error)
                    if self._check is not None:
                        self._check()
        except ssl.SSLEOFError as error:
            raise ConnectionResetError("the other side closed the connection") from error
        except ssl.SSLError as error:
            raise OtherEncryption(f"TLS failed ({(error.reason or '').lower().replace('_', ' ')})") from error
        return encrypted.getpeercert(binary_form=True) or b""

    def send(self, frame: bytes | memoryview) -> None:
        self._send([_FRAME.pack(len(frame), zlib.crc32(frame)), frame])

    def receive(self, length_max: int) -> bytes:
        length, checksum = self._header(length_max)
        frame = bytearray(length)
        self._fill(memoryview(frame))
        _require_checksum(zlib.crc32(frame), checksum)
        return bytes(frame)

    def piece_header(self) -> tuple[int, int]:
        """Return the length and checksum of the next piece."""
        return self._header(PIECE_MAX)

    def receive_piece(self, view: memoryview, checksum: int) -> None:
        """Fill `view` with the piece whose header was read."""
        self._fill(view)
        _require_checksum(zlib.crc32(view), checksum)

    def _header(self, length_max: int) -> tuple[int, int]:
        header = bytearray(_FRAME.size)
        self._fill(memoryview(header))
        length, checksum = _FRAME.unpack(header)
        if length >> 8 == _TLS_HELLO:
            raise OtherEncryption("a member connected with TLS, which this one does not use")
        if length > length_max:
            raise DamagedFrame(f"a frame of {length} bytes was announced; at most {length_max} are accepted")
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
        encrypted = isinstance(self._sock, ssl.SSLSocket)
        if encrypted and sum(map(len, parts)) <= RECORD_MAX:
            parts = [b"".join(parts)]
        left = [memoryview(part) for part in parts]
        while left:
            try:
                # TLS takes one buffer, and after a timeout the same one again.
                count = self._sock.send(left[0]) if encrypted else self._sock.sendmsg(left)
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
    """Return a check that raises once `limit_s` have passed from now."""
    until = time.monotonic() + limit_s

    def check() -> None:
        if time.monotonic() > until:
            raise ConnectionResetError(f"no answer within {limit_s:g} s")

    return check


def authenticate_to_peer(connection: PeerConnection, generation: int, me: MemberId, peer: MemberId, key: bytes) -> None:
    """Open a connection as the client."""
    nonce = secrets.token_bytes(32)
    hello = Hello(_PROTOCOL, generation, me, peer, nonce)
    connection.send(_encode(hello))
    challenge = decode(_challenge, connection.receive(HELLO_MAX))
    if not challenge.known:
        raise GenerationUnknown(f"{peer} has no generation {generation} with {me} in it yet")
    _require_nonce(challenge.nonce)
    if not hmac.compare_digest(challenge.proof, _proof("answerer", hello, challenge.nonce, connection, key)):
        raise PeerNotAuthenticated(
            f"the process that answers as {peer} does not have the key of generation {generation}"
        )
    connection.send(_proof("asker", hello, challenge.nonce, connection, key))


def authenticate_peer(
    connection: PeerConnection, me: MemberId, key_of: Callable[[int, MemberId], bytes | None]
) -> tuple[int, MemberId]:
    """Authenticate a client. Return its generation and its name."""
    hello = decode(_hello, connection.receive(HELLO_MAX))
    if hello.protocol != _PROTOCOL or hello.server != me:
        raise DamagedFrame("a process connected with another protocol, or for another member")
    _require_nonce(hello.nonce)
    key = key_of(hello.generation, hello.client)
    if key is None:
        connection.send(_encode(Challenge(known=False)))
        raise GenerationUnknown(f"{hello.client} is no known member of generation {hello.generation}")
    nonce = secrets.token_bytes(32)
    connection.send(_encode(Challenge(True, nonce, _proof("answerer", hello, nonce, connection, key))))
    if not hmac.compare_digest(connection.receive(HELLO_MAX), _proof("asker", hello, nonce, connection, key)):
        raise PeerNotAuthenticated(
            f"the process that connected as {hello.client} does not have the key of generation {hello.generation}"
        )
    return hello.generation, hello.client


def _proof(side: str, hello: Hello, nonce: bytes, connection: PeerConnection, key: bytes) -> bytes:
    names = (hello.generation, hello.client, hello.server)
    covered = (_PROTOCOL, side, *names, hello.nonce, nonce, *connection.channel)
    return hmac.new(key, _encode(covered), hashlib.sha256).digest()


def _raise_if_peer_is_dead(error: TimeoutError) -> None:
    """Raise if the system gave up on the other machine. A timeout of the poll interval has no error number."""
    if error.errno is not None:
        raise ConnectionResetError(f"the other machine has not answered for {DEAD_PEER_S} s") from error


def _require_nonce(nonce: bytes) -> None:
    if len(nonce) != 32:
        raise DamagedFrame(f"a nonce must have 32 bytes, this one has {len(nonce)}")


def decode(decoder: msgspec.msgpack.Decoder[T], frame: bytes) -> T:
    try:
        return decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedFrame(f"the message cannot be decoded: {error}") from error


def _require_checksum(computed: int, announced: int) -> None:
    if computed != announced:
        raise DamagedFrame(
            f"a frame's checksum is {computed:08x}, and {announced:08x} was announced: damaged on the way"
        )
