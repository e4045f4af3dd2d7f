"""Reduction in floating point: an all-reduce for each bucket, during backward.

Gradients are in three kinds of memory, so that a step that fails half-way can be completed (rules 9, 14):

    p.grad   this part's gradient, as autograd computed it
    kept     the weighted sum of the earlier parts of this step, if there are several, in the memory of the first one
    wire     the memory of the collective. There are two sets in turn, because a member that missed the last step needs
             its sum (rule 13)

A bucket is filled and sent as soon as the last part's backward has computed all its gradients. The last bucket carries
what must not arrive before everything else: buffers, marks of the parameters with a gradient, and the control words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor, nn

from pliant.core.member.signals import Shares
from pliant.torch.group.contract import TensorGroup
from pliant.torch.reduce.base import WIDE, Reducer
from pliant.torch.reduce.buckets import Bucket, ReducedGradient, multiply_into
from pliant.torch.state.buffers import Buffers
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import GroupBroken, PendingOperation
from pliant.train.reduce.control_row import ROW_FLOATS, ControlRow, Floats, pack, rows_room, unpack, weighted_means
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck


class _BucketMemory:
    """A bucket's memory: two wires."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.wires: list[Tensor] = []
        self.wire_views: list[list[Tensor]] = []

    def make_wires(self, extra: int) -> None:
        """Allocate the wires for the gradients and `extra` numbers, with the sums of the last steps."""
        old, numel = self.wires, self._bucket.numel
        self.wires = [self._bucket.zeros(extra) for _ in range(2)]
        for before, now in zip(old, self.wires, strict=False):
            now[:numel].copy_(before[:numel])
        self.wire_views = [self._bucket.views(wire) for wire in self.wires]


