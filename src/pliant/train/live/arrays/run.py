"""The run of a framework over arrays: what user code iterates over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from pliant.errors import BadInput
from pliant.train.data.loader import LoadedMicroBatch
from pliant.train.live.arrays.engine import ArrayEngine
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.evaluate import EvaluationResults, Totals
from pliant.train.live.loop import Loop
from pliant.train.live.run import LiveRun
from pliant.train.reduce.own_model import OwnModel
from pliant.train.state.transfer import copy_state


class ArrayRun(LiveRun):
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
    ) -> None:
        super().__init__(loop, results, send)
        self._engine = engine
        self._tools = tools

    def average_models(self, alpha: float = 0.1) -> OwnModel:
        """Train a model of this member's own, by synchronous model averaging. Call it once, before the loop.

        `alpha` is the share by which each step draws the own model to the mean of all. From an item of the loop to its
        `step` the model is this member's own, at all other times it is the mean, the centre. The result has the
        `distance` between the two.
        """
        if self._engine.clip_norm is not None:
            raise BadInput("run.average_models cannot be combined with clip_norm in job.train. Remove one of them.")
        frame = self._engine.frame
        frame.require_plain_sgd()
        own = self._engine.own_model = self._begin_averaging(alpha, len(frame.shapes))
        return own

    def _began(self, loaded: LoadedMicroBatch | None) -> None:
        if self._own is not None and loaded is not None:
            self._engine.frame.show(self._own.place(self._engine.frame.trained()))

    def _left_item(self) -> None:
        if self._own is not None:
            self._engine.frame.show(None)

    @contextmanager
    def _undoing(self) -> Iterator[None]:
        """Undo at the end of the block what it changed in the state. Use it before an item is computed."""
        state, frame = self._engine.state, self._engine.frame
        self._left_item()
        with self._loop.state_lock.kept(), self._tools.preserve(), frame.evaluating():
            self._loop.before_change()
            kept = copy_state(state.capture())
            yield
            state.install(kept)
        if self._own is not None:
            frame.show(self._own.place(frame.trained()))

    def _step(self, grads: Any, weight: float | None) -> bool:
        """End an item with its gradients. Return True if the step is applied, False if more items of it follow."""
        if weight is not None:
            self._loop.weigh(float(weight))
        reducer = self._engine.reducer
        reducer.take(grads)
        if self._own is not None:
            dtype = reducer.layout.dtype
            arrays = [None if grad is None else np.asarray(grad, dtype) for grad in reducer.part_arrays()]
            self._own.keep(arrays, self._loop.item_weight, first=self._loop.begins_step)
            self._engine.frame.show(None)
        if self._loop.finish_part() is None:
            return False
        self.apply()
        return True

    def evaluate(
        self,
        fn: Callable[[Any], Mapping[str, Any]],
        dataset: Any,
        *,
        batch_size: int,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> Totals:
        """Return the totals of `fn(batch)` over a data set. The members share the work: call it on all of them.

        `fn` returns a dictionary of sums, such as `{"correct": (logits.argmax(-1) == y).sum(), "count": len(y)}`. Call
        this after a step was applied.
        """
        rows = self._tools.rows_of(dataset) if collate_fn is None else None

        def read(samples: range, key: int) -> Any:
            self._tools.seed((key, key, key))
            self._engine.frame.seed(key)
            if rows is not None:
                return rows(np.arange(samples.start, samples.stop))
            return (collate_fn or self._tools.collate)([dataset[at] for at in samples])

        with self._tools.preserve():
            return self._evaluate(fn, dataset, batch_size, read, self._engine.frame.evaluating())
