"""The run of a framework over arrays: what user code iterates over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pliant.train.live.arrays.engine import ArrayEngine
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.evaluate import EvaluationResults, Totals
from pliant.train.live.loop import Loop
from pliant.train.live.run import LiveRun


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

    def _step(self, grads: Any, weight: float | None) -> bool:
        """End an item with its gradients. Return True if the step is applied, False if more items of it follow."""
        if weight is not None:
            self._loop.weigh(float(weight))
        self._engine.reducer.take(grads)
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
