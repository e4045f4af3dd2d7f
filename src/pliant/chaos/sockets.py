"""The TCP sockets of the job's processes, and the choice of sockets to filter for a cut.

A filter on a socket drops the segments that arrive there, replies and acknowledgements included. Segments that leave
the socket pass. So a cut depends on which ends have filters:

    both directions  Both ends are filtered and nothing arrives anywhere. If the other end is on another machine, only
                     the victim's end is filtered, and what it sends arrives until its send window is full.
    inbound          The victim's ends and its listening sockets are filtered.
    outbound         The other ends of its connections are filtered. The victim receives until the senders' windows are
                     full, because its acknowledgements do not arrive.

The victim's listening sockets are filtered whenever the cut includes peers, so that no peer can connect. The listening
sockets of others cannot drop everything, since the others still connect to one another. But an accepted connection
inherits the filter of the listening socket. A filter there lets handshakes through and drops data. As soon as a new
connection is found, the victim's is cut and any other is released. Other connections of a worker, to a data store for
instance, are left alone.

The kernel's table is read from /proc/PID/net, because `psutil.Process.net_connections` reads that of this process's own
network namespace and reports no inodes.
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

from pliant.chaos.plan import COORDINATOR, Cut
from pliant.chaos.processes import ProcessRef, current_process, open_sockets

Address = tuple[str, int]
NOWHERE: Address = ("0.0.0.0", 0)
_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class SocketEnd:
    """One end of a connection, or a listening socket, of one process.

    `inode` tells it from a later socket with the same descriptor.
    """

    fd: int
    local: Address
    remote: Address
    listens: bool = False
    inode: int = 0


class SocketFilter(IntEnum):
    """The filter of a socket. Filters are applied in this order: the victim is cut before others are released."""

    DROP_ALL = 0
    HANDSHAKES_ONLY = 1  # connections are established, data is dropped
    ACCEPT_ALL = 2


@dataclass(frozen=True, slots=True)
class NetworkFacts:
    """Addresses of the coordinator, hosts of members on other machines, and addresses that are never cut off.

    The latter are those of `pliant chaos` itself, which has to observe the outcome.
    """

    coordinator_addresses: frozenset[Address] = frozenset()
    remote_hosts: frozenset[str] = frozenset()
    exempt: frozenset[Address] = frozenset()


Ends = Mapping[str, Sequence[SocketEnd]]
"""The sockets of each local process, by member or `COORDINATOR`."""


def socket_ends(process: ProcessRef) -> list[SocketEnd]:
    """Return all TCP sockets of a process; none if it has ended or belongs to another user."""
    return list(all_socket_ends({"": process})[""])


def all_socket_ends(processes: Mapping[str, ProcessRef]) -> Ends:
    """Return the TCP sockets of several processes.

    The sockets themselves report their addresses. The kernel's table is long on a busy machine and takes milliseconds
    to read. It is read only for a socket that is not connected yet or may not be accessed.
    """
    tables: dict[int, str] = {}
    found: dict[str, Sequence[SocketEnd]] = {}
    for name, process in processes.items():
        try:
            fds = _socket_fds(process.pid)
            known = _query_sockets(process, fds)
            if rest := {inode: fd for inode, fd in fds.items() if inode not in known}:
                network = Path(f"/proc/{process.pid}/ns/net").stat().st_ino
                if network not in tables:
                    tables[network] = read_tcp_table(Path(f"/proc/{process.pid}/net"))
                rows = parse_tcp_table(tables[network], rest)
                known |= {
                    inode: SocketEnd(rest[inode], local, remote, listens, inode)
                    for inode, local, remote, listens in rows
                }
        except OSError:
            found[name] = ()
        else:
            found[name] = [end for end in known.values() if end is not None]
    return found


def _query_sockets(process: ProcessRef, fds: Mapping[int, int]) -> dict[int, SocketEnd | None]:
    """Return by inode what the sockets report; None for one that is not TCP. Omit those that are not connected yet."""
    found: dict[int, SocketEnd | None] = {}
    with suppress(OSError), open_sockets(process) as access:
        for inode, fd in fds.items():
            with suppress(OSError), access.socket(fd) as sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    found[inode] = None
                elif sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found[inode] = SocketEnd(fd, _normalized(sock.getsockname()), NOWHERE, listens=True, inode=inode)
                else:
                    local, remote = _normalized(sock.getsockname()), _normalized(sock.getpeername())
                    found[inode] = SocketEnd(fd, local, remote, inode=inode)
    return found


def _normalized(address: tuple[Any, ...]) -> Address:
    return _unmapped(ipaddress.ip_address(address[0].partition("%")[0])), address[1]


def own_addresses() -> frozenset[Address]:
    """Return the local addresses of this process's sockets."""
    own = current_process()
    return frozenset(end.local for end in socket_ends(own)) if own is not None else frozenset()


def read_tcp_table(folder: Path) -> str:
    """Read the TCP tables from a folder such as /proc/net."""
    found = [folder / name for name in ("tcp", "tcp6")]
    return "".join(each.read_text() for each in found if each.exists())  # a system without IPv6 has no tcp6


