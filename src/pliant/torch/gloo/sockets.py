"""The sockets of one generation's process group, and how they are all shut at once.

gloo's operations wait for as long as their sockets are open, and its abort leaves those in flight alone. Shutting the
sockets down makes each of them return with an error, here and on the peers, within milliseconds (H16). Ours are told
from everybody else's by the addresses that gloo published for this generation (H22), never by when they were opened.
"""

from __future__ import annotations

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
VANISHED_S = 10  # a machine that has not acknowledged a byte for so long is gone, or cut off
_TCP_INFO_BYTES, _UNACKED, _LAST_ACK = 104, 24, 56  # of the kernel's tcp_info: its size, and where two numbers are

_scanning = threading.Lock()

Address = tuple[str, int]


class PublishedAddress(NamedTuple):
    """What a rank publishes about itself: where it listens, and the number by which each rank asks for its place."""

    address: Address
    places: tuple[int, ...]


class GlooConnection(NamedTuple):
    """One socket of ours, and where it leads."""

    number: int
    inode: int
    here: Address
    there: Address


def parse_published(blob: bytes) -> PublishedAddress:
    """Read what gloo of torch 2.13 puts into the store: a host's name, the address it listens on, places by rank."""
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
    except (struct.error, KeyError, ValueError) as error:
        raise ValueError(f"this version of gloo publishes its addresses in another form: {error}") from error
    return PublishedAddress((host, port), places)


class GroupSockets:
    """What is known of one generation's sockets. Used by one wiring, then by the group it made."""

    def __init__(self) -> None:
        self._mine: PublishedAddress | None = None
        self._ranks: dict[Address, int] = {}  # where other ranks listen, and from where they connected
        self._fixed: frozenset[GlooConnection] | None = None

    def set_own_address(self, blob: bytes) -> None:
        self._mine = parse_published(blob)

    def set_address(self, rank: int, blob: bytes) -> None:
        self._ranks[parse_published(blob).address] = rank

    def freeze(self) -> list[GlooConnection]:
        """Once every connection stands: no other socket will be taken for ours, though a port be used again.

        From here on a program that we start does not inherit them either.
        """
        found = []
        for sock, connection in self._sockets():
            fcntl.fcntl(sock.number, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
            if connection is not None:
                _keep_alive(sock)
                found.append(connection)
        self._fixed = frozenset(found)
        return found

    def claim(self, rank: int, address: Address) -> None:
        """`rank` says that its end of one of our connections is there."""
        self._ranks[address] = rank

    def unclaimed(self) -> Address | None:
        """The far end of a connection that no rank calls its own, if there is one."""
        return next((each.there for each in self._fixed or () if each.there not in self._ranks), None)

    def rank_in_error(self, message: str) -> int | None:
        """The rank that an error of gloo's speaks of, if it names one's address. gloo prints ports bytes swapped."""
        named = [(host, socket.ntohs(int(port) & 0xFFFF)) for host, port in _NAMED.findall(message)]
        return next((self._ranks[address] for address in named if address in self._ranks), None)

    def open_count(self) -> int:
        """How many of the connections are still gloo's. It closes one when it has seen its end, and none before."""
        return sum(_is_open(each) for each in self._fixed or ())

    def closed_rank(self) -> int | None:
        """The rank whose connection gloo has closed: the group is broken, though no operation may have noticed."""
        return next((self._ranks[each.there] for each in self._fixed or () if not _is_open(each)), None)

    def unresponsive_rank(self) -> int | None:
        """A rank whose machine has acknowledged nothing for a while, though something was sent to it.

        A process that is slow or stopped is waited for: its machine acknowledges in its place. The time limit that TCP
        has for this would take a full buffer for silence.
        """
        for each in self._fixed or ():
            with _borrowed(each.number) as sock:
                if sock is not None and os.fstat(sock.fileno()).st_ino == each.inode and _is_unheard(sock):
                    return self._ranks[each.there]
        return None

    def shut_down(self) -> None:
        """From any thread, any number of times: every operation on these sockets returns with an error."""
        for sock, connection in self._sockets():
            if connection is not None:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def replace_missing_peers(self) -> None:
        """Take the places of peers that do not come, and leave: gloo waits for them, and nothing else wakes it."""
        if self._mine is None:
            return
        for place in self._mine.places:
            with suppress(OSError), socket.create_connection(self._mine.address, _KNOCK_S) as visitor:
                visitor.sendall(struct.pack("=q", place))

    def _sockets(self) -> Iterator[tuple[_Borrowed, GlooConnection | None]]:
        """Ours among all sockets of this process; without a connection for the one that listens.

        That one must never be shut down: gloo ends the whole process when it cannot accept.
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


def _keep_alive(sock: socket.socket) -> None:
    """While nothing is sent the system asks now and then, and breaks the connection if nobody answers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 2)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, VANISHED_S // 2)


def _is_unheard(sock: socket.socket) -> bool:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    unacked, since_ack_ms = (struct.unpack_from("=I", info, at)[0] for at in (_UNACKED, _LAST_ACK))
    return bool(unacked) and since_ack_ms > VANISHED_S * 1000


def _scan() -> Iterator[int]:
    """Every descriptor of this process, one scan at a time: another's duplicates would look like sockets of ours."""
    with _scanning:
        yield from [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]


def _is_open(connection: GlooConnection) -> bool:
    try:
        return os.fstat(connection.number).st_ino == connection.inode
    except OSError:
        return False


class _Borrowed(socket.socket):
    """A duplicate, so that closing the original under our feet cannot lead us to somebody else's socket."""

    number: int  # the original's descriptor


@contextmanager
def _borrowed(number: int) -> Iterator[_Borrowed | None]:
    sock = None
    with suppress(OSError):
        duplicate = os.dup(number)
        try:
            # Named non-blocking so that Python leaves the flags of the socket alone: it may be anybody's.
            sock = _Borrowed(type=socket.SOCK_STREAM | socket.SOCK_NONBLOCK, fileno=duplicate)
            sock.number = number
        except OSError:
            os.close(duplicate)
    try:
        yield sock if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) else None
    finally:
        if sock is not None:
            sock.close()
