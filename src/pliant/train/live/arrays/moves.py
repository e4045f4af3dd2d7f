"""Values that a forward pass changes (rule 14): every part starts from those of the last boundary.

A part's change is recorded as a difference, weighted like the gradients, and undone. The apply adds the mean over all
parts of the step.
"""

from __future__ import annotations

import numpy as np

from pliant.train.live.arrays.frame import Array, Frame


class ArrayMoves:
    """The moving values of a frame over the parts and steps of a run."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.base: list[Array] = []
        self._staged: list[Array] | None = None
        self.rebase()
        self.numel = sum(array.size for array in self.base)

    def rebase(self) -> None:
        self.base = [np.array(array) for array in self._frame.moves()]
        self._staged = None

    def end_part(self, weight: float, *, drop: bool) -> None:
        if not self.base:
            return
        if not drop:
            moved = [
                (np.asarray(now, np.float64) - before) * weight
                for now, before in zip(self._frame.moves(), self.base, strict=True)
            ]
            if self._staged is None:
                self._staged = moved
            else:
                self._staged = [a + b for a, b in zip(self._staged, moved, strict=True)]
        self._frame.set_moves(self.base)

    def drop_staged(self) -> None:
        self._staged = None

    def fill(self, room: Array) -> None:
        """Write the differences into the reduction."""
        if self._staged is None:
            room[...] = 0
        else:
            np.concatenate([each.reshape(-1) for each in self._staged], out=room, casting="same_kind")

    def apply(self, reduced: Array, weight: float) -> None:
        """Add the mean of the changes of all parts of the step."""
        if not self.base or not weight:
            return
        found, at = [], 0
        for before in self.base:
            mean = reduced[at : at + before.size].reshape(before.shape).astype(np.float64) / weight
            at += before.size
            moved = mean if before.dtype.kind in "fV" else np.rint(mean)
            found.append((np.asarray(before, np.float64) + moved).astype(before.dtype))
        self._frame.set_moves(found)

    def install(self, arrays: list[Array]) -> None:
        """Replace the values by those of a received state."""
        self._frame.set_moves(arrays)
        self.rebase()
