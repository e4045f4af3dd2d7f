"""Buffers that a forward pass moves, BatchNorm's running statistics above all (rule 14, H14).

Every part starts from the buffers of the last boundary. What it does to them is taken down as a difference, weighted
like its gradients, and undone; the sum over all parts of the step is added in the apply. So a step that is not applied
leaves no trace, and every member has the same buffers afterwards.

Most models have buffers that never move (masks, tables). Which ones do is learnt in the first step, on all members at
once, because the differences are reduced together with one mark per buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from pliant.errors import BadInput


class Buffers:
    """A model's buffers over the parts and steps of a run."""

    def __init__(self, model: nn.Module) -> None:
        # By module and name: a forward pass may put another tensor in a buffer's place.
        self._places = {name: _place(model, name) for name, buffer in model.named_buffers() if _can_move(buffer)}
        self.moving: tuple[str, ...] | None = None if self._places else ()  # None: not learnt yet
        self._base: dict[str, Tensor] = {}
        self._staged: dict[str, Tensor] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self.rebase()

    @property
    def numel(self) -> int:
        """How many numbers ride in the reduction: the differences, and a mark for each buffer."""
        return sum(self._now(name).numel() + 1 for name in self._names)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where each buffer's numbers are among those, its mark the last of them."""
        ends = list(accumulate(self._now(name).numel() + 1 for name in self._names))
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def _now(self, name: str) -> Tensor:
        module, leaf = self._places[name]
        buffer = module._buffers[leaf]
        if buffer is None:
            raise BadInput(f"The model's buffer {name} was there when training began and is gone.")
        return buffer

    @property
    def _names(self) -> Sequence[str]:
        return tuple(self._places) if self.moving is None else self.moving

    def learn(self, moving: Sequence[str] | None) -> None:
        """Take over what others have learnt, with their state."""
        self.moving = None if moving is None else tuple(moving)
        self.rebase()

    def rebase(self) -> None:
        """Call when the state is that of a boundary: parts start from here."""
        self._base = {name: self._now(name).detach().clone() for name in self._names}
        self._staged = {}
        self._versions = {name: self._seen(name) for name in self._places if name not in self._base}

    def _seen(self, name: str) -> tuple[int, int]:
        """What changes when somebody writes into a buffer, or puts another one in its place."""
        buffer = self._now(name)
        return id(buffer), buffer._version

    def at_boundary(self, name: str) -> Tensor | None:
        """What a donor gives of a buffer that is moving right now."""
        return self._base.get(name)

    def end_part(self, weight: float, *, drop: bool) -> None:
        """A part's forward is done: take down what it did and undo it; of an idle part nothing is kept (rule 22)."""
        with torch.no_grad():
            for name, base in self._base.items():
                buffer = self._now(name)
                if not drop and (self.moving is not None or not torch.equal(buffer, base)):
                    if not torch.isfinite(base).all():
                        raise BadInput(
                            f"The model's buffer {name} moves and is not finite: begin it with a finite value."
                        )
                    moved = (buffer - base).to(torch.float32).mul_(weight)
                    self._staged[name] = self._staged[name] + moved if name in self._staged else moved
                buffer.copy_(base)
        for name, version in self._versions.items():
            if self._seen(name) != version:
                raise BadInput(
                    f"The model's buffer {name} moved for the first time after the first step; buffers that move must "
                    "do so from the first step on, so that every member keeps the same."
                )

    def drop_staged(self) -> None:
        """What the kept parts did is not wanted any more."""
        self._staged = {}

    def fill(self, room: Tensor) -> None:
        """Put the differences and marks into the reduction."""
        room.zero_()
        at = 0
        for name in self._names:
            size = self._now(name).numel()
            moved = self._staged.get(name)
            if moved is not None:
                room[at : at + size].copy_(moved.reshape(-1))
                room[at + size] = 1.0
            at += size + 1

    def apply(self, reduced: Tensor, weight: float) -> None:
        """Add what all parts of the step did, and learn which buffers move."""
        at = 0
        learnt = []
        with torch.no_grad():
            for name in self._names:
                buffer = self._now(name)
                size = buffer.numel()
                if reduced[at + size] > 0 and weight:
                    learnt.append(name)
                    mean = reduced[at : at + size].reshape(buffer.shape) / weight
                    moved = mean.to(buffer.dtype) if buffer.is_floating_point() else mean.round().to(buffer.dtype)
                    buffer.copy_(self._base[name] + moved.to(buffer.device))
                at += size + 1
        if self.moving is None and weight:
            self.moving = tuple(learnt)


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def _can_move(buffer: Tensor) -> bool:
    return not buffer.is_complex() and buffer.dtype is not torch.bool and buffer.numel() > 0
