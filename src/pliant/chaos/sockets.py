"""Whose TCP connections are whose: read from the system, and chosen for a cut.

A filter on a socket drops what arrives at it, answers and acknowledgements included; what leaves it goes on its way. So
it matters at which ends the filters are:

    both ways        at both ends: nothing arrives anywhere. Where the other end is on another machine there is the
                     victim's alone, and what it sends still arrives until it has sent as much as may be under way
                     without an acknowledgement.
    hears nobody     at the victim's ends, and where it listens.
    heard by nobody  at the others' ends of its connections. It hears the others until they have sent as much as may be
                     under way; its acknowledgements do not arrive.

Where the victim listens is filtered wherever its peers are meant, so that none of them can connect. Where the others
listen nothing can be dropped, since they go on connecting to one another. But a connection that is accepted has the
filter of where it was asked for: so there is one that lets a connection come about and drops what is said on it, and
as soon as a new connection is found the victim's is cut, and another one is let free. Other connections of a worker, to
a store of data for instance, are left alone.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from pliant.chaos.fds import into
from pliant.chaos.plan import COORDINATOR, Cut
from pliant.chaos.processes import Process, itself

Address = tuple[str, int]
NOWHERE: Address = ("0.0.0.0", 0)
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class End:
    """One process's end of a connection, or where it listens. `handle` is its number in that process.

    `inode` tells it from another one that has the same number later.
    """

    handle: int
    local: Address
    remote: Address
    listens: bool = False
    inode: int = 0


class Filter(IntEnum):
    """What a socket may hear. In this order they are put, so that nobody is let free before the victim is cut off."""

    NOTHING = 0
    CONNECTIONS = 1  # they come about, and nothing is heard on them
    EVERYTHING = 2


@dataclass(frozen=True, slots=True)
class Around:
    """What is known besides: where the coordinator answers, where members on other machines are, who is never cut off.

    The last are our own ends: whoever cuts wants to see what comes of it.
    """

    coordinator: frozenset[Address] = frozenset()
    elsewhere: frozenset[str] = frozenset()  # hosts
    spared: frozenset[Address] = frozenset()


Ends = Mapping[str, Sequence[End]]
"""By member, or `COORDINATOR`: the ends of each process that can be reached."""


def ends(process: Process) -> list[End]:
    """All of a process's; empty if it has ended or is another user's."""
    return list(every_end({"": process})[""])


def every_end(processes: Mapping[str, Process]) -> Ends:
    """Those of several at once.

    The sockets themselves say where they are. The system's table is long on a busy machine, and reading it takes
    milliseconds: it is asked only where a socket does not know its other end yet, or may not be reached.
    """
    tables: dict[int, str] = {}
    found: dict[str, Sequence[End]] = {}
    for name, process in processes.items():
        try:
            handles = _handles(process.pid)
            known = _asked(process, handles)
            if rest := {inode: handle for inode, handle in handles.items() if inode not in known}:
                network = Path(f"/proc/{process.pid}/ns/net").stat().st_ino
                if network not in tables:
                    tables[network] = table(Path(f"/proc/{process.pid}/net"))
                rows = parse(tables[network], rest)
                known |= {
                    inode: End(rest[inode], local, remote, listens, inode) for inode, local, remote, listens in rows
                }
        except OSError:
            found[name] = ()
        else:
            found[name] = [end for end in known.values() if end is not None]
    return found


def _asked(process: Process, handles: Mapping[int, int]) -> dict[int, End | None]:
    """By inode, what the sockets say of themselves; None: it is not of TCP. One that does not know is left out."""
    found: dict[int, End | None] = {}
    with suppress(OSError), into(process) as reach:
        for inode, handle in handles.items():
            with suppress(OSError), reach.socket(handle) as sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    found[inode] = None
                elif sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[inode] = End(handle, _plain(sock.getsockname()), NOWHERE, listens=True, inode=inode)
                else:
                    local, remote = _plain(sock.getsockname()), _plain(sock.getpeername())
                    found[inode] = End(handle, local, remote, inode=inode)
    return found


def _plain(address: tuple[Any, ...]) -> Address:
    return _shortest(ipaddress.ip_address(address[0].partition("%")[0])), address[1]


def own_ends() -> frozenset[Address]:
    """Of this process's connections."""
    own = itself()
    return frozenset(end.local for end in ends(own)) if own is not None else frozenset()


def table(folder: Path) -> str:
    """What /proc/net says of TCP, or another folder like it."""
    found = [folder / name for name in ("tcp", "tcp6")]
    return "".join(each.read_text() for each in found if each.exists())  # there may be no IPv6


