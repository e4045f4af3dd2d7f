"""The run of a JAX training: the object that user code iterates over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from pliant.errors import BadInput
from pliant.jax.frame import JaxFrame
from pliant.train.live.arrays.engine import ArrayEngine
from pliant.train.live.arrays.run import ArrayRun
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.evaluate import EvaluationResults
from pliant.train.live.loop import Loop


class JaxRun(ArrayRun):
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
        frame: JaxFrame,
    ) -> None:
        super().__init__(loop, engine, tools, results, send)
        self._frame = frame

    @property
    def params(self) -> Any:
        """The parameters. `step` replaces them: read them anew for every item.

        With `average_models` they are this member's own model from an item to its `step`, else the centre.
        """
        return self._frame.params if self._frame.shown is None else self._frame.shown

    @property
    def opt_state(self) -> Any:
        """The optimizer's state. `step` replaces it."""
        return self._frame.opt_state

    @property
    def extra(self) -> Any:
        """The moving values, such as BatchNorm's statistics, as of the last applied step."""
        return self._frame.extra

    @property
    def key(self) -> Any:
        """A random key of this item: of the seed, the step and the slot, whichever member computes it."""
        return jax.random.key(self._frame.key)

    def step(self, grads: Any, *, weight: float | None = None, moves: Any = None) -> bool:
        """End an item with its gradients. Return True if the step is applied, False if more items of it follow.

        `weight` is the number that the loss is a mean over, if that is not the number of samples. `moves` are the
        moving values that the forward pass returned.
        """
        if moves is not None:
            self._frame.take_moves(moves)
        elif self._frame.extra is not None:
            raise BadInput("job.train was called with moves=. Pass what the forward pass made of run.extra as moves=.")
        return self._step(grads, weight)
