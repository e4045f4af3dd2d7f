"""Cut connections with socket filters, which needs neither root nor a firewall.

Packet filters of the system (`tc`, nftables) need root, and a proxy would have to be in place before the job starts. A
process that may trace another can duplicate its sockets and attach a filter to them: root may, and so may a user for
own processes if `kernel.yama.ptrace_scope` is 0. A filter that accepts nothing is a cut. Segments are dropped silently
and TCP retransmits them, as on a broken link, until the filter is detached. A connection opened during a cut is found
within `RESCAN_S` and carries no data before (see `sockets`).
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pliant.chaos.processes import ProcessRef, open_sockets
from pliant.chaos.sockets import SocketEnd, SocketFilter, socket_ends

RESCAN_S = 0.02
QUEUE_S = 2.0  # how long `remove_filters` queued for connections to be accepted

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_UNACKED = 24  # offset in `tcp_info` of the accept queue's length, for a listening socket


def _program(*instructions: tuple[int, int, int, int]) -> tuple[object, bytes]:
    """Return a packet filter program, and the buffer that must outlive it."""
    code = b"".join(struct.pack("HBBI", *each) for each in instructions)
    memory = ctypes.create_string_buffer(code, len(code))
    return memory, struct.pack("HP", len(instructions), ctypes.addressof(memory))


# A program sees the segment from its TCP header on and returns how many bytes to accept.
_DROP_ALL = _program((0x06, 0, 0, 0))
_HANDSHAKES_ONLY = _program(
    (0x30, 0, 0, 12),  # the header's length, in the upper four bits, in units of four bytes
    (0x74, 0, 0, 4),
    (0x64, 0, 0, 2),
    (0x07, 0, 0, 0),
    (0x80, 0, 0, 0),  # the segment's length
    (0x1D, 0, 1, 0),  # equal: no payload
    (0x06, 0, 0, 0x7FFFFFFF),
    (0x06, 0, 0, 0),
)
_PROGRAMS = {SocketFilter.DROP_ALL: _DROP_ALL[1], SocketFilter.HANDSHAKES_ONLY: _HANDSHAKES_ONLY[1]}

Wanted = Callable[[], Sequence[tuple[ProcessRef, SocketEnd, SocketFilter]]]
"""The filter that each socket should have now, in the order to apply them."""


def why_unavailable(process: ProcessRef) -> str:
    """Return why the connections of that process cannot be cut; empty if they can, or if it has just ended."""
    try:
        found = socket_ends(process)
        if found:
            with open_sockets(process) as access, access.socket(found[0].fd) as sock:
                _detach_filter(sock)
    except PermissionError:
        return "this system denies access to sockets of other processes; run as root or set kernel.yama.ptrace_scope=0"
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return "accessing sockets of other processes needs Linux 5.6 or newer"
    return ""


class CutFilters:
    """The filters of one cut. Call `apply` repeatedly while it lasts, then `remove`."""

    def __init__(self, plan: Wanted, before_first: Callable[[ProcessRef], None]) -> None:
        self._plan = plan
        self._before_first = before_first  # called with each process before its first socket is filtered
        self._applied: dict[
            tuple[ProcessRef, int], tuple[int, SocketFilter]
        ] = {}  # inode and filter by process and descriptor
        self.processes: set[ProcessRef] = set()
        self.count = 0  # sockets that were cut

    def apply(self) -> None:
        for process, end, kind in self._plan():
            key, filter_now = (process, end.fd), (end.inode, kind)
            if self._applied.get(key) == filter_now:
                continue
            if process not in self.processes:
                self._before_first(process)
                self.processes.add(process)
            with (
                suppress(OSError),
                open_sockets(process) as access,
                access.socket(end.fd) as sock,
            ):  # the socket may have been closed
                if kind is SocketFilter.ACCEPT_ALL:
                    _detach_filter(sock)
                else:
                    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAMS[kind])
                    self.count += kind is SocketFilter.DROP_ALL
                self._applied[key] = filter_now

    def remove(self) -> None:
        remove_filters(*self.processes)
        self._applied.clear()


def remove_filters(*processes: ProcessRef) -> None:
    """Detach the filters of all TCP sockets of some processes, including connections accepted meanwhile.

    A connection inherits the filter of its listening socket before it is accepted, and cannot be accessed until then.
    So this repeats until no socket has a filter and the pass before found no queued connection. A connection that its
    process does not accept within `QUEUE_S` keeps its filter. Connections requested from now on have none.
    """
    until = time.monotonic() + QUEUE_S
    may_be_queued = bool(processes)
    while True:
        results = [_clear_filters(process) for process in processes]
        if not may_be_queued and not any(filtered for filtered, _ in results):
            return
        may_be_queued = any(queued for _, queued in results)
        if time.monotonic() >= until:
            return
        time.sleep(RESCAN_S)  # an accepted connection leaves the queue before it has a descriptor


def _clear_filters(process: ProcessRef) -> tuple[bool, bool]:
    """Detach the filters of a process, listening sockets first. Return whether any had one and any has a queue."""
    filtered = queued = False
    for end in sorted(socket_ends(process), key=lambda each: not each.listens):
        with suppress(OSError), open_sockets(process) as access, access.socket(end.fd) as sock:
            filtered |= _detach_filter(sock)
            queued |= end.listens and _queue_length(sock) > 0
    return filtered, queued


def _queue_length(listening: socket.socket) -> int:
    """Return the number of connections that wait to be accepted."""
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED + 4)
    return int.from_bytes(info[_UNACKED:], sys.byteorder)


def _detach_filter(sock: socket.socket) -> bool:
    """Detach the filter of a socket and return whether it had one."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except OSError as error:
        if error.errno != errno.ENOENT:  # it has no filter
            raise
        return False
    return True
