"""The calls of Keras' callbacks in `run.fit`, in the order of `model.fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras

from pliant.keras.callbacks import CallbackMemory
from pliant.keras.files import OnRankZero, require_usable, runs_on_rank_zero, show_model
from pliant.keras.frame import number

if TYPE_CHECKING:
    from pliant.keras.run import KerasRun

Validate = Callable[[], dict[str, float]]


class Fit:
    """One training to the end, with callbacks.

    What `on_epoch_begin` changes belongs to the step before it, as what `on_epoch_end` changes: it is called before
    that step's state is hashed, saved and sent. A member that receives a state within an epoch gets these changes with
    it. Its own call of `on_epoch_begin` is for values that are not part of the state.
    """

    def __init__(
        self,
        run: KerasRun,
        model: Any,
        memory: CallbackMemory,
        callbacks: Sequence[Any],
        validate: Validate,
        *,
        verbose: bool,
    ) -> None:
        self._run, self._model, self._memory, self._validate = run, model, memory, validate
        given = keras.tree.flatten(list(callbacks))
        require_usable(given)
        if not any(isinstance(each, keras.callbacks.History) for each in given):
            given.append(keras.callbacks.History())
        if verbose and not any(isinstance(each, keras.callbacks.ProgbarLogger) for each in given):
            given.append(keras.callbacks.ProgbarLogger())
        self._callbacks = given
        self._watched = [each for each in given if not runs_on_rank_zero(each)]
        self._rank: int | None = None  # unknown before the first item
        grid = run._loop.grid
        self._called = keras.callbacks.CallbackList(
            [OnRankZero(each, self._is_first) if runs_on_rank_zero(each) else each for each in given],
            model=model,
            epochs=grid.epochs,
            steps=grid.steps_per_epoch,
            verbose=int(verbose),
        )
        self._begun = 0  # the epoch whose `on_epoch_begin` was called last
        self._is_in_epoch = False
        self._is_stopping = False
        self._logs: dict[str, float] = {}

    def train(self) -> Any:
        """Train to the end, and return Keras' `History`."""
        run, model = self._run, self._model
        model.stop_training = False
        self._called.on_train_begin()
        self._memory.watch(self._watched)
        self._called.on_epoch_begin(0)
        for epoch in run.epochs():
            if epoch.number != self._begun:
                with run._undoing():
                    self._begin_epoch(epoch.number)
            for batch in epoch:
                self._train_on(batch)
        if self._is_in_epoch:
            self._end_epoch()  # another member, or the user's code, ended the job within it
        if number(model.optimizer.iterations):
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._called.on_train_end(self._logs)
        return model.history

    def _begin_epoch(self, epoch: int) -> None:
        self._begun = epoch
        self._called.on_epoch_begin(epoch)

    def _train_on(self, batch: Any) -> None:
        run, memory = self._run, self._memory
        step = run.step_number
        index = run._loop.grid.index_in_epoch(step)
        self._is_in_epoch = True
        self._take_rank()
        if self._is_stopping:
            self._is_stopping = self._model.stop_training = False  # that was after a step that is gone
        if memory.steps > index:
            memory.begin_epoch()  # the first item after a rollback into this epoch
        if not memory.is_held:
            memory.hold()  # what `on_train_batch_begin` changes belongs to this step
            self._called.on_train_batch_begin(index)
        if not run.step(batch):
            return
        memory.release()
        self._logs = memory.add(run.metrics)
        self._called.on_train_batch_end(index, dict(run.metrics))
        if run._loop.grid.ends_epoch(step) or step == run.total_steps or self._model.stop_training:
            self._end_epoch()

    def _is_first(self) -> bool:
        return self._rank == 0

    def _take_rank(self) -> None:
        if self._rank != self._run.rank:
            self._rank = self._run.rank
            for each in self._callbacks:
                show_model(each, self._model, writes=self._is_first())

    def _end_epoch(self) -> None:
        run = self._run
        self._is_in_epoch = False
        self._logs = {**self._logs, **self._validate()}
        self._memory.begin_epoch()
        self._called.on_epoch_end(self._begun, self._logs)
        if run.complete:
            return
        if self._model.stop_training:
            self._is_stopping = True
            run.finish("a callback stopped the training")
        elif run.step_number < run.total_steps:
            self._begin_epoch(self._begun + 1)
