"""The run of a Keras training: `fit` with callbacks, or a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from pliant.errors import BadInput
from pliant.keras.callbacks import CallbackMemory
from pliant.keras.frame import KerasFrame, number
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
        grid, model = self._loop.grid, self._frame.model
        called = keras.callbacks.CallbackList(
            list(callbacks),
            add_history=True,
            add_progbar=verbose and self.rank == 0,
            model=model,
            epochs=grid.epochs,
            steps=grid.steps_per_epoch,
        )
        model.stop_training = False
        called.on_train_begin()
        self._memory.watch(callbacks)  # not Keras' own, of which one member has more than another
        logs: dict[str, float] = {}
        for epoch in self.epochs():
            called.on_epoch_begin(epoch.number)
            for batch in epoch:
                index = self._loop.grid.index_in_epoch(self.step_number)
                if self._memory.steps > index:
                    self._memory.begin_epoch()  # the first item after a rollback into this epoch
                called.on_train_batch_begin(index)
                if self.step(batch):
                    logs = self._memory.add(self.metrics)
                    called.on_train_batch_end(index, dict(self.metrics))
            if validation_data is not None:
                logs = {**logs, **self._validate(validation_data, validation_batch_size)}
            self._memory.begin_epoch()
            called.on_epoch_end(epoch.number, logs)
            if model.stop_training and not self.complete:
                self.finish("a callback stopped the training")
        called.on_train_end(logs)
        return model.history

    def _validate(self, data: Any, batch_size: int) -> dict[str, float]:
        totals = self.evaluate(self._frame.evaluate, as_dataset(data), batch_size=batch_size)
        count = totals.pop("count")
        return {f"val_{name}": value / count for name, value in totals.items()}
