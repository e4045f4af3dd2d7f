"""The memory of Keras' callbacks, as a part of the state: a member that joins later decides as the others do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, str, type(None))
_MONITOR = "monitor_op"  # a function that Keras chooses at the end of an epoch; sent as whether it is chosen
_NOT_SENT = ("params", _MONITOR)
_ARRAY_KINDS = "biufV"  # V: bfloat16
_DEPTH_MAX = 8
_OTHER = object()  # instead of a value that cannot be sent
_OBJECT = "state_dict"  # the only key of a callback that has `state_dict` and `load_state_dict`


class CallbackMemory:
    """The changes of callbacks since the training began, and the sums of the current epoch's metrics."""

    def __init__(self) -> None:
        self._callbacks: Sequence[Any] = ()
        self._began: list[dict[str, Any]] = []  # the values of each callback when it was first watched
        self._received: list[dict[str, Any]] = []
        self.sums: dict[str, float] = {}
        self.steps = 0
        self._held: dict[str, Any] | None = None

    def watch(self, callbacks: Sequence[Any]) -> None:
        """Keep what these remember from now on. Values that arrived before are given to them."""
        self._callbacks = callbacks
        self._began = [_plain_values(callback) for callback in callbacks]
        self._give()

    def add(self, metrics: Any) -> dict[str, float]:
        """Add a step's metrics, and return the means of the epoch so far."""
        self.steps += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        return {name: value / self.steps for name, value in self.sums.items()}

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def hold(self) -> None:
        """Send the values of now until `release`, also while callbacks change them: those of the last boundary."""
        self._held = self.state_dict()

    def release(self) -> None:
        self._held = None

    def begin_epoch(self) -> None:
        self.sums, self.steps = {}, 0

    def state_dict(self) -> dict[str, Any]:
        if self._held is not None:
            return self._held
        found = self._received
        if self._callbacks:
            found = [_changes(each, began) for each, began in zip(self._callbacks, self._began, strict=True)]
        return {"sums": dict(self.sums), "steps": self.steps, "callbacks": found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.steps = dict(state["sums"]), state["steps"]
        self._received = state["callbacks"]
        self._held = None
        self._give()

    def _give(self) -> None:
        for callback, began, values in zip(self._callbacks, self._began, self._received, strict=False):
            _set(callback, began, values)
        if self._callbacks:
            self._received = []


def _changes(callback: Any, began: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a callback that differ from those it began with."""
    if _has_state(callback):
        return {_OBJECT: callback.state_dict()}
    found = _plain_values(callback)
    return {name: value for name, value in found.items() if name not in began or not _same(value, began[name])}


def _set(callback: Any, began: dict[str, Any], values: dict[str, Any]) -> None:
    """Give a callback the changes of another member's. All other values become those that it began with."""
    if _has_state(callback):
        callback.load_state_dict(values[_OBJECT])
        return
    for name in _plain_values(callback).keys() - began.keys():
        delattr(callback, name)
    given = {name: _plain(value) for name, value in {**began, **values}.items()}
    if _MONITOR in given:
        is_chosen = given.pop(_MONITOR)
        if is_chosen and callback.monitor_op is None:
            callback._set_monitor_op()  # changes the sign of `min_delta`, which is replaced
        elif not is_chosen:
            callback.monitor_op = None
    vars(callback).update(given)


def _has_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")


def _plain_values(callback: Any) -> dict[str, Any]:
    """Return copies of the attributes of a callback that can be sent."""
    if _has_state(callback):
        return {}
    found = {name: _plain(value) for name, value in vars(callback).items() if name not in _NOT_SENT}
    if hasattr(callback, _MONITOR):
        found[_MONITOR] = callback.monitor_op is not None
    return {name: value for name, value in found.items() if value is not _OTHER}


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a copy of a value that can be sent: a number, text, bool, None or array, or a list, tuple or dict of them.

    Arrays are not copied.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN or (isinstance(value, np.ndarray) and value.dtype.kind in _ARRAY_KINDS):
        return value
    if type(value) not in (list, tuple, dict) or depth == _DEPTH_MAX:
        return _OTHER
    items = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    copies = [_plain(each, depth + 1) for each in items]
    if any(each is _OTHER for each in copies):
        return _OTHER
    if isinstance(value, dict):
        return dict(zip(copies[: len(value)], copies[len(value) :], strict=True))
    return type(value)(copies)


def _same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal. An array is equal to itself alone."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, np.ndarray):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
