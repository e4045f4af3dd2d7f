"""The sockets of one generation's process group, which can be shut down all at once.

gloo's operations wait as long as their sockets are open, and gloo's abort does not end those in flight. Shutting the
sockets down makes each operation return with an error within milliseconds, here and on the peers. The group's sockets
are recognized by the addresses that gloo published for this generation, never by the time when they were opened.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_SOCKADDR_STORAGE = 128
_NAMED = re.compile(r"\[(?:::ffff:)?([0-9a-fA-F:.]+)\]:(\d+)")
_KNOCK_S = 0.5
VANISHED_S = 10  # a machine that acknowledged nothing for this long is gone or disconnected
_SO_ATTACH_FILTER = 26
_TCP_INFO_BYTES, _UNACKED, _LAST_ACK = 104, 24, 56  # size of the kernel's tcp_info, and two offsets in it

_scanning = threading.Lock()

Address = tuple[str, int]


class PublishedAddress(NamedTuple):
    """The address a rank publishes: where it listens, and the number each rank connects with, by rank."""

    address: Address
    places: tuple[int, ...]


class GlooConnection(NamedTuple):
    """A socket of the group, with the addresses of both ends."""

    number: int
    inode: int
    here: Address
    there: Address


def parse_published(blob: bytes) -> PublishedAddress:
    """Parse what gloo of torch 2.13 puts into the store: host name, listening address, and numbers by rank."""
    try:
        (name_length,) = struct.unpack_from("=Q", blob, 0)
        start = 8 + name_length
        (address_length,) = struct.unpack_from("=Q", blob, start)
        start += 8
        (family,) = struct.unpack_from("=H", blob, start)
        (port,) = struct.unpack_from("!H", blob, start + 2)
        offset, width = {socket.AF_INET: (4, 4), socket.AF_INET6: (8, 16)}[socket.AddressFamily(family)]
        host = socket.inet_ntop(family, blob[start + offset : start + offset + width])
        if address_length != _SOCKADDR_STORAGE + 8 or len(blob) < start + address_length:
            raise ValueError(f"an address of {address_length} bytes in {len(blob)}")
        places = tuple(place for (place,) in struct.iter_unpack("=q", blob[start + address_length :]))
    except (struct.error, KeyError, ValueError, OverflowError) as error:
        raise ValueError(f"this version of gloo publishes its addresses in another form: {error}") from error
    return PublishedAddress((host, port), places)


class GroupSockets:
    """The sockets of one generation's group. Used by its wiring, then by the group."""

    def __init__(self) -> None:
        self._mine: PublishedAddress | None = None
        self._ranks: dict[Address, int] = {}  # addresses that other ranks listen on or connected from
        self._fixed: frozenset[GlooConnection] | None = None

    def set_own_address(self, blob: bytes) -> None:
        self._mine = parse_published(blob)

    def set_address(self, rank: int, blob: bytes) -> None:
        self._ranks[parse_published(blob).address] = rank

    def freeze(self) -> list[GlooConnection]:
        """Fix the set of sockets, once all connections are made. Later reuse of a port adds none.

        From here on, child processes do not inherit the sockets, and the kernel drops what arrives at the listener.
        gloo keeps it open and accepts every connection, so strangers could use up this process's descriptors.
        """
        found = []
        for sock, connection in self._sockets():
            fcntl.fcntl(sock.number, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            if connection is None:
                _drop_all(sock)
            else:
                _keep_alive(sock)
                found.append(connection)
        self._fixed = frozenset(found)
        return found

    def claim(self, rank: int, address: Address) -> None:
        """Record that `rank` claims this address as its end of a connection."""
        self._ranks[address] = rank

    def unclaimed(self) -> Address | None:
        """Return the far end of a connection that no rank claims, or None."""
        return next((each.there for each in self._fixed or () if each.there not in self._ranks), None)

    def rank_in_error(self, message: str) -> int | None:
        """Return the rank whose address is in gloo's error message, or None. gloo prints ports with bytes swapped."""
        named = [(host, socket.ntohs(int(port) & 0xFFFF)) for host, port in _NAMED.findall(message)]
        return next((self._ranks[address] for address in named if address in self._ranks), None)

    def open_count(self) -> int:
        """Return the number of open connections. gloo closes a connection only once it has read its end."""
        return sum(_is_open(each) for each in self._fixed or ())

    def closed_rank(self) -> int | None:
        """Return a rank whose connection gloo closed, or None. The group is broken, even if no operation failed."""
        return next((self._ranks[each.there] for each in self._fixed or () if not _is_open(each)), None)

    def unresponsive_rank(self) -> int | None:
        """Return a rank whose machine has not acknowledged sent data for a while, or None.

        The machine of a slow or stopped process still acknowledges, so such a process is waited for. TCP's own time
        limit would mistake a full receive buffer for silence.
        """
        for each in self._fixed or ():
            with _borrowed(each.number) as sock:
                if sock is not None and os.fstat(sock.fileno()).st_ino == each.inode and _is_unresponsive(sock):
                    return self._ranks[each.there]
        return None

    def shut_down(self) -> None:
        """End every operation on these sockets with an error. Any thread may call it, repeatedly."""
        for sock, connection in self._sockets():
            if connection is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def replace_missing_peers(self) -> None:
        """Connect in place of missing peers and disconnect: gloo waits for them, and nothing else interrupts it."""
        if self._mine is None or self._fixed is not None:
            return
        for place in self._mine.places:
            with suppress(OSError), socket.create_connection(self._mine.address, _KNOCK_S) as visitor:
                visitor.sendall(struct.pack("=q", place))

    def _sockets(self) -> Iterator[tuple[_Borrowed, GlooConnection | None]]:
        """Yield the group's sockets among all of this process, with None as the connection of the listener.

        The listener must never be shut down: gloo aborts the process when it cannot accept.
        """
        for number in _scan():
            with _borrowed(number) as sock:
                if sock is None or self._mine is None:
                    continue
                here = sock.getsockname()[:2]
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    if here == self._mine.address:
                        yield sock, None
                    continue
                try:
                    there = sock.getpeername()[:2]
                except OSError:
                    continue
                connection = GlooConnection(sock.number, os.fstat(sock.fileno()).st_ino, here, there)
                if self._is_ours(connection):
                    yield sock, connection

    def _is_ours(self, connection: GlooConnection) -> bool:
        if self._fixed is not None:
            return connection in self._fixed
        mine = self._mine is not None and connection.here == self._mine.address
        return mine or connection.there in self._ranks


def _drop_all(listener: socket.socket) -> None:
    """Drop everything that arrives at a listener. Connections that it has accepted are not affected."""
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))  # accept 0 bytes of each segment
    program = struct.pack("@HP", 1, ctypes.addressof(instruction))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def _keep_alive(sock: socket.socket) -> None:
    """Have the kernel probe an idle connection, and close it if the peer's machine does not answer."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, VANISHED_S // 2)


def _is_unresponsive(sock: socket.socket) -> bool:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    unacked, since_ack_ms = (struct.unpack_from("=I", info, at)[0] for at in (_UNACKED, _LAST_ACK))
    return bool(unacked) and since_ack_ms > VANISHED_S * 1000


def _scan() -> Iterator[int]:
    """Yield every descriptor of this process. One scan at a time: another's duplicates would look like our sockets."""
    with _scanning:
        yield from [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


def _is_open(connection: GlooConnection) -> bool:
    try:
        return os.fstat(connection.number).st_ino == connection.inode
    except OSError:
        return False


class _Borrowed(socket.socket):
    """A duplicate of a socket, so that a concurrent close cannot redirect us to an unrelated socket."""

    number: int  # the original's descriptor


@contextmanager
def _borrowed(number: int) -> Iterator[_Borrowed | None]:
    sock = None
    with suppress(OSError):
        duplicate = os.dup(number)
        try:
            # SOCK_NONBLOCK keeps Python from changing the socket's flags: it may belong to other code.
            sock = _Borrowed(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=duplicate)
            sock.number = number
        except OSError:
            os.close(duplicate)
    try:
        yield sock if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) else None
    finally:
        if sock is not None:
            sock.close()
