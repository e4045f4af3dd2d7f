"""The seed of TensorFlow's eager random operations, set before every item."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context

DRAWS_MAX = 4096  # each draw of an eager random operation leaves a kernel
SEEDS_MAX = 1 << 16  # kept, to know a repeated one


class _CountedRandom(random.Random):
    """The generator of operation seeds."""

    drawn = 0

    def randint(self, a: int, b: int) -> int:
        self.drawn += 1
        return super().randint(a, b)


class EagerSeed:
    """Sets the seed as `tf.random.set_seed` does, and keeps the kernels of traced functions.

    `tf.random.set_seed` drops every kernel of the process. The next call of each traced function then builds and
    optimizes its graph again, which takes longer than most steps. Kernels must be dropped only for a seed that was set
    before, because the kernels of its random operations continue where they were, and now and then to free them.
    """

    def __init__(self) -> None:
        self._since_drop: set[int] = set()
        self._drawn = 0

    def set(self, seed: int) -> None:
        eager: Any = context.context()
        is_known = hasattr(eager, "_seed") and hasattr(eager, "_rng")  # private: another version may have others
        self._drawn += getattr(getattr(eager, "_rng", None), "drawn", 0)
        is_full = self._drawn >= DRAWS_MAX or len(self._since_drop) >= SEEDS_MAX
        if not is_known or not self._since_drop or seed in self._since_drop or is_full:
            tf.random.set_seed(seed)
            self._since_drop.clear()
            self._drawn = 0
        if hasattr(eager, "_seed") and hasattr(eager, "_rng"):
            eager._seed, eager._rng = seed, _CountedRandom(seed)
        self._since_drop.add(seed)
