"""The run of a Keras training: `fit` with callbacks, or a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pliant.errors import BadInput
from pliant.keras.callbacks import CallbackMemory
from pliant.keras.fit import Fit
from pliant.keras.frame import KerasFrame, number, require_default, require_samples
from pliant.train.live.arrays.engine import ArrayEngine
from pliant.train.live.arrays.job import as_dataset
from pliant.train.live.arrays.run import ArrayRun
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.evaluate import EvaluationResults
from pliant.train.live.loop import Loop


class KerasRun(ArrayRun):
    """A training run on this member. Call `fit`, or iterate over it and call `step` once for each item.

    `rank`, `size` and `generation` describe the world of this member. They change between two items only.
    """

    def __init__(
        self,
        loop: Loop,
        engine: ArrayEngine,
        tools: ArrayTools,
        results: EvaluationResults,
        send: Callable[[bytes], None],
        frame: KerasFrame,
        memory: CallbackMemory,
    ) -> None:
        super().__init__(loop, engine, tools, results, send)
        self._frame = frame
        self._memory = memory

    def step(self, batch: Any) -> bool:
        """Train on an item: gradients, reduction and, if the step is complete, the optimizer. Then it returns True."""
        logs, grads = self._frame.part(batch)
        self.log(**{name: number(value) for name, value in logs.items()})
        return self._step(grads, None)

    def fit(
        self,
        *,
        callbacks: Sequence[Any] = (),
        validation_data: Any = None,
        validation_batch_size: int = 32,
        verbose: bool = False,
    ) -> Any:
        """Train to the end, and return a `keras.callbacks.History`.

        The callbacks are Keras' own. They are called on every member, with the same values. `validation_data` is
        evaluated after each epoch, shared among the members.
        """
        if self._loop.step:
            raise BadInput("run.fit was called within a loop over the run. Call it instead of the loop.")
        if validation_data is not None:
            require_default(self._frame.model, "test_step")
            require_samples(validation_data)

        def validate() -> dict[str, float]:
            return {} if validation_data is None else self._validate(validation_data, validation_batch_size)

        return Fit(self, self._frame.model, self._memory, callbacks, validate, verbose=verbose).train()

    def _validate(self, data: Any, batch_size: int) -> dict[str, float]:
        totals = self.evaluate(self._frame.evaluate, as_dataset(data), batch_size=batch_size)
        count = totals.pop("count")
        return {f"val_{name}": value / count for name, value in totals.items()}
