"""Build one generation's NCCL process group in the background (rule 7).

NCCL's bootstrap listeners check no credential. Its identifier, which names their address and holds a random number,
goes only to members that proved to have the generation's key.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import PrefixStore  # torch.distributed's own; only here it has types

from pliant import settings
from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.torch.group.nccl import NcclGroup
from pliant.torch.group.peer_store import PeerSender, PeerStore
from pliant.train.group.contract import GroupBroken
from pliant.train.peer.kv import PeerValues

WIRING_S = 30.0  # the first communicator of a process takes seconds
NO_TIMEOUT = timedelta(days=3650)  # only the coordinator ends a world, never NCCL's timeout

# torch's watchdog must not end the process when a peer is lost: the session breaks the group and goes on.
WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}


class NcclWiring:
    """The construction of one generation's group. Call `run` once, in a background thread.

    While NCCL connects, it cannot be interrupted. So it does that in a thread of its own, which `run` abandons when the
    wiring is broken off. That thread ends when the connections to a lost peer close, and disposes of its group. A peer
    that never connected would never close one: NCCL starts only once every rank has written that it is ready.
    """

    def __init__(
        self, world: World, key: str, me: MemberId, peers: PeerSender, mailbox: PeerValues, device: torch.device
    ) -> None:
        rank = world.rank_of(me)
        if rank is None:
            raise BadInput(f"{me} is not a member of generation {world.number}.")
        self._world = world
        self._rank = rank
        self._device = device
        self._peers = peers
        self._others = [member for member in world.members if member != me]
        self._prefix = hmac.new(key.encode(), b"pliant nccl wiring", hashlib.sha256).hexdigest()
        self._store = PeerStore(mailbox, world.number, self._send_to_all, lambda _key, _value: None)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._group: NcclGroup | None = None
        self._is_wired = False
        self._failure = ""  # why it could not be wired, or that it was broken off

    def run(self) -> NcclGroup:
        """Build the group and complete a barrier in it. Raises `GroupBroken`, at the latest soon after `break_off`."""
        if not self._others:
            return NcclGroup(self._world, self._rank, self._device, [])
        threading.Thread(target=self._build, name="pliant-nccl", daemon=True).start()
        if not self._done.wait(WIRING_S):
            self._break(self._could_not(f"no answer within {WIRING_S:g} s"))
        with self._lock:
            if self._group is not None and self._is_wired:
                return self._group
            raise GroupBroken(self._failure)

    def break_off(self) -> None:
        """End `run`, or break the group it built. Any thread may call it."""
        self._break(f"the wiring of generation {self._world.number} was broken off")

    def _break(self, why: str) -> None:
        with self._lock:
            self._failure = self._failure or why
            group = self._group
        self._store.close()
        self._done.set()
        if group is not None:
            group.break_off()

    def _build(self) -> None:
        try:
            self._connect()
        except Exception as error:  # why: whatever NCCL and torch raise, `run` must return and say it
            with self._lock:
                self._failure = self._failure or self._could_not(str(error))
        with self._lock:
            self._is_wired = not self._failure
            group = self._group
        self._done.set()
        if not self._is_wired and group is not None:
            group.dispose()

    def _could_not(self, why: str) -> str:
        return f"generation {self._world.number} could not be wired: {why}"

    def _connect(self) -> None:
        self._wait_until_all_are_ready()
        group = NcclGroup(self._world, self._rank, self._device, [self._make_process_group(), self._store])
        with self._lock:
            self._group = group  # now `break_off` reaches it
            is_broken = bool(self._failure)
        if is_broken:
            group.break_off()
        group.barrier()

    def _wait_until_all_are_ready(self) -> None:
        """Wait for every rank where the wait can be broken off."""
        self._store.set(f"{self._prefix}/ready/{self._rank}", b"")
        self._store.wait([f"{self._prefix}/ready/{rank}" for rank in range(len(self._world.members))])

    def _make_process_group(self) -> Any:
        from torch._C._distributed_c10d import ProcessGroupNCCL  # absent from builds without CUDA

        torch.cuda.set_device(self._device)
        settings.set_defaults(WATCHDOG)
        make: Any = ProcessGroupNCCL
        options = make.Options()
        options._timeout = NO_TIMEOUT
        return make(PrefixStore(self._prefix, self._store), self._rank, len(self._world.members), options)

    def _send_to_all(self, head: bytes) -> None:
        for member in self._others:
            self._peers.notify(self._world.number, member, "store", head)
