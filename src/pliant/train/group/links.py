"""The connection to one peer of a group, and the loop that moves queued bytes over all of them at once."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

LOOK_S = 0.5  # a wait looks this often whether the peer's machine still answers
VANISHED_S = 10  # a machine that acknowledged nothing for this long is gone or disconnected
BUFFER = 4 << 20  # bytes of a socket's buffers, as far as the system allows: fewer changes of processes
AT_ONCE = 1 << 20  # bytes of one call of the system

_TCP_INFO_BYTES, _UNACKED, _LAST_ACK = 104, 24, 56  # size of the kernel's tcp_info, and two offsets in it


class LinkLost(Exception):
    """The connection to a rank ended."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(why)
        self.rank = rank


class Link:
    """One peer's connection: bytes to send and memory to fill, each in order. One thread at a time uses it."""

    def __init__(self, rank: int, sock: socket.socket) -> None:
        self.rank = rank
        self.sock = sock
        self.number = sock.fileno()
        self.outgoing: deque[memoryview] = deque()
        self.incoming: deque[memoryview] = deque()
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        sock.settimeout(0.0 if self._is_tls else None)
        # No time limit of TCP ends a world: a stopped process is waited for. `require_answering` finds lost machines.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, VANISHED_S // 2)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        limit = struct.pack("ll", 0, int(LOOK_S * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def send(self) -> None:
        """Send as much as the connection takes now."""
        flags = 0 if self._is_tls else socket.MSG_DONTWAIT
        while self.outgoing:
            view = self.outgoing[0]
            try:
                count = self.sock.send(view[:AT_ONCE], flags)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                raise LinkLost(self.rank, error.strerror or str(error)) from error
            if count == len(view):
                self.outgoing.popleft()
            else:
                self.outgoing[0] = view[count:]

    def receive(self, *, waiting: bool = False) -> bool:
        """Fill the first view with what has arrived, and drop it from the queue once it is full. Return whether it is.

        With `waiting` the system waits for all of it, but not longer than `LOOK_S`.
        """
        view = self.incoming[0]
        flags = 0 if self._is_tls else socket.MSG_WAITALL if waiting else socket.MSG_DONTWAIT
        while True:
            try:
                count = self.sock.recv_into(view, len(view), flags)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            except OSError as error:
                raise LinkLost(self.rank, error.strerror or str(error)) from error
            if count == 0:
                raise LinkLost(self.rank, "the connection was closed")
            if count == len(view):
                self.incoming.popleft()
                return True
            self.incoming[0] = view = view[count:]
            if not self._is_tls:  # TLS may have more, which `poll` does not see
                return False

    @property
    def can_wait_alone(self) -> bool:
        """True if the system can wait for this connection without `poll`."""
        return not self._is_tls and not self.outgoing

    def require_answering(self) -> None:
        """Raise if the peer's machine has not acknowledged sent data for a while.

        The machine of a slow or stopped process still acknowledges, so such a process is waited for. TCP's own time
        limit would mistake a full receive buffer for silence.
        """
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        unacked, since_ack_ms = (struct.unpack_from("=I", info, at)[0] for at in (_UNACKED, _LAST_ACK))
        if unacked and since_ack_ms > VANISHED_S * 1000:
            raise LinkLost(self.rank, f"no response for {VANISHED_S} s")

    def shut_down(self) -> None:
        """Make the thread that uses the connection fail now. Any thread may call it while the socket is open."""
        with suppress(OSError):
            # Not the method of `SSLSocket`: it drops TLS first, and another thread could then send in the clear.
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def exchange(links: Sequence[Link], arrived: Callable[[Link], None]) -> None:
    """Send and receive until nothing is queued. Call `arrived` for each view that is full; it may queue more.

    Raises `LinkLost`.
    """
    while True:
        for link in links:
            if link.outgoing:
                link.send()
        filled = False
        for link in links:
            while link.incoming and link.receive():
                filled = True
                arrived(link)
        if filled:
            continue  # what arrived may have led to more to send
        waiting = [link for link in links if link.outgoing or link.incoming]
        if not waiting:
            return
        if len(waiting) == 1 and waiting[0].can_wait_alone:
            if waiting[0].receive(waiting=True):
                arrived(waiting[0])
            else:
                waiting[0].require_answering()
        else:
            _wait(waiting)


def _wait(waiting: Sequence[Link]) -> None:
    """Wait until one of the connections can go on."""
    poll = select.poll()
    for link in waiting:
        poll.register(link.number, (select.POLLIN if link.incoming else 0) | (select.POLLOUT if link.outgoing else 0))
    if not poll.poll(LOOK_S * 1000):
        for link in waiting:
            link.require_answering()
