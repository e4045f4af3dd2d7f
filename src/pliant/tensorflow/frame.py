"""TensorFlow's variables and an optimizer as arrays."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from pliant.core.model.fingerprint import Fingerprint
from pliant.errors import BadInput
from pliant.tensorflow.eager_seed import EagerSeed
from pliant.train.live.arrays.frame import Array, Gradients, aligned
from pliant.train.live.arrays.hashing import arrays_hash
from pliant.train.live.arrays.job import digest_of
from pliant.train.live.arrays.keras_optimizers import loss_scale_of, rate_is_number, require_plain_sgd
from pliant.train.live.arrays.keras_seeds import is_seed_state, seed_state

RATE = "learning_rate"


class TensorflowFrame:
    """Trained variables, the optimizer's, and those that a forward pass changes.

    The states of Keras' seed generators among the latter are set from the key of each part.
    """

    dtype = np.float32
    keeps_values = False

    def __init__(self, variables: Sequence[Any], optimizer: Any, moves: Sequence[Any]) -> None:
        self._trained = list(variables)
        self._seeds = [each for each in moves if is_seed_state(each, _array(each))]
        ids = {id(each) for each in self._seeds}
        self._moving = [each for each in moves if id(each) not in ids]
        if not self._trained:
            raise BadInput("variables is empty. Pass the variables to train.")
        if not hasattr(optimizer, "apply") or not hasattr(optimizer, "variables"):
            raise BadInput(f"optimizer must be a Keras optimizer, got {optimizer!r}.")
        self.optimizer = optimizer
        if not optimizer.built:
            optimizer.build(self._trained)
        self._rest = [*self._trained, *optimizer.variables]
        self.shapes = [tuple(variable.shape) for variable in self._trained]
        kinds = [(tuple(each.shape), str(each.dtype)) for each in (*self._rest, *self._moving)]
        count = sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)
        self.about = (
            ("framework", "tensorflow"),
            ("model", f"{count:,} parameters ({digest_of(kinds)})"),
            ("optimizer", type(optimizer).__name__),
        )
        self.traces = 0
        self._centre: list[Array] | None = None  # of the trained variables, while they show other values
        self._showing = threading.Lock()
        self._key = 0
        self._eager_seed = EagerSeed()

        def step(grads: Any, scale: Any) -> None:
            self.traces += 1
            optimizer.apply([None if grad is None else grad * scale for grad in grads], self._trained)

        self._step = tf.function(step)

    def compile(self) -> None:
        """Trace the step of the optimizer, and leave no trace in the state."""
        kept = [np.array(_array(variable)) for variable in self._rest]
        zeros = [aligned(int(np.prod(shape, dtype=np.int64)), self.dtype).reshape(shape) for shape in self.shapes]
        self.apply(zeros, 0.0)
        for variable, array in zip(self._rest, kept, strict=True):
            variable.assign(array)

    def arrays(self, grads: Any) -> Gradients:
        if len(grads) != len(self.shapes):
            raise BadInput(f"run.step got {len(grads)} gradients for {len(self.shapes)} variables.")
        dense = [None if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        return [None if grad is None else np.asarray(grad) for grad in dense]

    def apply(self, sums: Gradients, scale: float) -> None:
        self._apply([None if array is None else _shared(array) for array in sums], scale)

    def apply_own(self, grads: Any, scale: float) -> None:
        self._apply([None if grad is None else tf.cast(grad, self.dtype) for grad in grads], scale)

    def _apply(self, grads: list[Any], scale: float) -> None:
        self._step(grads, tf.constant(scale, self.dtype))

    def moves(self) -> list[Array]:
        return [_array(variable) for variable in self._moving]

    def set_moves(self, arrays: Sequence[Array]) -> None:
        for variable, array in zip(self._moving, arrays, strict=True):
            variable.assign(array)

    def value(self) -> Any:
        with self._showing:
            trained = self.trained() if self._centre is None else self._centre
            rest = [_array(variable) for variable in self._rest[len(trained) :]]
        return {"framework": "tensorflow", "arrays": [*trained, *rest]}

    def install(self, value: Any) -> None:
        if not isinstance(value, dict) or value.get("framework") != "tensorflow":
            raise BadInput("The received state is not one of pliant.tensorflow. Start all members with one script.")
        for variable, array in zip(self._rest, value["arrays"], strict=True):
            variable.assign(array)

    def trained(self) -> list[Array]:
        return [_array(variable) for variable in self._trained]

    def show(self, arrays: Sequence[Array] | None) -> None:
        with self._showing:
            if arrays is not None:
                self._centre = self.trained()
                self._assign(arrays)
            elif self._centre is not None:
                self._assign(self._centre)
                self._centre = None

    def _assign(self, arrays: Sequence[Array]) -> None:
        for variable, array in zip(self._trained, arrays, strict=True):
            variable.assign(array)

    def loss_scale(self) -> float:
        return float(_array(loss_scale_of(self.optimizer)))

    def require_plain_sgd(self) -> None:
        require_plain_sgd(self.optimizer, self._trained)

    def rates(self) -> list[float]:
        return [float(_array(self.optimizer.learning_rate))] * len(self._trained)

    def seed(self, key: int) -> None:
        self._key = key
        self._eager_seed.set(key & 0x7FFFFFFF)
        for at, variable in enumerate(self._seeds):
            variable.assign(seed_state(key, at).astype(_array(variable).dtype))

    @property
    def key(self) -> tuple[int, int]:
        """Two numbers for TensorFlow's stateless random operations."""
        return self._key & 0x7FFFFFFF, self._key >> 31 & 0x7FFFFFFF

    def hyperparameters(self) -> dict[str, float]:
        return {RATE: float(_array(self.optimizer.learning_rate))} if rate_is_number(self.optimizer) else {}

    def set_hyperparameter(self, name: str, value: float) -> None:
        setattr(self.optimizer, name, value)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        kept, key = [np.array(array) for array in self.moves()], self._key
        try:
            yield
        finally:
            self.set_moves(kept)
            self.seed(key)

    def bits(self) -> Fingerprint:
        chance = np.random.Generator(np.random.PCG64(5))
        x, w = (tf.constant(chance.normal(size=size), tf.float32) for size in ((64, 65), (65, 96)))
        hidden = tf.nn.gelu(x @ w)
        total = tf.nn.softmax(hidden @ tf.transpose(hidden)) @ hidden
        return (
            ("tensorflow", tf.__version__),
            ("devices", ", ".join(sorted(device.device_type for device in tf.config.list_physical_devices()))),
            ("threads", str(len(os.sched_getaffinity(0)))),
            ("fingerprint", f"{arrays_hash([np.asarray(hidden), np.asarray(total)]):016x}"),
        )


def _array(variable: Any) -> Array:
    value = getattr(variable, "value", variable)
    return np.asarray(value() if callable(value) else value)


def _shared(array: Array) -> Any:
    """Return a tensor in an array's memory. TensorFlow ends the process if it is not aligned to 64 bytes."""
    if array.ctypes.data % 64 or not array.flags.writeable:
        raise AssertionError(f"an array at {array.ctypes.data:#x} is not aligned, or is read-only")
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
