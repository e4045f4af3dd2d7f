"""Buffers that a forward pass changes, such as BatchNorm's running statistics (rule 14).

Every part starts from the buffers of the last boundary. Its change is recorded as a difference, weighted like the
gradients, and undone. The apply adds the sum over all parts of the step. So a step that is not applied leaves no trace,
and every member has the same buffers afterwards.

Most models have buffers that never change (masks, tables). Members learn in the first step which ones move, because the
differences are reduced together with one mark per buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from pliant.errors import BadInput


class Buffers:
    """A model's buffers over the parts and steps of a run."""

    def __init__(self, model: nn.Module) -> None:
        # By module and name: a forward pass may put another tensor in a buffer's place.
        self._places = {name: _place(model, name) for name, buffer in model.named_buffers() if _can_move(buffer)}
        self.moving: tuple[str, ...] | None = (
            None if self._places else ()
        )  # names of the buffers that change; None until known
        self._base: dict[str, Tensor] = {}
        self._staged: dict[str, Tensor] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        self._is_finite = False  # whether the base is known to be finite
        self.numel = 0
        """The number of values in the reduction: the differences, and a mark for each buffer."""
        self.rebase()

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The range of each buffer among those values. Its mark is the last one."""
        ends = list(accumulate(self._current(name).numel() + 1 for name in self._names))
        return list(zip([0, *ends[:-1]], ends, strict=True))

    def _current(self, name: str) -> Tensor:
        module, leaf = self._places[name]
        buffer = module._buffers[leaf]
        if buffer is None:
            raise BadInput(f"The model's buffer {name} was removed during training. Keep all buffers.")
        return buffer

    @property
    def _names(self) -> Sequence[str]:
        return tuple(self._places) if self.moving is None else self.moving

    def learn(self, moving: Sequence[str] | None) -> None:
        """Adopt the moving buffers of other members, together with their state."""
        self.moving = None if moving is None else tuple(moving)
        self.rebase()

    def rebase(self) -> None:
        """Make the current buffers the base of the next parts. Call it at a boundary."""
        if not self._places:
            return
        self._base = {name: self._current(name).detach().clone() for name in self._names}
        self._count()
        self._staged = {}
        self._is_finite = False
        self._versions = {name: self._version_of(name) for name in self._places if name not in self._base}

    def _count(self) -> None:
        self.numel = sum(self._current(name).numel() + 1 for name in self._names)

    def _version_of(self, name: str) -> tuple[int, int]:
        """Return a value that changes when code writes into a buffer or replaces it."""
        buffer = self._current(name)
        return id(buffer), buffer._version

    def at_boundary(self, name: str) -> Tensor | None:
        """Return a moving buffer as of the last boundary, for a donor; None for other buffers."""
        return self._base.get(name)

    def end_part(self, weight: float, *, drop: bool) -> None:
        """Record what a part's forward changed, and undo it. The changes of an idle part are dropped (rule 22)."""
        if not self._places:
            return
        with torch.no_grad():
            if not drop and self.moving is not None and not self._is_finite:
                self._require_finite(self._base)
                self._is_finite = True
            for name, base in self._base.items():
                buffer = self._current(name)
                if not drop and (self.moving is not None or not torch.equal(buffer, base)):
                    if self.moving is None:
                        self._require_finite({name: base})
                    moved = (buffer - base).to(torch.float32).mul_(weight)
                    self._staged[name] = self._staged[name] + moved if name in self._staged else moved
                buffer.copy_(base)
        for name, version in self._versions.items():
            if self._version_of(name) != version:
                raise BadInput(
                    f"The model's buffer {name} moved for the first time after the first step. Members learn in the "
                    "first step which buffers to reduce: change it in the first step, too."
                )

    def _require_finite(self, bases: Mapping[str, Tensor]) -> None:
        """Refuse buffers without a difference. All of them are compared at once: a GPU is waited for only once."""
        found = {name: base for name, base in bases.items() if base.is_floating_point()}
        if not found or bool(torch.stack([base.isfinite().all() for base in found.values()]).all()):
            return
        name = next(name for name, base in found.items() if not base.isfinite().all())
        raise BadInput(f"The model's buffer {name} changes and is not finite. Initialize it with a finite value.")

    def drop_staged(self) -> None:
        """Drop the recorded changes."""
        self._staged = {}

    def fill(self, room: Tensor) -> None:
        """Write the differences and marks into the reduction."""
        room.zero_()
        at = 0
        for name in self._names:
            size = self._current(name).numel()
            moved = self._staged.get(name)
            if moved is not None:
                room[at : at + size].copy_(moved.reshape(-1))
                room[at + size] = 1.0
            at += size + 1

    def apply(self, reduced: Tensor, weight: float, *, skip: bool = False) -> None:
        """Add the changes of all parts of the step unless it is skipped, and learn which buffers move."""
        if not self._places:
            return
        at = 0
        learnt = []
        with torch.no_grad():
            for name in self._names:
                buffer = self._current(name)
                size = buffer.numel()
                # Once it is known which ones move, each of them has a change in every step: no look at the GPU.
                if weight and (self.moving is not None or reduced[at + size] > 0):
                    learnt.append(name)
                    if skip:
                        at += size + 1
                        continue
                    mean = reduced[at : at + size].reshape(buffer.shape) / weight
                    moved = mean.to(buffer.dtype) if buffer.is_floating_point() else mean.round().to(buffer.dtype)
                    buffer.copy_(self._base[name] + moved.to(buffer.device))
                at += size + 1
        if self.moving is None and weight:
            self.moving = tuple(learnt)
            self._count()


def _place(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


def _can_move(buffer: Tensor) -> bool:
    return not buffer.is_complex() and buffer.dtype is not torch.bool and buffer.numel() > 0
