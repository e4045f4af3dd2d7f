"""Gradients on their way: kept locally, reduced in buckets beside backward, given back as the global mean.

Three places, so that a step that fails half-way can be finished (rules 9, 14, H13):

    p.grad   this part's gradient, as autograd made it
    kept     the weighted sum of the parts before it in this step, where there are several
    wire     what the collective works on; two sets in turn, because the sum of the last applied step is what a member
             that missed it needs (rule 13)

A bucket is filled and sent as soon as the last part's backward has brought all its gradients. The last one carries what
must not arrive before everything else: buffers, marks of the parameters that got a gradient, and the control words.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from pliant.errors import BadInput
from pliant.torch.buffers import Buffers
from pliant.torch.group import Group, GroupBroken, Pending
from pliant.train.cells import PIECES, Row, pack, unpack

FIRST_BYTES = 1 << 20  # the first bucket is small, so that the wire is busy early
BUCKET_BYTES = 25 << 20


@dataclass
class Reduced:
    """A step's global gradient before it is divided: sums by bucket, of the buffers' moves, and the whole weight.

    No buckets: this is a world of one, and `.grad` has it, to be multiplied by `alone`.
    """

    buckets: list[Tensor]
    buffers: Tensor
    marks: list[float]  # how many members had a gradient for each parameter
    weight: float
    alone: float = 1.0
    logged: dict[str, float] = field(default_factory=dict)
    views: list[list[Tensor]] = field(default_factory=list)  # each parameter's place in the buckets, where it is known


class Bucket:
    """Parameters of one type whose gradients travel together."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.params: list[int] = []
        self.shapes: list[torch.Size] = []
        self.numel = 0
        self.waits_for = 0
        self.wires: list[Tensor] = []
        self.wire_views: list[list[Tensor]] = []
        self.kept: list[Tensor] = []

    def add(self, index: int, param: nn.Parameter) -> None:
        self.params.append(index)
        self.shapes.append(param.shape)
        self.numel += param.numel()

    def views(self, flat: Tensor) -> list[Tensor]:
        """What is each parameter's in a flat tensor."""
        found, at = [], 0
        for shape in self.shapes:
            found.append(flat[at : at + shape.numel()].view(shape))
            at += shape.numel()
        return found

    def make_wires(self, extra: int) -> None:
        """Room for the gradients and what rides along; what the last step left stays."""
        old = self.wires
        self.wires = [torch.zeros(self.numel + extra, dtype=self.dtype, device=self.device) for _ in range(2)]
        for before, now in zip(old, self.wires, strict=False):
            now[: self.numel].copy_(before[: self.numel])
        self.wire_views = [self.views(wire) for wire in self.wires]

    def make_kept(self) -> list[Tensor]:
        if not self.kept:
            self.kept = self.views(torch.zeros(self.numel, dtype=self.dtype, device=self.device))
        return self.kept