class FloatingReducer(Reducer):
    """Reduction in floating point."""

    def __init__(
        self,
        model: nn.Module,
        buffers: Buffers,
        logged: StepMetrics,
        device: torch.device,
        *,
        over_nccl: bool = False,
    ) -> None:
        super().__init__(model, buffers, logged, device, over_nccl=over_nccl)
        self._early = len(self._buckets) - 1
        self._memory = [_BucketMemory(bucket) for bucket in self._buckets]
        self._can_check_sums = all(param.dtype in WIDE for param in self.params)
        self._tail = 0  # numbers of the last wire in use after the gradients
        self._tail_room = -1  # numbers that are allocated for them
        self._turn = 0
        self._kept: dict[int, Tensor] = {}  # sums, by parameter
        self._pending: list[PendingOperation] = []
        self._no_buffers = torch.zeros(0, device=device)

    def begin_part(
        self, part: MicroBatch, factor: float, group: TensorGroup | None, shares: Shares, *, idle: bool
    ) -> None:
        super().begin_part(part, factor, group, shares, idle=idle)
        if self._group is not None:
            self._allocate_wires(self._group.size)

    def end_part(self) -> None:
        self._learn_overlap()
        with torch.no_grad():
            for bucket in self._buckets:
                for index in bucket.params:
                    grad = self.params[index].grad
                    if grad is None:
                        continue
                    wide = grad.to(bucket.dtype)  # half precision would overflow
                    if index in self._kept:
                        self._kept[index].add_(wide, alpha=self._factor)
                    else:
                        self._kept[index] = wide.mul_(self._factor)  # in its own memory: a copy would need as much
                    self.params[index].grad = None

    def drop_kept(self) -> None:
        self._kept.clear()

    # ------------------------------------------------------------------------------------------ the reduction

    def prepare(self, size: int) -> None:
        if size > 1:
            self._allocate_wires(size)
            for memory in self._memory:
                for wire in memory.wires:
                    wire.zero_()  # the system gives memory when it is written to

    def reduce(  # a floating-point sum does not depend on the shares
        self,
        group: TensorGroup,
        row: ControlRow,
        shares: Shares,  # noqa: ARG002
        checks: Sequence[SpotCheck] = (),  # noqa: ARG002
        *,
        follow: bool = False,
    ) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        self._learn_overlap()
        if not follow:
            self._require_untouched()
        if group.size == 1:
            return (row,), self._alone(row)
        self._allocate_wires(group.size)
        with self._under_way(group):
            while self._sent < self._early:
                self._send(group, empty=follow)
            numel, wire = self._buckets[-1].numel, self._last_wire()
            self._fill(len(self._buckets) - 1, empty=follow)
            self._fill_tail(wire[numel:], group, row, empty=follow)
            group.all_reduce(wire)  # in this thread, and after the buckets that were sent during backward
            while self._pending:
                self._pending[0].wait()
                self._pending.pop(0)
        return self._read(group)

    def _sums(self) -> list[Tensor]:
        wires = [memory.wires[self._turn] for memory in self._memory]
        return [wire[: bucket.numel] for bucket, wire in zip(self._buckets, wires, strict=True)]

    def abandon(self) -> None:
        pending, self._pending = self._pending, []
        for each in pending:
            with suppress(GroupBroken):
                each.wait()
        self._sent = 0
        self._group = None

    def _send(self, group: TensorGroup, *, empty: bool = False) -> None:
        self._fill(self._sent, empty=empty)
        self._pending.append(group.start_all_reduce(self._memory[self._sent].wires[self._turn]))
        self._sent += 1

    def _fill(self, number: int, *, empty: bool) -> None:
        bucket, memory = self._buckets[number], self._memory[number]
        if empty:
            memory.wires[self._turn][: bucket.numel].zero_()
            return
        with torch.no_grad():
            at_once = self._joins_kernels or bucket.has_small_params
            if at_once and not self._kept and self._fill_at_once(bucket, memory):
                return
            for index, view in zip(bucket.params, memory.wire_views[self._turn], strict=True):
                grad, kept = self.params[index].grad, self._kept.get(index)
                if grad is not None and kept is not None:
                    torch.add(kept, grad.to(kept.dtype), alpha=self._factor, out=view)
                elif grad is not None:
                    multiply_into(grad, self._factor, view)
                elif kept is not None:
                    view.copy_(kept)
                else:
                    view.zero_()

    def _fill_at_once(self, bucket: Bucket, memory: _BucketMemory) -> bool:
        """Fill a bucket with two kernels, if every parameter has a gradient. The bits are those of one at a time."""
        grads = [grad for index in bucket.params if (grad := self.params[index].grad) is not None]
        if not grads or len(grads) < len(bucket.params):
            return False
        torch._foreach_copy_(memory.wire_views[self._turn], grads)  # widens half precision
        memory.wires[self._turn][: bucket.numel].mul_(self._factor)
        return True

    def _fill_tail(self, tail: Tensor, group: TensorGroup, row: ControlRow, *, empty: bool) -> None:
        count = self._buffers.numel
        if empty:
            tail.zero_()
        else:
            self._buffers.fill(tail[:count])
        words = np.zeros(len(self.params) + group.size * ROW_FLOATS, dtype=np.float32)
        if not empty:
            words[: len(self.params)] = [p.grad is not None or i in self._kept for i, p in enumerate(self.params)]
        at = len(self.params) + group.rank * ROW_FLOATS
        words[at : at + ROW_FLOATS] = pack(row)
        if self._device.type == "cuda":
            # Pinned: the copy waits for backward on the GPU, and not the CPU.
            tail[count:].copy_(torch.from_numpy(words).pin_memory(), non_blocking=True)
        else:
            tail[count:].copy_(torch.from_numpy(words))

    def _allocate_wires(self, size: int) -> None:
        """Allocate the wires, the last one with room for larger worlds: fresh memory takes longer than a reduction."""
        self._tail = self._buffers.numel + len(self.params) + size * ROW_FLOATS
        for memory in self._memory[:-1]:
            if not memory.wires:
                memory.make_wires(0)
        if self._tail > self._tail_room:
            self._tail_room = self._tail + (rows_room(size) - size) * ROW_FLOATS
            self._memory[-1].make_wires(self._tail_room)

    def _last_wire(self) -> Tensor:
        return self._memory[-1].wires[self._turn][: self._buckets[-1].numel + self._tail]

    def _fetch(self, words: Tensor) -> tuple[Floats, float]:
        """Return the words, and the largest absolute value of the sums: NaN where it takes more than this one copy.

        It is not queued before the reduction is over. A donor copies its state on the same stream (ADR 0057), and the
        reduction may be waiting for the joiner that needs the copy.
        """
        if not (self._joins_kernels and self._can_check_sums):
            return words.cpu().numpy(), math.nan
        largest = torch._foreach_norm([flat for flat in self._sums() if flat.numel()], math.inf)
        found = torch.cat((words, torch.stack(largest))).cpu().numpy()
        return found[: len(words)], float(found[len(words) :].max())

    def _read(self, group: TensorGroup) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        tail = self._last_wire()[self._buckets[-1].numel :]
        count = self._buffers.numel
        words, largest = self._fetch(tail[count:])
        rows = unpack(words[len(self.params) :], group.size)
        marks = words[: len(self.params)].tolist()
        weight = sum(row.weight for row in rows)
        views = [memory.wire_views[self._turn] for memory in self._memory]
        means = weighted_means(rows)
        return rows, ReducedGradient(
            self._sums(), tail[:count], marks, weight, means=means, views=views, largest=largest
        )

    def _alone(self, row: ControlRow) -> ReducedGradient:
        """Reduce in a world of one: the gradients stay in `.grad`, and a single part's are the mean already."""
        room = self._no_buffers
        if count := self._buffers.numel:
            room = torch.zeros(count, device=self._device)
            self._buffers.fill(room)
        means = weighted_means((row,))
        if not self._kept:
            alone = self._factor / row.weight if row.weight else 0.0
            return ReducedGradient([], room, [], row.weight, alone=alone, means=means)
        self.end_part()
        scale = 1.0 / row.weight if row.weight else 0.0
        for index, kept in self._kept.items():  # the others have no gradient
            self.params[index].grad = kept.mul_(scale).to(self.params[index].dtype)
        return ReducedGradient([], room, [], row.weight, means=means)

    def swap_buffers(self) -> None:
        self._turn ^= 1
