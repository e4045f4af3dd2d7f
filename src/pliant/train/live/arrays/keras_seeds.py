"""The states of Keras' seed generators, for the adapters of Keras and TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from pliant.train.live.arrays.frame import Array


def is_seed_state(variable: Any, array: Array) -> bool:
    """Return whether a variable with this value is the state of a `keras.random.SeedGenerator`."""
    path = str(getattr(variable, "path", None) or variable.name).partition(":")[0]
    return array.dtype.kind in "iu" and array.shape == (2,) and path.rpartition("/")[2] == "seed_generator_state"


def seed_state(key: int, number: int) -> Array:
    """Return the state of a model's seed generator with this number, for an item with this key."""
    return np.array([key & 0x7FFFFFFF, (key >> 32 ^ number * 0x9E3779B9) & 0x7FFFFFFF])
