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
from collections.abc import Callable, Sequence
from contextlib import suppress

from pliant.chaos.processes import Process
from pliant.chaos.reach import into
from pliant.chaos.sockets import End, Filter, ends

RESCAN_S = 0.02

_SO_ATTACH_FILTER, _SO_DETACH_FILTER = 26, 27


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
        for process in self.processes:
            uncut(process)
        self._there.clear()


def uncut(process: Process) -> None:
    """Take the filters off all of a process's TCP sockets: of one that was accepted meanwhile nobody knows."""
    for end in ends(process):
        with suppress(OSError), into(process) as reach, reach.socket(end.handle) as sock:
            _accept_all(sock)


def _accept_all(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except OSError as error:
        if error.errno != errno.ENOENT:  # there is none
            raise