class Reducer:
    """One run's gradients. The training thread calls everything; autograd calls the hooks."""

    def __init__(self, model: nn.Module, buffers: Buffers, device: torch.device) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._buffers = buffers
        self._device = device
        self._buckets = self._cut()
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.params}
        self._extra = -1
        self._turn = 0
        self._kept: set[int] = set()  # parameters with something in `kept`
        self._fired = [0] * len(self.params)
        self._versions = [0] * len(self.params)
        self._factor = 0.0
        self._group: Group | None = None  # set while buckets may leave early
        self._sent = 0
        self._pending: list[Pending] = []
        self._overlaps: bool | None = None  # None: whether backward runs once per part is not known yet
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]  # torch's own
            for i, p in enumerate(self.params)
        ]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _cut(self) -> list[Bucket]:
        """Buckets in the order in which backward brings gradients: from the model's end to its beginning."""
        buckets: list[Bucket] = []
        filling: dict[torch.dtype, Bucket] = {}
        for index in reversed(range(len(self.params))):
            param = self.params[index]
            dtype = torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype  # sums are larger
            bucket = filling.get(dtype)
            limit = FIRST_BYTES if bucket is not None and bucket is buckets[0] else BUCKET_BYTES
            if bucket is None or bucket.numel * dtype.itemsize >= limit:
                bucket = filling[dtype] = Bucket(dtype, self._device)
                buckets.append(bucket)
            bucket.add(index, param)
        last = filling.get(torch.float32) or Bucket(torch.float32, self._device)
        return [*(bucket for bucket in buckets if bucket is not last), last]

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        return lambda param: self._arrived(index, param)

    # ---------------------------------------------------------------------------------------------- a part

    def begin_part(self, factor: float, group: Group | None) -> None:
        """Before a part is yielded. With a group, this is the step's last part here: buckets may leave early."""
        self._fired = [0] * len(self.params)
        self._factor = factor
        self._group = group if self._overlaps and group is not None and group.size > 1 else None
        for bucket in self._buckets:
            bucket.waits_for = len(bucket.params)
        if self._group is not None:
            self._make_room(self._group.size)

    def weigh(self, factor: float) -> None:
        """The weight of this part, if it is not the number of its samples. Before its backward."""
        if not 0 <= factor < float("inf"):
            raise BadInput(f"A part's weight says over how many samples or tokens its loss is a mean, not {factor}.")
        if any(self._fired):
            raise BadInput(
                "run.backward gives a part one weight: call it once for each part, with the sum of the losses."
            )
        self._factor = factor
        if not factor:
            self._group = None  # nothing of this part may be sent: what is not a number times zero is not zero

    @property
    def weight(self) -> float:
        return self._factor

    def _arrived(self, index: int, param: Tensor) -> None:
        self._fired[index] += 1
        if param.grad is not None and param.grad.is_sparse:
            raise BadInput(
                f"The gradient of {self._names[index]} is sparse, which cannot be reduced: use sparse=False."
            )
        if param.grad is not None:
            self._versions[index] = param.grad._version
        if self._group is None:
            return
        if self._fired[index] > 1:
            raise BadInput(
                f"backward reached {self._names[index]} twice in one part, after its gradient may have been sent: "
                "add the losses up and call backward once."
            )
        self._bucket_of[index].waits_for -= 1
        try:
            while self._sent < len(self._buckets) - 1 and not self._buckets[self._sent].waits_for:
                self._send(self._group)
        except GroupBroken:
            self._group = None  # backward goes on; `reduce` meets the broken group, if it is called at all

    def end_part(self) -> None:
        """After a part's backward, unless it is the last: its gradients join those kept."""
        self._learn_overlap()
        with torch.no_grad():
            for bucket in self._buckets:
                for index, kept in zip(bucket.params, bucket.make_kept(), strict=True):
                    grad = self.params[index].grad
                    if grad is None:
                        continue
                    if index in self._kept:
                        kept.add_(grad.to(kept.dtype), alpha=self._factor)
                    else:
                        _multiplied(grad, self._factor, kept)
                        self._kept.add(index)
                    self.params[index].grad = None

    def drop_part(self) -> None:
        """Of an idle part nothing is kept (rule 22)."""
        self._fired = [0] * len(self.params)
        for param in self.params:
            param.grad = None

    def drop_kept(self) -> None:
        """What was kept is of no use: the step was applied, or the state is another one."""
        self._kept.clear()

    def _learn_overlap(self) -> None:
        if self._overlaps is None and any(self._fired):
            self._overlaps = max(self._fired) == 1

    # ------------------------------------------------------------------------------------------ the reduction

    def reduce(self, group: Group, row: Row, *, follow: bool = False) -> tuple[tuple[Row, ...], Reduced]:
        """Send what is left and wait for all of it. GroupBroken: nothing came of it, and the buffers are ours again.

        A member that follows has nothing to add (rule 15).
        """
        self._learn_overlap()
        if not follow:
            self._require_untouched()
        if group.size == 1:
            return (row,), self._alone(row)
        self._make_room(group.size)
        try:
            while self._sent < len(self._buckets) - 1:
                self._send(group, empty=follow)
            last = self._buckets[-1]
            self._fill(last, empty=follow)
            self._fill_tail(last.wires[self._turn][last.numel :], group, row, empty=follow)
            self._pending.append(group.all_reduce(last.wires[self._turn]))
            while self._pending:
                self._pending[0].wait()
                self._pending.pop(0)
        except GroupBroken:
            raise
        except BaseException:  # why: Ctrl-C, say: this member leaves, and its operations must return now
            group.break_off()
            raise
        finally:
            self.abandon()
        return self._read(group)

    def _require_untouched(self) -> None:
        """Refuse what would be used in part, or on this member alone, depending on what was sent already."""
        for index, param in enumerate(self.params):
            if self._fired[index] and (param.grad is None or param.grad._version != self._versions[index]):
                raise BadInput(
                    f"The gradient of {self._names[index]} was changed between backward and run.step(), where it is "
                    "only this member's part: pass clip_norm=, or change it between run.reduce() and run.apply()."
                )
        for name, param in self._frozen:
            if param.grad is not None:
                raise BadInput(f"{name} got a gradient, but had requires_grad=False when job.train was called.")

    def abandon(self) -> None:
        """Wait until whatever was sent has returned, one way or the other: only then are the buffers ours (rule 9)."""
        pending, self._pending = self._pending, []
        for each in pending:
            with suppress(GroupBroken):
                each.wait()
        self._sent = 0
        self._group = None

    def _send(self, group: Group, *, empty: bool = False) -> None:
        bucket = self._buckets[self._sent]
        self._fill(bucket, empty=empty)
        self._pending.append(group.all_reduce(bucket.wires[self._turn]))
        self._sent += 1

    def _fill(self, bucket: Bucket, *, empty: bool) -> None:
        wire = bucket.wires[self._turn]
        if empty:
            wire[: bucket.numel].zero_()
            return
        with torch.no_grad():
            for at, (index, view) in enumerate(zip(bucket.params, bucket.wire_views[self._turn], strict=True)):
                grad = self.params[index].grad
                kept = bucket.kept[at] if index in self._kept else None
                if grad is not None and kept is not None:
                    torch.add(kept, grad.to(kept.dtype), alpha=self._factor, out=view)
                elif grad is not None:
                    _multiplied(grad, self._factor, view)
                elif kept is not None:
                    view.copy_(kept)
                else:
                    view.zero_()

    def _fill_tail(self, tail: Tensor, group: Group, row: Row, *, empty: bool) -> None:
        count = self._buffers.numel
        if empty:
            tail.zero_()
        else:
            self._buffers.fill(tail[:count])
        words = np.zeros(len(self.params) + group.size * PIECES, dtype=np.float32)
        if not empty:
            words[: len(self.params)] = [p.grad is not None or i in self._kept for i, p in enumerate(self.params)]
        at = len(self.params) + group.rank * PIECES
        words[at : at + PIECES] = pack(row)
        tail[count:].copy_(torch.from_numpy(words))

    def _make_room(self, size: int) -> None:
        extra = self._buffers.numel + len(self.params) + size * PIECES
        for bucket in self._buckets[:-1]:
            if not bucket.wires:
                bucket.make_wires(0)
        if extra != self._extra:
            self._buckets[-1].make_wires(extra)
            self._extra = extra

    def _read(self, group: Group) -> tuple[tuple[Row, ...], Reduced]:
        last = self._buckets[-1]
        tail = last.wires[self._turn][last.numel :]
        count = self._buffers.numel
        words = tail[count:].cpu().numpy()
        rows = unpack(words[len(self.params) :], group.size)
        sums = [bucket.wires[self._turn][: bucket.numel] for bucket in self._buckets]
        marks = words[: len(self.params)].tolist()
        weight = sum(row.weight for row in rows)
        views = [bucket.wire_views[self._turn] for bucket in self._buckets]
        return rows, Reduced(sums, tail[:count], marks, weight, views=views)

    def _alone(self, row: Row) -> Reduced:
        """A world of one: the gradients stay where they are, and with a single part they are the mean already."""
        room = torch.zeros(self._buffers.numel, device=self._device)
        self._buffers.fill(room)
        if not self._kept:
            return Reduced([], room, [], row.weight, alone=self._factor / row.weight if row.weight else 0.0)
        self.end_part()
        scale = 1.0 / row.weight if row.weight else 0.0
        for bucket in self._buckets:
            for index, kept in zip(bucket.params, bucket.kept, strict=True):
                param = self.params[index]
                param.grad = (kept * scale).to(param.dtype) if index in self._kept else None
        return Reduced([], room, [], row.weight)

    # -------------------------------------------------------------------------------------- giving it back

    def give(self, reduced: Reduced) -> None:
        """Put the global mean into `.grad`. The sums stay as they are, for a member that missed the step."""
        scale = 1.0 / reduced.weight if reduced.weight else 0.0
        with torch.no_grad():
            if not reduced.buckets:
                for param in self.params:
                    if param.grad is not None and reduced.alone != 1.0:
                        param.grad.mul_(reduced.alone)
                return
            views = reduced.views or [b.views(flat) for b, flat in zip(self._buckets, reduced.buckets, strict=True)]
            for bucket, places in zip(self._buckets, views, strict=True):
                for index, view in zip(bucket.params, places, strict=True):
                    param = self.params[index]
                    if not reduced.marks[index]:
                        param.grad = None
                    elif param.grad is None:
                        param.grad = (view * scale).to(param.dtype)
                    else:
                        torch.mul(view, scale, out=param.grad)

    def next_turn(self) -> None:
        """The step is applied: its sums stay until the one after the next."""
        self._turn ^= 1


def _multiplied(grad: Tensor, factor: float, out: Tensor) -> None:
    """Half precision is widened first: a weighted sum does not fit into it."""
    if grad.dtype == out.dtype:
        torch.mul(grad, factor, out=out)
    else:
        out.copy_(grad).mul_(factor)
