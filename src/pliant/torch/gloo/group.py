"""The gloo process group of one generation, which any thread can break and whose disposal does not delay training.

wiring = GlooWiring(world, key, member, peers, values)
group = wiring.run()                # in a background thread, while the generation before trains
pending = group.all_reduce(tensor)
pending.wait()                      # raises GroupBroken once nothing touches the tensor
group.break_off()                   # any thread: every operation returns, here and on every peer
group.dispose()
"""

from __future__ import annotations

import re
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import (  # torch.distributed's own; only here they have types
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
from pliant.torch.group.contract import GroupBroken

LOOK = timedelta(seconds=0.02)  # a waiting thread checks the connections, and handles signals, this often
VANISHED_LOOK_S = 0.5
SILENT_S = 1.0  # after this time nothing is left to be read from a socket that was shut down
GATHER_MAX = 1 << 24  # bytes from each rank


class Pending:
    """An operation in flight. Its tensor belongs to the operation until `wait` returned or raised."""

    def __init__(self, group: GlooGroup, work: Work | None) -> None:
        self._group = group
        self._work = work
        self._failure: GroupBroken | None = None

    def wait(self) -> None:
        """Wait until the operation is done. Raise `GroupBroken` if it failed, once nothing touches the tensor."""
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
        self._work = None  # kept if a signal handler raised, so that it can be waited for again


class GlooGroup:
    """The ranks of one generation. A world of one has no process group, and its operations change nothing."""

    def __init__(
        self, world: World, rank: int, sockets: GroupSockets, owned: list[Any], threads: frozenset[int]
    ) -> None:
        self.generation = world.number
        self.rank = rank
        self.size = len(world.members)
        self._members = world.members
        self._sockets = sockets
        self._owned = owned  # the process group and objects it uses without owning them; empty once disposed of
        self.threads = threads  # in which gloo runs this group's operations; empty until they are known
        self._works: list[Work] = []  # operations that may not have ended
        self._over = threading.Event()
        self._cause: tuple[str, MemberId | None] = ("", None)
        self._shut_at = 0.0
        self._stuck = False
        self._lock = threading.Lock()

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Start to sum `tensor` over all ranks, in place. All ranks must call the same operations in the same order."""
        return self._start(lambda gloo: gloo.allreduce([tensor]))

    def all_to_all(self, output: torch.Tensor, data: torch.Tensor, arriving: list[int], sending: list[int]) -> Pending:
        """Start to send each rank its stretch of `data`. Their stretches arrive in `output`, in order of rank."""
        options: Any = AllToAllOptions()
        return self._start(lambda gloo: gloo.alltoall_base(output, data, arriving, sending, options))

    def all_gather(self, output: torch.Tensor, data: torch.Tensor) -> Pending:
        """Start to send `data` to every rank. All of it arrives in `output`, in order of rank, equally long."""
        return self._start(lambda gloo: gloo._allgather_base(output, data, AllgatherOptions()))

    def broadcast(self, tensor: torch.Tensor, rank: int) -> Pending:
        """Start to send the `tensor` of `rank` to every rank, where it arrives in `tensor`."""
        options = BroadcastOptions()
        options.rootRank = rank
        return self._start(lambda gloo: gloo.broadcast([tensor], options))

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank. They may differ in length. Waits for all of them."""
        if len(data) > GATHER_MAX:
            raise BadInput(f"At most {GATHER_MAX} bytes of each rank can be gathered, got {len(data)}.")
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
        """End every operation with an error, here and on every peer. Any thread may call it, repeatedly."""
        self._break(f"generation {self.generation}'s group was broken off", None)

    def _break(self, why: str, rank: int | None) -> None:
        with self._lock:
            if not self._over.is_set():
                self._cause = (why, None if rank is None else self._members[rank])
                self._shut_at = time.monotonic()
                self._over.set()
            if self._owned:
                self._sockets.shut_down()

    def dispose(self) -> None:
        """Dispose of the group, when no peer needs it any more (rule 9). Returns at once; open operations fail."""
        self.break_off()
        with self._lock:
            owned, self._owned = self._owned, []
            works, self._works = self._works, []
        if owned:
            # The interpreter must wait for this thread: a destructor interrupted at its exit aborts the process.
            # A thread inherits `daemon` from the thread that starts it, so it is set here.
            threading.Thread(target=self._destroy, args=(owned, works), name="pliant-dispose", daemon=False).start()

    def wait_finished(self, work: Work) -> bool:
        """Wait until `work` has ended, without a time limit. Return False if it never will (see hung.py).

        Detects the end of a peer that no operation noticed.
        """
        stillness, look_at = IdleCheck(self.threads), time.monotonic() + VANISHED_LOOK_S
        while not work.is_completed():
            if self._stuck:  # then all other open operations hang as well
                return False
            with suppress(RuntimeError):  # a timeout, to check the connections; `Pending.wait` raises an error again
                work.wait(LOOK)
            if work.is_completed():
                break  # the usual case: only long operations get to the checks below
            if not self._over.is_set() and (closed := self._sockets.closed_rank()) is not None:
                self._break(f"a connection of generation {self.generation} was closed", closed)
            if not self._over.is_set() and time.monotonic() > look_at:
                look_at = time.monotonic() + VANISHED_LOOK_S
                if (silent := self._sockets.unresponsive_rank()) is not None:
                    self._break(f"no response from {self._members[silent]}", silent)
            if self._over.is_set() and stillness.is_idle() and self._is_silent() and not work.is_completed():
                self._stuck = True
        return True

    def _is_silent(self) -> bool:
        """Return whether no more data can arrive: gloo closed every connection, or had the time to do so."""
        return self._sockets.open_count() == 0 or time.monotonic() > self._shut_at + SILENT_S

    def _destroy(self, owned: list[Any], works: list[Work]) -> None:
        """Run gloo's destructor, which takes about 10 ms a peer and waits for running operations."""
        if not all(self.wait_finished(work) for work in works):
            keep_forever(*owned)
        works.clear()
        owned.clear()

    def fail(self, error: Exception) -> GroupBroken:
        """Break the group because of an operation's error, so that all peers notice. Return the exception to raise."""
        why = f"an operation of generation {self.generation} failed: {plain_message(error)}"
        self._break(why, self._sockets.rank_in_error(str(error)))
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
        raise failure  # outside the handler: the error's traceback would keep the process group alive

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        self._start(lambda gloo: gloo.allgather([rows], [mine])).wait()
        return rows


class _Operation(Protocol):
    def __call__(self, gloo: ProcessGroupGloo, /) -> Work: ...


def plain_message(error: Exception) -> str:
    """Return gloo's message without source locations and general advice."""
    return re.sub(r"\[/[^]]*\] ", "", str(error)).partition(". This is typically")[0]
