"""Build one generation's process group in the background (rule 7).

gloo's own listeners check no credential. Four things limit that: they listen on the interface of `host` alone, their
addresses go only to members that proved to have the generation's key, a connection that no member claims fails the
wiring, and after the wiring the kernel drops what arrives at them.
"""

from __future__ import annotations

import hashlib
import hmac
import resource
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
from torch._C._distributed_c10d import (  # torch.distributed's own; only here they have types
    PrefixStore,
    ProcessGroupGloo,
)

from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.torch.gloo.group import GlooGroup, plain_message
from pliant.torch.gloo.hung import gloo_threads
from pliant.torch.gloo.sockets import Address, GroupSockets
from pliant.torch.group.contract import GroupBroken
from pliant.torch.group.peer_store import PeerSender, PeerStore, StoreClosed
from pliant.train.peer.framing import PeerLost
from pliant.train.peer.kv import PeerValues

CONNECT_S = 30.0  # gloo's own time limit for one connection
WIRING_S = 15.0  # a member answers within milliseconds, unless it is disconnected or dying
NUDGE_S = 0.01
NO_TIMEOUT = timedelta(days=3650)  # only the coordinator and broken connections end a world, never gloo's timeout

_LINKS = "links"
_links = msgspec.msgpack.Decoder(list[tuple[Address, Address]])


class GlooWiring:
    """The construction of one generation's group. Call `run` once, in a background thread.

    `key` is the generation's key, which `peers` has as well. A world of one needs none.
    """

    def __init__(
        self, world: World, key: str, me: MemberId, peers: PeerSender, mailbox: PeerValues, host: str = "127.0.0.1"
    ) -> None:
        rank = world.rank_of(me)
        if rank is None:
            raise BadInput(f"{me} is not a member of generation {world.number}.")
        self._world = world
        self._rank = rank
        self._host = host
        self._peers = peers
        self._others = [member for member in world.members if member != me]
        self._sockets = GroupSockets()
        self._broken = threading.Event()
        self._running = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._group: GlooGroup | None = None
        self._nudging = False
        self._late = False
        self._before: frozenset[int] = frozenset()
        self._prefix = hmac.new(key.encode(), b"pliant wiring", hashlib.sha256).hexdigest()
        self._store = PeerStore(mailbox, world.number, self._send_to_all, self._record)

    def run(self) -> GlooGroup:
        """Build the group and complete a barrier in it. Raises `GroupBroken`, at the latest soon after `break_off`."""
        self._running.set()
        limit = threading.Timer(WIRING_S, self._time_out)
        limit.daemon = True
        limit.start()
        try:
            group = self._build()
        except (RuntimeError, OSError, ValueError, msgspec.MsgspecError, PeerLost, StoreClosed) as error:
            raise self._failure(error) from error
        finally:
            self._ended.set()
            limit.cancel()
        try:
            group.barrier()
        except GroupBroken:
            group.dispose()
            raise
        if group.size > 1:
            group.threads = (
                gloo_threads() - self._before
            )  # after the barrier: a thread gets its name when it first runs
        return group

    def _time_out(self) -> None:
        """Break off because a member does not answer. The coordinator gets its name, and decides (rule 11)."""
        if not self._ended.is_set():
            self._late = True
            self.break_off()

    def break_off(self) -> None:
        """End `run`, or break the group it built. Any thread may call it."""
        with self._lock:
            self._broken.set()
            group = self._group
            nudge = group is None and self._running.is_set() and not self._nudging
            self._nudging = self._nudging or nudge
        if nudge:
            threading.Thread(target=self._nudge, name="pliant-break-off", daemon=True).start()
        if group is not None:
            group.break_off()

    def _build(self) -> GlooGroup:
        self._require_unbroken()
        group = self._connect()
        try:
            if group.size > 1:
                self._check_links()
            with self._lock:
                self._require_unbroken()
                self._group = group
        except BaseException:  # why: gloo's threads and sockets must not outlive any failure
            group.dispose()
            raise
        return group

    def _connect(self) -> GlooGroup:
        size = len(self._world.members)
        if size == 1:
            return GlooGroup(self._world, self._rank, self._sockets, [], frozenset())
        make: Any = ProcessGroupGloo  # its stub lacks the options
        options = make._Options()
        options._timeout = timedelta(seconds=CONNECT_S)
        options._devices = [make.create_device(hostname=self._host)]
        self._before = gloo_threads()
        _raise_descriptor_limit()
        gloo = make(PrefixStore(self._prefix, self._store), self._rank, size, options)
        gloo._set_default_timeout(NO_TIMEOUT)
        return GlooGroup(self._world, self._rank, self._sockets, [gloo, self._store], frozenset())

    def _require_unbroken(self) -> None:
        if self._broken.is_set():
            raise StoreClosed("broken off")

    def _check_links(self) -> None:
        """Compare the ends of all connections with those that the other ranks publish. Refuse an unclaimed one."""
        mine = [(each.here, each.there) for each in self._sockets.freeze()]
        self._store.set(f"{self._prefix}/{_LINKS}/{self._rank}", msgspec.msgpack.encode(mine))
        for rank in range(len(self._world.members)):
            if rank == self._rank:
                continue
            for here, there in _links.decode(self._store.get(f"{self._prefix}/{_LINKS}/{rank}")):
                if (there, here) in mine:
                    self._sockets.claim(rank, here)
        if (stranger := self._sockets.unclaimed()) is not None:
            raise ValueError(f"no member claims the connection with {stranger[0]}:{stranger[1]}")
        if len(mine) < len(self._others):
            raise ValueError(f"{len(mine)} of {len(self._others)} connections were made")

    def _send_to_all(self, head: bytes) -> None:
        for member in self._others:
            self._peers.notify(self._world.number, member, "store", head)

    def _record(self, key: str, value: bytes) -> None:
        """Record a value of the store: gloo stores nothing but addresses, by rank."""
        kind, _, rank = key.removeprefix(f"{self._prefix}/").rpartition("/")
        if kind == _LINKS:
            return
        if int(rank) == self._rank:
            self._sockets.set_own_address(value)
        else:
            self._sockets.set_address(int(rank), value)

    def _nudge(self) -> None:
        """Make everything fail that gloo's constructor waits for, since it cannot be interrupted."""
        while not self._ended.is_set():
            self._store.close()
            self._sockets.shut_down()
            self._sockets.replace_missing_peers()
            self._ended.wait(NUDGE_S)

    def _failure(self, error: Exception) -> GroupBroken:
        number = self._world.number
        rank = self._sockets.rank_in_error(str(error))
        if self._late:
            silent = [key.rpartition("/")[2] for key in self._store.missing]
            rank = next((int(each) for each in silent if each.isdecimal()), rank)
            error = TimeoutError(f"no answer within {WIRING_S:g} s")
        elif self._broken.is_set():
            return GroupBroken(f"the wiring of generation {number} was broken off")
        peer = None if rank is None else self._world.members[rank]
        return GroupBroken(f"generation {number} could not be wired: {plain_message(error)}", peer)


def _raise_descriptor_limit() -> None:
    """Raise the soft limit of open files to the hard one: gloo aborts the process when it cannot accept."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # a hard limit above the kernel's own cannot be set
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