def parse(text: str, wanted: Container[int]) -> Iterator[tuple[int, Address, Address, bool]]:
    """Rows of /proc/net/tcp or tcp6, of the inodes that are wanted: inode, local, remote, whether it listens."""
    for row in text.splitlines():
        fields = row.split()
        if fields[9].isdecimal() and (inode := int(fields[9])) in wanted:  # the first row is of words
            yield inode, _address(fields[1]), _address(fields[2]), fields[3] == _LISTEN


def treated(cut: Cut, victim: str, every: Ends, around: Around) -> list[tuple[str, End, Filter]]:
    """What each end is to hear while the cut lasts, those first that hear nothing; the rest is left as it is."""
    cut_off = chosen(cut, victim, every, around)
    guards = _guards(cut, every)
    found = []
    for name, theirs in every.items():
        for end in theirs:
            if (name, end.handle) in cut_off:
                found.append((name, end, Filter.NOTHING))
            elif name in guards:
                found.append((name, end, Filter.CONNECTIONS if end.listens else Filter.EVERYTHING))
    return sorted(found, key=lambda each: each[2])


def _guards(cut: Cut, every: Ends) -> set[str]:
    """Whose new connections must be looked at before anything is heard on them."""
    if cut is Cut.ALONE:
        return set()  # it connects to nobody, and nobody can connect to it
    if cut is Cut.COORDINATOR:
        return {COORDINATOR}
    return set(every) - ({COORDINATOR} if cut is Cut.PEERS else set())


def chosen(cut: Cut, victim: str, every: Ends, around: Around) -> set[tuple[str, int]]:
    """The ends that are to hear nothing, each with whose it is."""
    mine = every.get(victim, ())
    if cut is Cut.ALONE:
        found = {(victim, end.handle) for end in mine if end.remote not in around.spared}
        return found | {(name, end.handle) for name, end in _others(victim, every) if _to_coordinator(end, around)}
    heard = cut is not Cut.MUTE
    said = cut is not Cut.DEAF
    with_peers, with_coordinator = cut is not Cut.COORDINATOR, cut is not Cut.PEERS
    found = set()
    if heard:
        for end in mine:
            if _to_coordinator(end, around) or _is_of(end, every.get(COORDINATOR, ())):
                wanted = with_coordinator
            else:
                wanted = with_peers and (end.listens or _is_with_peer(end, victim, every, around))
            if wanted:
                found.add((victim, end.handle))
    if said:
        for name, end in _others(victim, every):
            if (with_coordinator if name == COORDINATOR else with_peers) and _is_with(end, mine):
                found.add((name, end.handle))
    return found


def _others(victim: str, every: Ends) -> Iterator[tuple[str, End]]:
    return ((name, end) for name, theirs in every.items() if name != victim for end in theirs)


def _to_coordinator(end: End, around: Around) -> bool:
    return end.remote in around.coordinator


def _is_of(end: End, theirs: Iterable[End]) -> bool:
    """Whether one of those is the other end of this."""
    return any(other.local == end.remote and other.remote == end.local for other in theirs if not other.listens)


def _is_with(end: End, mine: Sequence[End]) -> bool:
    """Whether this is a connection to one of ours, or is about to be one: it asks where we listen."""
    if end.listens:
        return False
    return _is_of(end, mine) or any(_asks(end, other) for other in mine if other.listens)


def _is_with_peer(end: End, victim: str, every: Ends, around: Around) -> bool:
    if end.remote[0] in around.elsewhere:
        return True
    if any(other.listens and other.local[1] == end.local[1] for other in every[victim]):
        return True  # it came in where we listen: only peers do
    peers = [theirs for name, theirs in every.items() if name not in (victim, COORDINATOR)]
    return any(_is_with(end, theirs) for theirs in peers)


def _asks(end: End, listening: End) -> bool:
    host, port = listening.local
    return end.remote[1] == port and (end.remote[0] == host or ipaddress.ip_address(host).is_unspecified)


def _handles(pid: int | str) -> dict[int, int]:
    """The numbers of its sockets, by inode."""
    found = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = str(each.readlink())
        except OSError:  # it was closed meanwhile
            continue
        if name.startswith("socket:["):
            found[int(name[8:-1])] = int(each.name)
    return found


def _address(text: str) -> Address:
    """`0100007F:1F90`: groups of four bytes, each in the order of this machine."""
    digits, _, port = text.partition(":")
    groups = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    return _shortest(ipaddress.ip_address(b"".join(groups))), int(port, 16)


def _shortest(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """IPv4 within IPv6 is IPv4."""
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return str(host if mapped is None else mapped)
