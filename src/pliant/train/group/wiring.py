"""Build one generation's TCP group in the background (rule 7).

Members connect to each other's peer servers, with the generation's key and, where the job has a CA, with TLS. So every
connection of a group is authenticated on both sides, and no port is opened for it.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Protocol

from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.train.group.contract import GroupBroken
from pliant.train.group.links import Link
from pliant.train.group.tcp import TcpGroup
from pliant.train.peer.framing import DamagedFrame, PeerLost, WaitCheck, deadline_check
from pliant.train.peer.rpc import retry_pauses

WIRING_S = 15.0  # a member answers within milliseconds, unless it is disconnected or dying


class PeerStreams(Protocol):
    """The part of `pliant.train.peer.server.PeerServer` that wiring needs."""

    def open_stream(self, generation: int, member: MemberId, check: WaitCheck) -> socket.socket: ...
    def accept_stream(self, generation: int, member: MemberId, check: WaitCheck) -> socket.socket: ...
    def wake(self) -> None: ...


class TcpWiring:
    """The construction of one generation's group. Call `run` once, in a background thread.

    `peers` has the key of the generation. A world of one needs neither.
    """

    def __init__(self, world: World, me: MemberId, peers: PeerStreams | None) -> None:
        rank = world.rank_of(me)
        if rank is None:
            raise BadInput(f"{me} is not a member of generation {world.number}.")
        self._world = world
        self._rank = rank
        self._peers = peers
        self._broken = threading.Event()
        self._lock = threading.Lock()
        self._group: TcpGroup | None = None
        self._awaited: MemberId | None = None

    def run(self) -> TcpGroup:
        """Build the group and complete a barrier in it. Raises `GroupBroken`, at the latest soon after `break_off`."""
        self._in_time = deadline_check(WIRING_S)
        try:
            group = self._build()
        except (OSError, PeerLost) as error:
            raise self._failure(str(error)) from error
        limit = threading.Timer(WIRING_S, group.break_off)
        limit.daemon = True
        limit.start()
        try:
            group.barrier()
        except GroupBroken as broken:
            group.dispose()
            raise self._failure(broken.why, broken.peer) from broken
        finally:
            limit.cancel()
        return group

    def break_off(self) -> None:
        """End `run`, or break the group it built. Any thread may call it."""
        with self._lock:
            self._broken.set()
            group = self._group
        if self._peers is not None:
            self._peers.wake()
        if group is not None:
            group.break_off()

    def _build(self) -> TcpGroup:
        links: list[Link] = []
        try:
            for rank, member in enumerate(self._world.members):
                if rank != self._rank:
                    self._awaited = member
                    links.append(Link(rank, self._connect(rank, member)))
            self._awaited = None
            with self._lock:
                self._check()
                self._group = group = TcpGroup(self._world, self._rank, links)
        except BaseException:  # why: no socket may outlive a failure
            for link in links:
                with suppress(OSError):
                    link.sock.close()
            raise
        return group

    def _connect(self, rank: int, member: MemberId) -> socket.socket:
        """Return the connection to a peer: the higher rank of the two opens it."""
        number, peers = self._world.number, self._peers
        if peers is None:
            raise BadInput(f"Generation {number} has several members, and this one has no connections to others.")
        if rank > self._rank:
            return peers.accept_stream(number, member, self._check)
        pauses = retry_pauses()
        while True:
            try:
                return peers.open_stream(number, member, self._check)
            except (OSError, DamagedFrame):
                self._check()  # a connection may be lost on a bad network: the limit of the wiring ends the attempts
                self._broken.wait(next(pauses))

    def _check(self) -> None:
        if self._broken.is_set():
            raise ConnectionResetError("it was broken off")
        self._in_time()

    def _failure(self, why: str, peer: MemberId | None = None) -> GroupBroken:
        number = self._world.number
        if self._broken.is_set():
            return GroupBroken(f"the wiring of generation {number} was broken off")
        return GroupBroken(f"generation {number} could not be wired: {why}", self._awaited or peer)
