"""The engine around a frame: sums, moving values, the state, and the rule for a gradient that is not finite."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping

import numpy as np

from pliant.core.data.grid import Grid
from pliant.train.live.arguments import IGNORE, RAISE
from pliant.train.live.arrays.frame import Frame, Gradients, aligned, sum_of_squares
from pliant.train.live.arrays.moves import ArrayMoves
from pliant.train.live.arrays.reducer import ArrayReducer, FloatingArrayReducer, SummedArrays
from pliant.train.live.arrays.state import ArrayState, StatefulObject, as_leaf, from_leaf
from pliant.train.live.arrays.tree_reducer import TreeArrayReducer
from pliant.train.live.errors import NonFiniteGradient
from pliant.train.live.options import VerifyOptions
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.own_model import OwnModel
from pliant.train.state.flat import State, flatten, restore
from pliant.train.state.transfer import ReceivedState

log = logging.getLogger(__name__)


class ArrayEngine:
    """A frame as the training loop uses it."""

    def __init__(
        self,
        frame: Frame,
        grid: Grid,
        options: VerifyOptions,
        logged: StepMetrics,
        others: Mapping[str, StatefulObject],
        *,
        clip_norm: float | None,
        nonfinite: str,
    ) -> None:
        self.frame = frame
        self.buffers = ArrayMoves(frame)
        self.state = ArrayState(frame, self.buffers, others)
        self.reducer: ArrayReducer
        if options.deterministic:
            self.reducer = TreeArrayReducer(frame, self.buffers, logged, grid, options.is_checked)
        else:
            self.reducer = FloatingArrayReducer(frame, self.buffers, logged)
        self.clip_norm = clip_norm
        self.own_model: OwnModel | None = None  # with model averaging
        self._nonfinite = nonfinite

    def seed(self, key: int) -> None:
        random.seed(key)
        np.random.seed(key & 0xFFFFFFFF)
        self.frame.seed(key)

    def can_step(self, step: int) -> bool:
        """Return whether to apply the global gradient, which is the same on every member."""
        reduced = self.reducer.offered
        assert reduced is not None
        if self._nonfinite == IGNORE:
            return True
        # A sum is finite only if every number is. It may overflow though every number is finite: then look closer.
        bad = [
            number
            for number, array in enumerate(self._gradients(reduced))
            if array is not None and not (math.isfinite(float(np.sum(array))) or np.isfinite(array).all())
        ]
        if not bad:
            return True
        if self._nonfinite == RAISE:
            raise NonFiniteGradient(step, f"array {bad[0]} of the gradient")
        log.warning("step %d was skipped: its gradient is not finite (first in array %d)", step, bad[0])
        return False

    def settle(self) -> None:
        """Do nothing: `can_step` knows the answer."""

    def _gradients(self, reduced: SummedArrays) -> Gradients:
        """Return the sums of the trained arrays; None for one without a gradient on any member."""
        if reduced.flat is None:
            return reduced.own_arrays
        views = self.reducer.layout.views(reduced.flat)
        return [view if mark else None for view, mark in zip(views, reduced.marks, strict=True)]

    def part_square(self) -> float:
        return sum_of_squares(self.reducer.part_arrays(), self.reducer.layout.dtype) / self.frame.loss_scale() ** 2

    def whole_square(self, reduced: SummedArrays) -> float:
        square = sum_of_squares(self._gradients(reduced), self.reducer.layout.dtype)
        return square * (_scale(reduced) / self.frame.loss_scale()) ** 2

    def apply(self, reduced: SummedArrays, *, skip: bool) -> None:
        self.reducer.offered = None
        if skip:
            return
        self.buffers.apply(reduced.moves, reduced.weight)
        scale = _scale(reduced)
        if self.clip_norm is not None:
            norm = math.sqrt(self.whole_square(reduced))
            scale *= min(1.0, self.clip_norm / (norm + 1e-6))
        if self.own_model is not None:
            means = [None if each is None else each * scale for each in self._gradients(reduced)]
            self.own_model.move(means, self.frame.rates())
        if reduced.flat is None and reduced.own is not None:
            self.frame.apply_own(reduced.own, scale)
        else:
            self.frame.apply(self._gradients(reduced), scale)

    def follow(self, received: ReceivedState) -> None:
        """A follower contributes zeros, whose number the frame knows."""

    def gradient_state(self, reduced: SummedArrays) -> State:
        value = {
            "flat": reduced.flat,
            "moves": reduced.moves,
            "marks": reduced.marks,
            "weight": reduced.weight,
            "means": reduced.means,
        }
        return flatten(value, as_leaf)

    def gradient_from(self, received: ReceivedState) -> SummedArrays:
        value = restore(received.tree, received.contents, from_leaf)
        flat = aligned(len(value["flat"]), value["flat"].dtype)
        flat[:] = value["flat"]
        return SummedArrays(flat, value["moves"], value["marks"], value["weight"], tuple(value["means"]))


def _scale(reduced: SummedArrays) -> float:
    """Return the factor from the sums of a step to its mean."""
    weight = reduced.own_weight if reduced.flat is None else 1.0
    return weight / reduced.weight if reduced.weight else 0.0
