"""Keras' callbacks that write files. Rank 0 writes them, and the decisions of all members stay equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from pliant.errors import BadInput
from pliant.keras.frame import number

CALLBACKS = keras.callbacks
_NAMES_ON_RANK_ZERO = ("CSVLogger", "ProgbarLogger", "RemoteMonitor", "TensorBoard")
_NAMES_REFUSED = ("BackupAndRestore", "OrbaxCheckpoint")


def require_usable(callbacks: Sequence[Any]) -> None:
    """Raise BadInput for a callback that saves and restores the training by itself."""
    for each in callbacks:
        if isinstance(each, _kinds(_NAMES_REFUSED)):
            raise BadInput(
                f"{type(each).__name__} saves or restores the training by itself, without the other members. Remove "
                "it: Pliant does this with pliant run --checkpoint-dir, or checkpoint_dir= of job.train. To keep "
                "models, use ModelCheckpoint."
            )


def runs_on_rank_zero(callback: Any) -> bool:
    """Return whether only rank 0 needs to call a callback of Keras, because it writes and decides nothing."""
    return isinstance(callback, _kinds(_NAMES_ON_RANK_ZERO))


def show_model(callback: Any, model: Any, *, writes: bool) -> None:
    """Give a ModelCheckpoint the model, or on a member that must not write one that is never saved."""
    if isinstance(callback, CALLBACKS.ModelCheckpoint):
        callback.set_model(model if writes else _Unsaved(model))


def _kinds(names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(CALLBACKS, name) for name in names if hasattr(CALLBACKS, name))


class OnRankZero(keras.callbacks.Callback):  # type: ignore[misc]  # keras has no types
    """Calls another callback while this member has rank 0. `is_first` tells that, once the rank is known."""

    def __init__(self, callback: Any, is_first: Callable[[], bool]) -> None:
        super().__init__()
        self._callback, self._is_first = callback, is_first
        self._epoch = 0
        self._is_open = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        if self._is_open and self._is_first():
            self._callback.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._opened():
            self._callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._opened():
            self._callback.on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._opened():
            self._callback.on_epoch_end(epoch, logs)

    def on_train_end(self, logs: Any = None) -> None:
        self._close(logs)

    def _opened(self) -> bool:
        """Return whether to call the callback. It begins when this member gets rank 0, and ends when it loses it."""
        if not self._is_first():
            self._close()
        elif not self._is_open:
            self._is_open = True
            self._begin()
        return self._is_open

    def _begin(self) -> None:
        callback = self._callback
        callback.set_params(self.params)
        callback.set_model(self.model)
        if isinstance(callback, CALLBACKS.CSVLogger):
            callback.append = callback.append or self._epoch > 0  # goes on with the rows of another member
        callback.on_train_begin()
        if isinstance(callback, CALLBACKS.TensorBoard):
            callback._global_train_batch = int(number(self.model.optimizer.iterations))
        callback.on_epoch_begin(self._epoch)

    def _close(self, logs: Any = None) -> None:
        if self._is_open:
            self._is_open = False
            self._callback.on_train_end(logs)


class _Unsaved:
    """A model whose `save` and `save_weights` do nothing."""

    def __init__(self, model: Any) -> None:
        vars(self)["_model"] = model

    def save(self, *_given: Any, **_named: Any) -> None:
        """Do nothing: rank 0 writes."""

    save_weights = save

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_model"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_model"], name, value)
