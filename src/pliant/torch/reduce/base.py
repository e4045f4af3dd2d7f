"""Gradients on their way: watched as backward brings them, reduced over the members, given back as the global mean.

What two kinds of reduction have in common: `summed` adds up in floating point, as fast as can be; `treed` adds up along
a fixed tree over the slots, so that the bits do not depend on who computed what.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pliant.core.member.signals import Shares
from pliant.errors import BadInput
from pliant.torch.gloo.group import GlooGroup, GroupBroken
from pliant.torch.reduce.buckets import Bucket, ReducedGradient, make_buckets
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.tensor_hash import tensors_hash
from pliant.train.data.loader import MicroBatch
from pliant.train.reduce.control_row import ControlRow
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck


class Reducer(ABC):
    """One run's gradients. The training thread calls everything; autograd calls the hooks."""

    def __init__(self, model: nn.Module, buffers: Buffers, logged: StepMetrics, device: torch.device) -> None:
        self.params = [p for p in model.parameters() if p.requires_grad]
        self._frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        self._names = [name for name, p in model.named_parameters() if p.requires_grad]
        self._buffers = buffers
        self._logged = logged
        self._device = device
        self._buckets: list[Bucket] = make_buckets(self.params, device)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.params}
        self._early = len(self._buckets)  # how many buckets may leave before backward is done
        self._fired = [0] * len(self.params)
        self._versions = [0] * len(self.params)
        self._factor = 0.0
        self._hashes: dict[int, int] = {}  # of the gradients of slots that are computed twice, here or elsewhere
        self._group: GlooGroup | None = None  # set while buckets may leave early
        self._sent = 0
        self._overlaps: bool | None = None  # None: whether backward runs once per part is not known yet
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]  # torch's own
            for i, p in enumerate(self.params)
        ]

    def close(self) -> None:
        """Call when training is over, however it ended."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        return lambda param: self._arrived(index, param)

    # ---------------------------------------------------------------------------------------------- a part

    def begin_part(  # some of it is for one kind alone
        self,
        part: MicroBatch,  # noqa: ARG002
        factor: float,
        group: GlooGroup | None,
        shares: Shares,  # noqa: ARG002
        *,
        idle: bool,  # noqa: ARG002
    ) -> None:
        """Before a part is yielded. With a group, this is the step's last part here: buckets may leave early.

        An idle one's gradients are not kept.
        """
        self._fired = [0] * len(self.params)
        self._factor = factor
        self._group = group if self._overlaps and group is not None and group.size > 1 else None
        for bucket in self._buckets:
            bucket.waits_for = len(bucket.params)

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
            while self._sent < self._early and not self._buckets[self._sent].waits_for:
                self._send(self._group)
        except GroupBroken:
            self._group = None  # backward goes on; `reduce` meets the broken group, if it is called at all

    def drop_part(self) -> None:
        """Of a part without weight nothing is kept (rule 22)."""
        self._fired = [0] * len(self.params)
        for param in self.params:
            param.grad = None

    def keep_spot_hash(self, slot: int) -> None:
        """The part was a spot check of this slot: a hash of its gradients is kept, and nothing else."""
        if not self._factor:
            self.drop_part()  # as its owner does
        self._hashes[slot] = self._gradients_hash()
        self.drop_part()

    def _gradients_hash(self) -> int:
        """What two members that computed the same slot must agree on."""
        found = [param.grad for param in self.params if param.grad is not None]
        marks = bytes(param.grad is not None for param in self.params)
        return tensors_hash(found, struct.pack("<d", self._factor) + marks)

    def _learn_overlap(self) -> None:
        if self._overlaps is None and any(self._fired):
            self._overlaps = max(self._fired) == 1

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

    @contextmanager
    def _under_way(self, group: GlooGroup) -> Iterator[None]:
        """Whatever happens inside, everything that was sent has returned afterwards."""
        try:
            yield
        except GroupBroken:
            raise
        except BaseException:  # why: Ctrl-C, say: this member leaves, and its operations must return now
            group.break_off()
            raise
        finally:
            self.abandon()

    # ------------------------------------------------------------------------------------------- by each kind

    @abstractmethod
    def _send(self, group: GlooGroup) -> None:
        """Start the reduction of the next bucket."""

    @abstractmethod
    def end_part(self) -> None:
        """After a part's backward: its gradients join those kept."""

    @abstractmethod
    def drop_kept(self) -> None:
        """What was kept is of no use: the step was applied, or the state is another one."""

    @abstractmethod
    def reduce(
        self,
        group: GlooGroup,
        row: ControlRow,
        shares: Shares,
        checks: Sequence[SpotCheck] = (),
        *,
        follow: bool = False,
    ) -> tuple[tuple[ControlRow, ...], ReducedGradient]:
        """Send what is left and wait for all of it. GroupBroken: nothing came of it, and the buffers are ours again.

        A member that follows has nothing to add (rule 15). `checks` are the same on every rank.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Wait until whatever was sent has returned, one way or the other: only then are the buffers ours (rule 9)."""

    @abstractmethod
    def swap_buffers(self) -> None:
        """The step is applied: its sums stay until the one after the next."""

    # -------------------------------------------------------------------------------------- giving it back

    def write_gradients(self, reduced: ReducedGradient) -> None:
        """Put the global mean into `.grad`. The sums stay as they are, for a member that missed the step."""
        scale = 1.0 / reduced.weight if reduced.weight else 0.0
        with torch.no_grad():
            if not reduced.buckets:
                for param in self.params:
                    if param.grad is not None and reduced.alone != 1.0:
                        param.grad.mul_(reduced.alone)
                return
            views: Sequence[Sequence[Tensor]] = reduced.views
            views = views or [b.views(flat) for b, flat in zip(self._buckets, reduced.buckets, strict=True)]
            for bucket, places in zip(self._buckets, views, strict=True):
                for index, view in zip(bucket.params, places, strict=True):
                    param = self.params[index]
                    if not reduced.marks[index]:
                        param.grad = None
                    else:
                        if param.grad is None:
                            # Laid out like the parameter, as autograd does: a norm is summed in the order of memory.
                            param.grad = torch.empty_like(param)
                        torch.mul(view, scale, out=param.grad)
