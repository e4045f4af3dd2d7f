"""The samples of the JAX and Keras jobs, and an average of their weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from chaos.worker import SAMPLES, ReadLog

FEATURES, HIDDEN, CLASSES = 16, 32, 4


class Readings:
    """Points in a few noisy clouds. Each read adds noise, and is written to a file of the process at once."""

    def __init__(self) -> None:
        chance = np.random.Generator(np.random.PCG64(0))
        centres = chance.normal(size=(CLASSES, FEATURES))
        self.labels = chance.integers(CLASSES, size=SAMPLES).astype(np.int32)
        noise = chance.normal(size=(SAMPLES, FEATURES))
        self.points = (0.7 * centres[self.labels] + noise).astype(np.float32)
        self._log = ReadLog()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, sample: int) -> tuple[Any, Any]:
        self._log.note(sample)
        noise = np.random.standard_normal(FEATURES).astype(np.float32)
        return self.points[sample] + 0.1 * noise, self.labels[sample]


class Average:
    """An exponential moving average of the weights, as users write one."""

    def __init__(self, weights: Sequence[Any]) -> None:
        self.weights = [np.array(weight) for weight in weights]
        self.updates = 0

    def update(self, weights: Sequence[Any]) -> None:
        self.updates += 1
        for mine, weight in zip(self.weights, weights, strict=True):
            mine[...] += np.float32(0.01) * (np.asarray(weight) - mine)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": [weight.copy() for weight in self.weights], "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for mine, weight in zip(self.weights, state["weights"], strict=True):
            mine[...] = weight
