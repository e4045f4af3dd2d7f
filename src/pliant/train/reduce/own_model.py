"""A member's own model in synchronous model averaging: an offset from the centre, in arrays of any framework."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pliant.core.policy.averaging import next_offset
from pliant.errors import BadInput
from pliant.train.live.arguments import is_number


class OwnModel:
    """The offsets of the trained arrays from the centre, and this member's own gradients in the current step.

    Arrays are those of the framework, in a fixed order. None stands for an array without a gradient.
    """

    def __init__(self, alpha: float, count: int) -> None:
        if not (is_number(alpha) and 0.0 < alpha <= 1.0):
            raise BadInput(f"alpha must be a number above 0 and at most 1, got {alpha!r}.")
        self._alpha = float(alpha)
        self._offsets: list[Any] = [0.0] * count
        self._sums: dict[int, Any] = {}  # of this member's gradients in the step, by weight
        self._weight = 0.0

    @property
    def distance(self) -> float:
        """The distance of this member's own model from the centre."""
        moved = [offset for offset in self._offsets if type(offset) is not float]  # a scalar of numpy is an array here
        return math.sqrt(math.fsum(float((offset * offset).sum()) for offset in moved))

    def place(self, centre: Sequence[Any]) -> list[Any]:
        """Return the arrays of this member's own model."""
        return [array + offset for array, offset in zip(centre, self._offsets, strict=True)]

    def keep(self, grads: Sequence[Any | None], weight: float, *, first: bool) -> None:
        """Add the gradients of an item to those of the step; `first` begins the step. One without weight adds none."""
        if first:
            self._sums, self._weight = {}, 0.0
        if not weight:
            return
        self._weight += weight
        for index, grad in enumerate(grads):
            if grad is not None:
                added = grad * weight
                self._sums[index] = self._sums[index] + added if index in self._sums else added

    def move(self, means: Sequence[Any | None], rates: Sequence[float]) -> None:
        """Move with the step that the centre takes by these mean gradients. Without an item, move like the centre."""
        known = [0.0 if mean is None else mean for mean in means]
        for index, (mean, rate) in enumerate(zip(known, rates, strict=True)):
            own = self._sums.get(index, 0.0) / self._weight if self._weight else mean
            self._offsets[index] = next_offset(self._offsets[index], own, mean, rate=rate, alpha=self._alpha)
        self._sums, self._weight = {}, 0.0
