"""The NCCL process group of one generation, which any thread can break.

A broken collective of NCCL does not fail: its kernel ends early, and the tensor holds garbage. So an operation counts
as done only if the group was not broken off when its kernel had ended. `break_off` marks the group first and aborts the
communicator afterwards, so no garbage can be taken for a result. It never waits: a thread of its own aborts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import (  # torch.distributed's own; only here they have types
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
    Work,
)

from pliant.core.model.world import World
from pliant.errors import BadInput
from pliant.train.group.contract import GroupBroken

GATHER_MAX = 1 << 24  # bytes from each rank
SPINS = 200  # looks without a pause, while a short operation ends
PAUSE_S = 50e-6

Copies = tuple[tuple[Tensor, Tensor], ...]  # pairs of a tensor in host memory and its copy on the GPU


class NcclPending:
    """An operation in flight on NCCL's own stream."""

    def __init__(self, group: NcclGroup, work: Work | None, copies: Copies = ()) -> None:
        self._group = group
        self._work = work
        self._copies = copies

    def wait(self) -> None:
        """Wait until the operation is done. Raise `GroupBroken` if it failed, once nothing touches its tensors."""
        if self._work is None:
            return
        self._group.wait_finished(self._work)
        self._work = None  # kept if a signal handler raised, so that it can be waited for again
        for host, copy in self._copies:
            host.copy_(copy)


