"""The memory of Keras' callbacks, as a part of the state: a member that joins later decides as the others do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_PLAIN = (bool, int, float, str, type(None))


class CallbackMemory:
    """The plain values of all callbacks, and the sums of the current epoch's metrics."""

    def __init__(self) -> None:
        self._callbacks: Sequence[Any] = ()
        self._received: list[dict[str, Any]] = []
        self.sums: dict[str, float] = {}
        self.steps = 0
        self._held: dict[str, Any] | None = None

    def watch(self, callbacks: Sequence[Any]) -> None:
        """Keep what these remember. Values that arrived before are given to them."""
        self._callbacks = callbacks
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
        found = [_memory_of(callback) for callback in self._callbacks] if self._callbacks else self._received
        return {"sums": dict(self.sums), "steps": self.steps, "callbacks": found}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums, self.steps = dict(state["sums"]), state["steps"]
        self._received = state["callbacks"]
        self._held = None
        self._give()

    def _give(self) -> None:
        for callback, values in zip(self._callbacks, self._received, strict=False):
            if "monitor_op" not in values and getattr(callback, "monitor_op", self) is None:
                callback._set_monitor_op()  # as the sender's is. Keras changes the sign of `min_delta` with it
            vars(callback).update(values)
        if self._callbacks:
            self._received = []


def _memory_of(callback: Any) -> dict[str, Any]:
    """Return the attributes of a callback that can be sent: numbers, texts, and lists of arrays, such as weights."""
    found: dict[str, Any] = {}
    for name, value in vars(callback).items():
        plain = value.item() if isinstance(value, np.generic) else value
        is_list = isinstance(plain, list) and plain and all(isinstance(each, np.ndarray) for each in plain)
        if not name.startswith("_") and name != "params" and (isinstance(plain, _PLAIN) or is_list):
            found[name] = plain
    return found
