"""A connection is cut without any privilege over the network: its sockets are told to drop what arrives.

A process that may trace another (root may; a user's own processes where `kernel.yama.ptrace_scope` is 0) can have a
duplicate of its sockets, and may then give them a filter. One that accepts nothing is a cut: segments are dropped
silently and sent again by TCP, as on a broken link, until the filter is taken off. A connection that is opened during a
cut is found within `RESCAN_S`, and nothing is heard on it before (`sockets` says how).
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

from pliant.chaos.fds import into
from pliant.chaos.processes import Process
from pliant.chaos.sockets import End, Filter, ends

RESCAN_S = 0.02
QUEUE_S = 2.0  # how long a connection may wait to be accepted until it is not waited for any more

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27
_UNACKED = 24  # where the system's `tcp_info` says how many connections wait to be accepted, of a socket that listens


def _program(*instructions: tuple[int, int, int, int]) -> tuple[object, bytes]:
    """Of the system's packet filter, and what keeps its memory."""
    code = b"".join(struct.pack("HBBI", *each) for each in instructions)
    memory = ctypes.create_string_buffer(code, len(code))
    return memory, struct.pack("HP", len(instructions), ctypes.addressof(memory))


# They see a segment from its TCP header on, and say how many bytes of it are taken.
_NONE = _program((0x06, 0, 0, 0))
_EMPTY_ONES = _program(
    (0x30, 0, 0, 12),  # the byte that has the header's length, in its upper half and in fours
    (0x74, 0, 0, 4),
    (0x64, 0, 0, 2),
    (0x07, 0, 0, 0),
    (0x80, 0, 0, 0),  # the segment's length
    (0x1D, 0, 1, 0),  # the same?
    (0x06, 0, 0, 0x7FFFFFFF),
    (0x06, 0, 0, 0),
)
_PROGRAMS = {Filter.NOTHING: _NONE[1], Filter.CONNECTIONS: _EMPTY_ONES[1]}

Wanted = Callable[[], Sequence[tuple[Process, End, Filter]]]
"""What each socket is to hear now, in the order in which it is to be put into force."""


def why_not(process: Process) -> str:
    """Why that process's connections cannot be cut; empty if they can, or if it has just ended."""
    try:
        found = ends(process)
        if found:
            with into(process) as reach, reach.socket(found[0].handle) as sock:
                _accept_all(sock)
    except PermissionError:
        return "this system lets no process reach into another's sockets: be root, or set kernel.yama.ptrace_scope to 0"
    except OSError as error:
        if error.errno == errno.ENOSYS:
            return "this system's kernel is older than 5.6, and does not let a process reach into another's sockets"
    return ""


class Filters:
    """The filters of one cut: `put` them wherever they are wanted now, again and again, and `remove` them all."""

    def __init__(self, wanted: Wanted, touched: Callable[[Process], None]) -> None:
        self._wanted = wanted
        self._touched = touched  # told of every process before its first socket is filtered
        self._there: dict[tuple[Process, int], tuple[int, Filter]] = {}  # by number there, its inode and filter
        self.processes: set[Process] = set()
        self.count = 0  # how many ends of connections hear, or heard, nothing

    def put(self) -> None:
        for process, end, kind in self._wanted():
            place, now = (process, end.handle), (end.inode, kind)
            if self._there.get(place) == now:
                continue
            if process not in self.processes:
                self._touched(process)
                self.processes.add(process)
            with suppress(OSError), into(process) as reach, reach.socket(end.handle) as sock:  # else it was closed
                if kind is Filter.EVERYTHING:
                    _accept_all(sock)
                else:
                    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, _PROGRAMS[kind])
                    self.count += kind is Filter.NOTHING
                self._there[place] = now

    def remove(self) -> None:
        uncut(*self.processes)
        self._there.clear()


def uncut(*processes: Process) -> None:
    """Take the filters off all TCP sockets of some processes: of one that was accepted meanwhile nobody knows.

    A connection has the filter of where it was asked for from before it is accepted, and can be reached only after. So
    this looks again until it finds no filter, and found no connection waiting the time before. One that is not accepted
    within `QUEUE_S`, because its process stands still or is busy, stays deaf. What is asked for from now on has no
    filter.
    """
    until = time.monotonic() + QUEUE_S
    may_come = bool(processes)
    while True:
        looks = [_look_through(process) for process in processes]
        if not may_come and not any(filtered for filtered, _ in looks):
            return
        may_come = any(waits for _, waits in looks)
        if time.monotonic() >= until:
            return
        time.sleep(RESCAN_S)  # an accepted one has left the queue a moment before it has a number


def _look_through(process: Process) -> tuple[bool, bool]:
    """Take the filters off its sockets, first where it listens; whether there was one, and whether somebody waits."""
    filtered = waits = False
    for end in sorted(ends(process), key=lambda each: not each.listens):
        with suppress(OSError), into(process) as reach, reach.socket(end.handle) as sock:
            filtered |= _accept_all(sock)
            waits |= end.listens and _waiting(sock) > 0
    return filtered, waits


def _waiting(listening: socket.socket) -> int:
    """How many connections wait to be accepted there."""
    said = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED + 4)
    return int.from_bytes(said[_UNACKED:], sys.byteorder)


def _accept_all(sock: socket.socket) -> bool:
    """Take its filter off; whether it had one."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except OSError as error:
        if error.errno != errno.ENOENT:  # there is none
            raise
        return False
    return True