def parse_tcp_table(text: str, wanted: Container[int]) -> Iterator[tuple[int, Address, Address, bool]]:
    """Parse rows of /proc/net/tcp and tcp6: inode, local address, remote address, whether it listens."""
    for row in text.splitlines():
        fields = row.split()
        if fields[9].isdecimal() and (inode := int(fields[9])) in wanted:  # the first row has the headings
            yield inode, _parse_address(fields[1]), _parse_address(fields[2]), fields[3] == _LISTEN


def plan_filters(
    cut: Cut, victim: str, sockets: Ends, facts: NetworkFacts
) -> list[tuple[str, SocketEnd, SocketFilter]]:
    """Return the filter of each socket during the cut, dropping filters first. Other sockets keep theirs."""
    cut_off = ends_to_cut(cut, victim, sockets, facts)
    guards = _guarded_processes(cut, sockets)
    found = []
    for name, theirs in sockets.items():
        for end in theirs:
            if (name, end.fd) in cut_off:
                found.append((name, end, SocketFilter.DROP_ALL))
            elif name in guards:
                found.append((name, end, SocketFilter.HANDSHAKES_ONLY if end.listens else SocketFilter.ACCEPT_ALL))
    return sorted(found, key=lambda each: each[2])


def _guarded_processes(cut: Cut, sockets: Ends) -> set[str]:
    """Return the processes whose new connections must be classified before data passes."""
    if cut is Cut.COORDINATOR_ISOLATED:
        return set()  # the coordinator opens no connection and accepts none
    if cut is Cut.COORDINATOR:
        return {COORDINATOR}
    return set(sockets) - ({COORDINATOR} if cut is Cut.PEERS else set())


def ends_to_cut(cut: Cut, victim: str, sockets: Ends, facts: NetworkFacts) -> set[tuple[str, int]]:
    """Return the sockets that are to receive nothing, each as owner and descriptor."""
    mine = sockets.get(victim, ())
    if cut is Cut.COORDINATOR_ISOLATED:
        found = {(victim, end.fd) for end in mine if end.remote not in facts.exempt}
        return found | {(name, end.fd) for name, end in _others(victim, sockets) if _is_to_coordinator(end, facts)}
    cut_inbound = cut is not Cut.OUTBOUND
    cut_outbound = cut is not Cut.INBOUND
    with_peers, with_coordinator = cut is not Cut.COORDINATOR, cut is not Cut.PEERS
    found = set()
    if cut_inbound:
        for end in mine:
            if _is_to_coordinator(end, facts) or _has_other_end(end, sockets.get(COORDINATOR, ())):
                wanted = with_coordinator
            else:
                wanted = with_peers and (end.listens or _connects_to_peer(end, victim, sockets, facts))
            if wanted:
                found.add((victim, end.fd))
    if cut_outbound:
        for name, end in _others(victim, sockets):
            if (with_coordinator if name == COORDINATOR else with_peers) and _connects_to(end, mine):
                found.add((name, end.fd))
    return found


def _others(victim: str, sockets: Ends) -> Iterator[tuple[str, SocketEnd]]:
    return ((name, end) for name, theirs in sockets.items() if name != victim for end in theirs)


def _is_to_coordinator(end: SocketEnd, facts: NetworkFacts) -> bool:
    return end.remote in facts.coordinator_addresses


def _has_other_end(end: SocketEnd, theirs: Iterable[SocketEnd]) -> bool:
    """Return whether one of those is the other end of this connection."""
    return any(other.local == end.remote and other.remote == end.local for other in theirs if not other.listens)


def _connects_to(end: SocketEnd, mine: Sequence[SocketEnd]) -> bool:
    """Return whether this is a connection to one of ours, established or in progress."""
    if end.listens:
        return False
    return _has_other_end(end, mine) or any(_is_dialling(end, other) for other in mine if other.listens)


def _connects_to_peer(end: SocketEnd, victim: str, sockets: Ends, facts: NetworkFacts) -> bool:
    if end.remote[0] in facts.remote_hosts:
        return True
    if any(other.listens and other.local[1] == end.local[1] for other in sockets[victim]):
        return True  # accepted on the victim's listening port, which only peers use
    peers = [theirs for name, theirs in sockets.items() if name not in (victim, COORDINATOR)]
    return any(_connects_to(end, theirs) for theirs in peers)


def _is_dialling(end: SocketEnd, listening: SocketEnd) -> bool:
    host, port = listening.local
    return end.remote[1] == port and (end.remote[0] == host or ipaddress.ip_address(host).is_unspecified)


def _socket_fds(pid: int | str) -> dict[int, int]:
    """Return the descriptors of a process's sockets by inode."""
    found = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = str(each.readlink())
        except OSError:  # closed meanwhile
            continue
        if name.startswith("socket:["):
            found[int(name[8:-1])] = int(each.name)
    return found


def _parse_address(text: str) -> Address:
    """Parse an address such as `0100007F:1F90`: groups of four bytes, each in host byte order."""
    digits, _, port = text.partition(":")
    groups = [bytes.fromhex(digits[at : at + 8])[::-1] for at in range(0, len(digits), 8)]
    return _unmapped(ipaddress.ip_address(b"".join(groups))), int(port, 16)


def _unmapped(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the address, an IPv4-mapped IPv6 address as IPv4."""
    mapped = host.ipv4_mapped if isinstance(host, ipaddress.IPv6Address) else None
    return str(host if mapped is None else mapped)
