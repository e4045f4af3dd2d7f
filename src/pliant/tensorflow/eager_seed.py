"""The seed of TensorFlow's eager random operations, set before every item."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

SEEDS_MAX = 1024  # an eager random operation leaves one kernel for each seed


class EagerSeed:
    """Sets the seed as `tf.random.set_seed` does, and keeps the kernels of traced functions.

    `tf.random.set_seed` drops every kernel of the process. The next call of each traced function then builds and
    optimizes its graph again, which takes longer than most steps. Kernels must be dropped only for a seed that was set
    before, because the kernels of its random operations continue where they were, and now and then to free them.
    """

    def __init__(self) -> None:
        self._since_drop: set[int] = set()

    def set(self, seed: int) -> None:
        eager: Any = context.context()
        is_known = hasattr(eager, "_seed") and hasattr(eager, "_rng")  # private: another version may have others
        if is_known and self._since_drop and seed not in self._since_drop and len(self._since_drop) < SEEDS_MAX:
            eager._seed, eager._rng = seed, random.Random(seed)
        else:
            tf.random.set_seed(seed)
            self._since_drop.clear()
        self._since_drop.add(seed)
