"""The run of a TensorFlow loop: the object that user code iterates over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pliant.tensorflow.frame import TensorflowFrame
from pliant.train.live.arrays.engine import ArrayEngine
from pliant.train.live.arrays.run import ArrayRun
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.evaluate import EvaluationResults
from pliant.train.live.loop import Loop


class TensorflowRun(ArrayRun):
    """A training run on this member. Iterate over it, and call `step` once for each item.

    `rank`, `size` and `generation` describe the world of this member. They change between two items only.
    """

    def __init__(
        self,
        loop: Loop,
        engine: ArrayEngine,
        tools: ArrayTools,
        results: EvaluationResults,
        send: Callable[[bytes], None],
        frame: TensorflowFrame,
    ) -> None:
        super().__init__(loop, engine, tools, results, send)
        self._frame = frame

    @property
    def key(self) -> tuple[int, int]:
        """Two numbers for `tf.random.stateless_*`: of the seed, the step and the slot, whichever member computes it."""
        return self._frame.key

    def step(self, grads: Sequence[Any], *, weight: float | None = None) -> bool:
        """End an item with its gradients. Return True if the step is applied, False if more items of it follow.

        `weight` is the number that the loss is a mean over, if that is not the number of samples.
        """
        return self._step(grads, weight)
