"""Reduce gradients over the members: collect them during backward, and write the global mean to `.grad`.

The base class of two reductions. `floating` adds in floating point, as fast as possible. `deterministic` adds along a
fixed tree over the slots, so that the bits do not depend on which member computed which slot.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from pliant.core.data.grid import Grid
from pliant.core.member.signals import Shares
from pliant.errors import BadInput
from pliant.torch.group.contract import TensorGroup
from pliant.torch.reduce.buckets import Bucket, ReducedGradient, make_buckets
from pliant.torch.state import step_guard
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.tensor_hash import tensors_hash
from pliant.train.data.loader import MicroBatch
from pliant.train.group.contract import GroupBroken
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck

WIDE = (torch.float32, torch.bfloat16)  # a sum of single precision that is not huge is finite in these types
SURELY_FINITE = torch.finfo(torch.bfloat16).max / 2


class Reducer(ABC):
    """The gradients of one run. The training thread makes all calls; autograd calls the hooks."""

    def __init__(
        self,
        model: nn.Module,
        buffers: Buffers,
        logged: StepMetrics,
        device: torch.device,
        *,
        over_nccl: bool = False,
    ) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._buffers = buffers
        self._logged = logged
        self._device = device
        self._joins_kernels = step_guard.is_asynchronous(device)  # a launch costs more there than a second pass
        self._buckets: list[Bucket] = make_buckets(self.params, device, over_nccl=over_nccl)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.params}
        self._early = len(self._buckets)  # number of buckets that may be sent before backward is done
        self._fired = [0] * len(self.params)
        self._versions = [0] * len(self.params)
        self._factor = 0.0
        self._hashes: dict[int, int] = {}  # gradient hashes by slot, of slots that two members compute
        self._group: TensorGroup | None = None  # set while buckets may be sent during backward
        self._sent = 0
        self._written: list[tuple[nn.Parameter, Tensor | None, int]] = []  # with versions, if known to be finite
        self._overlaps: bool | None = None  # whether backward runs once per part; None until known
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._arrived, i))  # type: ignore[no-untyped-call]  # torch's own
            for i, p in enumerate(self.params)
        ]

    def set_grid(self, grid: Grid) -> None:
        """Reduce the steps of a grid whose batch has changed. Only a tree over the slots depends on it."""
        self._grid = grid

    def close(self) -> None:
        """Remove the hooks. Call it when training is over."""
        for hook in self._hooks:
            hook.remove()

    # ---------------------------------------------------------------------------------------------- a part

    def begin_part(  # subclasses use the other parameters
        self,
        part: MicroBatch,  # noqa: ARG002
        factor: float,
        group: TensorGroup | None,
        shares: Shares,  # noqa: ARG002
        *,
        idle: bool,  # noqa: ARG002
    ) -> None:
        """Prepare for a part. With a group it is this member's last part of the step: buckets are sent during backward.

        The gradients of an idle part are dropped.
        """
        self._fired = [0] * len(self.params)
        self._factor = factor
        self._group = group if self._overlaps and group is not None and group.size > 1 else None
        for bucket in self._buckets:
            bucket.waits_for = len(bucket.params)

    def weigh(self, factor: float) -> None:
        """Set the weight of this part, before backward, if it is not the number of its samples."""
        if not 0 <= factor < float("inf"):
            raise BadInput(
                f"The weight must be the number of samples or tokens that the loss is a mean over, got {factor}."
            )
        if any(self._fired):
            raise BadInput("An item has one weight. Call run.backward once for each item, with the sum of the losses.")
        self._factor = factor
        if not factor:
            self._group = None  # nothing of this part may be sent: NaN times zero is not zero

    def prepare(self, size: int) -> None:  # noqa: B027  # only a sum in floating point has so much memory at once
        """Allocate what the first reduction in a world of that size needs, so that no member waits for it then."""

    @property
    def weight(self) -> float:
        return self._factor

    @property
    def has_sent(self) -> bool:
        return self._sent > 0

    def _arrived(self, index: int, param: Tensor) -> None:
        self._fired[index] += 1
        if (grad := param.grad) is not None:  # read once: each access makes a Python object
            if grad.is_sparse:
                raise BadInput(
                    f"The gradient of {self._names[index]} is sparse, which cannot be reduced. Use sparse=False."
                )
            self._versions[index] = grad._version
        if self._group is None:
            return
        if self._fired[index] > 1:
            raise BadInput(
                f"backward reached {self._names[index]} twice in one item, after its gradient may have been sent. "
                "Add the losses and call backward once."
            )
        self._bucket_of[index].waits_for -= 1
        try:
            while self._sent < self._early and not self._buckets[self._sent].waits_for:
                self._send(self._group)
        except GroupBroken:
            self._group = None  # backward continues; `reduce` raises if it is called with the broken group

    def drop_part(self) -> None:
        """Drop the gradients of a part without weight (rule 22)."""
        self._fired = [0] * len(self.params)
        self._written = []
        for param in self.params:
            param.grad = None

    def keep_spot_hash(self, slot: int) -> None:
        """End a spot check of a slot: keep a hash of its gradients and nothing else."""
        if not self._factor:
            self.drop_part()  # like the owner of the slot
        self._hashes[slot] = self._gradients_hash()
        self.drop_part()

    def _gradients_hash(self) -> int:
        """Return the hash that two members must agree on if they computed the same slot."""
        found = [param.grad for param in self.params if param.grad is not None]
        marks = bytes(param.grad is not None for param in self.params)
        return tensors_hash(found, struct.pack("<d", self._factor) + marks)

    def _learn_overlap(self) -> None:
        if self._overlaps is None and any(self._fired):
            self._overlaps = max(self._fired) == 1

    def _require_untouched(self) -> None:
        """Refuse changed gradients: some may have been sent already, and others affect this member alone."""
        for index, (param, fired, version) in enumerate(zip(self.params, self._fired, self._versions, strict=True)):
            if fired and ((grad := param.grad) is None or grad._version != version):
                raise BadInput(
                    f"The gradient of {self._names[index]} was changed between backward and run.step(), where it is "
                    "only this member's share. Pass clip_norm=, or change it between run.reduce() and run.apply()."
                )
        for name, param in self._frozen:
            if param.grad is not None:
                raise BadInput(
                    f"{name} has a gradient, but had requires_grad=False when job.train was called. Set it before."
                )

    @contextmanager
    def _under_way(self, group: TensorGroup) -> Iterator[None]:
        """Ensure that all operations have returned at the end of the block, even after an exception."""
        try:
            yield
        except GroupBroken:
            raise
        except BaseException:  # why: after Ctrl-C, for example, this member leaves, and its operations must return now
            group.break_off()
            raise
        finally:
            self.abandon()

    # ------------------------------------------------------------------------------------------- by subclasses

    @abstractmethod
    def _send(self, group: TensorGroup) -> None:
        """Start the reduction of the next bucket."""

    @abstractmethod
    def end_part(self) -> None:
        """Add a part's gradients to the kept ones, after its backward."""

    @abstractmethod
    def drop_kept(self) -> None:
        """Drop the kept gradients: the step was applied, or the state was replaced."""

    @abstractmethod
    def reduce(
        self,
        group: TensorGroup,
        row: ControlRow,
        shares: Shares,
        checks: Sequence[SpotCheck] = (),
        *,
        follow: bool = False,
    ) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        """Send the remaining buckets and wait for all results. Raises GroupBroken once no operation uses the buffers.

        A member with `follow` contributes nothing (rule 15). `checks` are the same on every rank.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Wait until all operations have returned or failed. Only then may the buffers be used (rule 9)."""

    @abstractmethod
    def swap_buffers(self) -> None:
        """Switch to the other set of buffers after a step, whose sums stay until the next step but one."""

    # ------------------------------------------------------------------------------------------ the result

    def gradient_square(self) -> float:
        """Return the square of the norm of what `.grad` holds."""
        grads = [grad for param in self.params if (grad := param.grad) is not None]
        if not grads:
            return 0.0
        wide = [grad if grad.dtype in (torch.float32, torch.float64) else grad.float() for grad in grads]
        norms = torch.stack([norm.double() for norm in torch._foreach_norm(wide)])
        return norms.square().sum().item()

    def write_gradients(self, reduced: ReducedGradient) -> None:
        """Write the global mean to `.grad`. The sums stay, for a member that missed the step."""
        self._written = []
        if not reduced.buckets and reduced.alone == 1.0:
            return
        scale = 1.0 / reduced.weight if reduced.weight else 0.0
        with torch.no_grad():
            if not reduced.buckets:
                for param in self.params:
                    if param.grad is not None:
                        param.grad.mul_(reduced.alone)
                return
            views: Sequence[Sequence[Tensor]] = reduced.views
            views = views or [b.views(flat) for b, flat in zip(self._buckets, reduced.buckets, strict=True)]
            at_once: list[tuple[int, Tensor]] = []
            for bucket, places in zip(self._buckets, views, strict=True):
                if self._joins_kernels and bucket.is_plain and all(reduced.marks[index] for index in bucket.params):
                    at_once += zip(bucket.params, places, strict=True)
                else:
                    self._write_each(bucket, places, scale, reduced.marks)
            if at_once:
                self._write_at_once(at_once, scale)
        if reduced.largest * scale <= SURELY_FINITE:
            grads = [(param, param.grad) for param in self.params]
            self._written = [(param, grad, grad._version if grad is not None else 0) for param, grad in grads]

    @property
    def is_surely_finite(self) -> bool:
        """True if `.grad` still holds what `write_gradients` wrote, and that is finite."""
        return bool(self._written) and all(
            param.grad is grad and (grad is None or grad._version == version) for param, grad, version in self._written
        )

    def _write_at_once(self, places: Sequence[tuple[int, Tensor]], scale: float) -> None:
        """Write gradients with one call."""
        for index, _ in places:
            self.params[index].grad = None  # first, so that its memory is used again
        grads = torch._foreach_mul([view for _, view in places], scale)
        for (index, _), grad in zip(places, grads, strict=True):
            self.params[index].grad = grad

    def _write_each(self, bucket: Bucket, places: Sequence[Tensor], scale: float, marks: Sequence[float]) -> None:
        for index, view in zip(bucket.params, places, strict=True):
            param = self.params[index]
            if not marks[index]:
                param.grad = None
                continue
            if param.grad is None:
                # Same memory layout as the parameter, like autograd: a norm is summed in memory order.
                param.grad = torch.empty_like(param)
            torch.mul(view, scale, out=param.grad)
