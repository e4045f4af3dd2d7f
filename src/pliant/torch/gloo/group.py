"""One process group per generation: wired in the background, broken from outside, disposed of beside training.

    wiring = Wiring(world, key, me, peers, mailbox)
    group = wiring.run()                # in a thread of its own, while the generation before goes on training
    pending = group.all_reduce(tensor)
    pending.wait()                      # or GroupBroken, once nothing touches the tensor any more
    group.break_off()                   # any thread: every operation returns, here and on every peer
    group.dispose()

gloo's own listeners know no credential. We narrow that: they live on the interface of `host`, their addresses go only
to members that proved to have the key, and a connection that no member calls its own breaks the wiring.
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import (  # as torch.distributed's, with types
    AllgatherOptions,
    AllToAllOptions,
    BroadcastOptions,
    ProcessGroupGloo,
    Work,
)

from pliant.core.model.names import MemberId
from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.torch.gloo.hung import IdleCheck, keep_forever
from pliant.torch.gloo.sockets import GroupSockets

LOOK = timedelta(seconds=0.02)  # how often a thread that waits for an operation looks around; signals wait as long
VANISHED_LOOK_S = 0.5
SILENT_S = 1.0  # after this long nothing is left to be read from a socket that was shut
GATHER_MAX = 1 << 24  # bytes from each rank


class GroupBroken(Exception):
    """The group is of no use any more. `peer` is whom it broke at, as far as that is known: a hint, never a proof."""

    def __init__(self, why: str, peer: MemberId | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.peer = peer


class Pending:
    """One operation in flight. Its tensor belongs to the operation until `wait` returned or raised (H16)."""

    def __init__(self, group: GlooGroup, work: Work | None) -> None:
        self._group = group
        self._work = work
        self._failure: GroupBroken | None = None

    def wait(self) -> None:
        """Return once the operation is done; raise `GroupBroken` once it has failed and nothing touches the tensor."""
        if self._failure is not None:
            raise self._failure
        if self._work is None:
            return
        try:
            if not self._group.wait_finished(self._work):
                raise RuntimeError("a connection ended in the middle of a message")
            self._work.wait()
        except RuntimeError as error:
            self._failure = self._group.fail(error)
            raise self._failure from error
        self._work = None  # not after a signal's handler raised: then it can be waited for again


class GlooGroup:
    """The ranks of one generation. A world of one has no process group: its sums are what it has."""

    def __init__(self, world: World, rank: int, fence: GroupSockets, owned: list[Any], threads: frozenset[int]) -> None:
        self.generation = world.number
        self.rank = rank
        self.size = len(world.members)
        self._members = world.members
        self._fence = fence
        self._owned = owned  # the process group, and what it uses without owning it; empty once disposed of
        self.threads = threads  # in which gloo runs this group's operations; none: they are not known yet
        self._works: list[Work] = []  # that may not have ended
        self._over = threading.Event()
        self._cause: tuple[str, MemberId | None] = ("", None)
        self._shut_at = 0.0
        self._stuck = False
        self._lock = threading.Lock()

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Start to sum `tensor` over all ranks, in place. Every rank calls the same operations in the same order."""
        return self._start(lambda gloo: gloo.allreduce([tensor]))

    def all_to_all(self, output: torch.Tensor, data: torch.Tensor, arriving: list[int], sending: list[int]) -> Pending:
        """Start to send each rank its stretch of `data`; theirs for us arrive in `output`, by rank, so many numbers."""
        options: Any = AllToAllOptions()
        return self._start(lambda gloo: gloo.alltoall_base(output, data, arriving, sending, options))

    def all_gather(self, output: torch.Tensor, data: torch.Tensor) -> Pending:
        """Start to send `data` to everybody; all of it arrives in `output`, by rank. As much from each."""
        return self._start(lambda gloo: gloo._allgather_base(output, data, AllgatherOptions()))

    def broadcast(self, tensor: torch.Tensor, rank: int) -> Pending:
        """Start to send this rank's `tensor` to everybody; it arrives in theirs."""
        options = BroadcastOptions()
        options.rootRank = rank
        return self._start(lambda gloo: gloo.broadcast([tensor], options))

    def gather(self, data: bytes) -> list[bytes]:
        """Everybody's bytes by rank, on every rank; they may differ in length. Waits."""
        if len(data) > GATHER_MAX:
            raise BadInput(f"At most {GATHER_MAX} bytes of each rank are gathered; these are {len(data)}.")
        if self.size == 1:
            self.all_reduce(torch.empty(0)).wait()
            return [data]
        counts = [int(count) for count in self._gather(torch.tensor([len(data)], dtype=torch.int64))]
        longest = max(counts)
        if longest > GATHER_MAX:
            raise self.fail(RuntimeError(f"a rank announced {longest} bytes to gather"))
        mine = torch.zeros(longest, dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = self._gather(mine)
        return [bytes(row[:count].numpy()) for row, count in zip(rows, counts, strict=True)]

    def barrier(self) -> None:
        """Wait until every rank has called it."""
        self._start(lambda gloo: gloo.barrier()).wait()

    def break_off(self) -> None:
        """From any thread, any number of times: every operation returns with an error, here and on every peer."""
        self._break(f"generation {self.generation}'s group was broken off", None)

    def _break(self, why: str, rank: int | None) -> None:
        with self._lock:
            if not self._over.is_set():
                self._cause = (why, None if rank is None else self._members[rank])
                self._shut_at = time.monotonic()
                self._over.set()
            if self._owned:
                self._fence.shut_down()

    def dispose(self) -> None:
        """Let go of the group, when no peer needs it any more (rule 9). Returns at once; operations left over fail."""
        self.break_off()
        with self._lock:
            owned, self._owned = self._owned, []
            works, self._works = self._works, []
        if owned:
            # The interpreter waits for this thread at its end: ended halfway, it would take the process with it.
            threading.Thread(target=self._destroy, args=(owned, works), name="pliant-dispose").start()

    def wait_finished(self, work: Work) -> bool:
        """Wait until `work` has ended, for as long as it takes; False once it is known that it never will (stuck.py).

        A peer's end that no operation noticed is noticed here.
        """
        stillness, look_at = IdleCheck(self.threads), time.monotonic() + VANISHED_LOOK_S
        while not work.is_completed():
            if self._stuck:  # and so is whatever else had not ended then
                return False
            with suppress(RuntimeError):  # time to look around; an error is raised again to whoever waits
                work.wait(LOOK)
            if work.is_completed():
                break  # as nearly always: looking around is for those that take long
            if not self._over.is_set() and (closed := self._fence.closed_rank()) is not None:
                self._break(f"a connection of generation {self.generation} has ended", closed)
            if not self._over.is_set() and time.monotonic() > look_at:
                look_at = time.monotonic() + VANISHED_LOOK_S
                if (silent := self._fence.unresponsive_rank()) is not None:
                    self._break(f"nothing comes back from {self._members[silent]}", silent)
            if self._over.is_set() and stillness.is_idle() and self._is_silent() and not work.is_completed():
                self._stuck = True
        return True

    def _is_silent(self) -> bool:
        """Whether nothing more can come: every connection's end was seen, or there was time enough to see it."""
        return self._fence.open_count() == 0 or time.monotonic() > self._shut_at + SILENT_S

    def _destroy(self, owned: list[Any], works: list[Work]) -> None:
        """gloo's destructor takes about 10 ms a peer, and waits for what is still running."""
        if not all(self.wait_finished(work) for work in works):
            keep_forever(*owned)
        works.clear()
        owned.clear()

    def fail(self, error: Exception) -> GroupBroken:
        """What to raise for an operation's error. Peers that are not this one's neighbours hear of it by this, too."""
        why = f"an operation of generation {self.generation} failed: {plain_message(error)}"
        self._break(why, self._fence.rank_in_error(str(error)))
        return GroupBroken(*self._cause)

    def _start(self, operation: _Operation) -> Pending:
        try:
            with self._lock:
                if self._over.is_set():
                    raise GroupBroken(*self._cause)
                if self.size == 1:
                    return Pending(self, None)
                work = operation(self._owned[0])
                self._works = [each for each in self._works if not each.is_completed()] + [work]
                return Pending(self, work)
        except RuntimeError as error:
            failure = self.fail(error)
        raise failure  # out of the handler: the error's traceback would keep the process group alive

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self._start(lambda gloo: gloo.allgather([rows], [mine])).wait()
        return rows


class _Operation(Protocol):
    def __call__(self, gloo: ProcessGroupGloo, /) -> Work: ...


def plain_message(error: Exception) -> str:
    """The part of gloo's messages that is about what happened."""
    return re.sub(r"\[/[^]]*\] ", "", str(error)).partition(". This is typically")[0]