class NcclGroup:
    """The ranks of one generation, each with one GPU."""

    def __init__(self, world: World, rank: int, device: torch.device, owned: list[Any]) -> None:
        self.generation = world.number
        self.rank = rank
        self.size = len(world.members)
        self._device = device
        self._owned = owned  # the process group and its store; empty once disposed of, and in a world of one
        self._over = threading.Event()
        self._why = ""
        self._lock = threading.Lock()  # held for moments only, never during a call of torch
        self._native = threading.Lock()  # held while torch uses the communicator, or aborts it
        self._aborting: threading.Thread | None = None

    # ------------------------------------------------------------------------------------------- operations

    def all_reduce(self, tensor: Tensor) -> None:
        pending = self.start_all_reduce(tensor)
        try:
            pending.wait()
        except GroupBroken:
            raise
        except BaseException:  # why: after Ctrl-C, for example, no kernel may touch the tensor any more
            self.break_off()
            with suppress(GroupBroken):
                pending.wait()
            raise

    def start_all_reduce(self, tensor: Tensor) -> NcclPending:
        copies = self._on_device(tensor)
        options: Any = _asynchronous(AllreduceOptions())
        return self._start(lambda nccl: nccl.allreduce([_of(copies, tensor)], options), copies)

    def start_all_to_all(self, output: Tensor, data: Tensor, arriving: list[int], sending: list[int]) -> NcclPending:
        options: Any = _asynchronous(AllToAllOptions())
        into, given = self._on_device(output), self._on_device(data)
        return self._start(
            lambda nccl: nccl.alltoall_base(_of(into, output), _of(given, data), arriving, sending, options), into
        )

    def start_all_gather(self, output: Tensor, data: Tensor) -> NcclPending:
        options: Any = _asynchronous(AllgatherOptions())
        into, given = self._on_device(output), self._on_device(data)
        return self._start(lambda nccl: nccl._allgather_base(_of(into, output), _of(given, data), options), into)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in order of rank. They may differ in length. Waits for all of them."""
        if len(data) > GATHER_MAX:
            raise BadInput(f"At most {GATHER_MAX} bytes of each rank can be gathered, got {len(data)}.")
        if self.size == 1:
            self._require_whole()
            return [data]
        counts = torch.zeros(self.size, dtype=torch.int64)
        self.start_all_gather(counts, torch.tensor([len(data)], dtype=torch.int64)).wait()
        longest = int(counts.max())
        if longest > GATHER_MAX:
            self._break(f"a rank of generation {self.generation} announced {longest} bytes to gather")
            raise GroupBroken(self._why)
        mine = torch.zeros(max(longest, 1), dtype=torch.uint8)
        if data:
            mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        rows = torch.zeros(self.size * len(mine), dtype=torch.uint8)
        self.start_all_gather(rows, mine).wait()
        table = rows.view(self.size, -1).numpy()
        return [bytes(row[:count]) for row, count in zip(table, counts.tolist(), strict=True)]

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1, device=self._device))

    # ------------------------------------------------------------------------------------------------ the end

    def break_off(self) -> None:
        """End every operation with an error here. Peers end theirs when the coordinator seals the generation."""
        self._break(f"generation {self.generation}'s group was broken off")

    def dispose(self) -> None:
        self.break_off()
        with self._lock:
            owned, self._owned = self._owned, []
            aborting = self._aborting
        if owned:
            # The interpreter must wait for this thread: a destructor interrupted at its exit aborts the process.
            threading.Thread(target=_destroy, args=(owned, aborting), name="pliant-dispose", daemon=False).start()

    def wait_finished(self, work: Work) -> None:
        """Wait until no kernel of `work` runs, without a time limit. Raise GroupBroken if the group is broken."""
        spins = 0
        try:
            while not self._is_finished(work):
                spins += 1
                time.sleep(0.0 if spins < SPINS else PAUSE_S)  # for signals and other threads, not for a condition
        except RuntimeError as error:
            self._fail(error)
        if self._over.is_set():
            self._wait_for_abort()
            raise GroupBroken(self._why)

    def _is_finished(self, work: Work) -> bool:
        # torch asks the communicator with the interpreter's lock held, and would wait there for the end of an abort.
        with self._native:
            if self._over.is_set():
                return True
            if not work.is_completed():
                return False
            work.wait()  # returns at once; raises if NCCL reported an error, which also counts as completed
            return True

    def _wait_for_abort(self) -> None:
        """Return once the communicator is aborted: no kernel of it runs any more."""
        with self._lock:
            aborting = self._aborting
        if aborting is not None:
            aborting.join()

    def _abort(self, nccl: Any) -> None:
        with self._native:
            nccl.abort()

    def _require_whole(self) -> None:
        if self._over.is_set():
            raise GroupBroken(self._why)

    def _start(self, operation: Callable[[Any], Work], copies: Copies) -> NcclPending:
        try:
            with self._native:
                nccl = self._communicator()
                return NcclPending(self, operation(nccl) if nccl is not None else None, copies)
        except RuntimeError as error:
            self._fail(error)
        self._wait_for_abort()
        raise GroupBroken(self._why)  # outside the handler: the error's traceback would keep the process group alive

    def _communicator(self) -> Any:
        """Return torch's process group, or None in a world of one. Raise `GroupBroken` if the group is broken."""
        with self._lock:
            self._require_whole()
            return self._owned[0] if self._owned else None

    def _fail(self, error: RuntimeError) -> None:
        self._break(f"an operation of generation {self.generation} failed: {str(error).partition(chr(10))[0]}")

    def _break(self, why: str) -> None:
        with self._lock:
            if self._over.is_set():
                return
            self._why = why
            self._over.set()
            if self._owned:
                # A daemon: while NCCL connects, the abort cannot begin, and must not keep the process from its exit.
                # `dispose` waits for it otherwise.
                abort = partial(self._abort, self._owned[0])
                self._aborting = threading.Thread(target=abort, name="pliant-abort", daemon=True)
                self._aborting.start()

    # ---------------------------------------------------------------------------------------------- host memory

    def _on_device(self, tensor: Tensor) -> Copies:
        """Return a copy on the GPU of a tensor in host memory: small data of the reductions lies there."""
        return () if tensor.is_cuda else ((tensor, tensor.to(self._device)),)


def _of(copies: Copies, tensor: Tensor) -> Tensor:
    return copies[0][1] if copies else tensor


def _asynchronous(options: Any) -> Any:
    """Run the operation on NCCL's own stream, beside the rest of backward."""
    options.asyncOp = True
    return options


def _destroy(owned: list[Any], aborting: threading.Thread | None) -> None:
    if aborting is not None:
        aborting.join()
    # The destructor waits for torch's watchdog with the interpreter's lock held, which that thread may need.
    # `shutdown` waits for it without the lock, so that nothing is left to wait for.
    owned[0].shutdown()
    owned.clear()
