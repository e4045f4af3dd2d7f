"""The frameworks that Keras runs on, as far as they differ: the gradients of a part, and the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras
import numpy as np

from pliant.errors import BadInput
from pliant.train.live.arrays.frame import Array, Gradients

Logs = dict[str, Any]


class KerasBase(Protocol):
    """One framework's computations on a compiled model."""

    traces: int  # how often something was traced or compiled

    def part(self, x: Any, y: Any, sample_weight: Any) -> tuple[Logs, Any]:
        """Return the metrics and the gradients of one part. Moving values and seeds move on."""

    def seed(self, key: int) -> None:
        """Seed the generator from which layers draw that got no seed, if there is one beside the seed generators."""

    def trained(self) -> list[Any]:
        """Return the values of the trained variables, which a change of the variables leaves as they are."""

    def set_trained(self, values: Sequence[Any]) -> None:
        """Give the trained variables other values, without writing to the memory of those that they have."""

    def arrays(self, grads: Any) -> Gradients: ...
    def apply(self, sums: Gradients, scale: float) -> None: ...
    def apply_own(self, grads: Any, scale: float) -> None: ...


def base_of(model: Any) -> KerasBase:
    """Return the framework that Keras runs on."""
    name = keras.backend.backend()
    made: dict[str, Callable[[Any], KerasBase]] = {"jax": JaxBase, "tensorflow": TfBase, "torch": TorchBase}
    if name not in made:
        raise BadInput(f"Keras runs on {name}. Set KERAS_BACKEND to tensorflow, jax or torch.")
    return made[name](model)


def _values(variables: Sequence[Any]) -> list[Any]:
    return [variable.value for variable in variables]


def _forward(model: Any, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """Return the loss and the predictions of a training pass."""
    y_pred = model(x, training=True)
    loss = model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
    return loss, y_pred


class JaxBase:
    """Keras on JAX: variables go in and come out of compiled functions."""

    def __init__(self, model: Any) -> None:
        import jax

        self._jax, self._model, self.traces = jax, model, 0
        self._device = jax.local_devices()[0]

        def part(trained: Any, still: Any, optimizer: Any, x: Any, y: Any, weight: Any) -> Any:
            self.traces += 1
            fresh = _values(model.metrics_variables)
            compute = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)
            (_, (loss, y_pred, still, _)), grads = compute(
                trained, still, fresh, x, y, weight, training=True, optimizer_variables=optimizer
            )
            mapping = list(zip(model.metrics_variables, fresh, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                logs = model.compute_metrics(x, y, y_pred, weight)
            return {**logs, "loss": loss}, grads, still

        def step(trained: Any, optimizer: Any, grads: Any, scale: Any) -> Any:
            self.traces += 1
            given = [(grad * scale).astype(value.dtype) for grad, value in zip(grads, trained, strict=True)]
            return model.optimizer.stateless_apply(optimizer, given, trained)

        self._part, self._step = jax.jit(part), jax.jit(step)

    def _bound(self, values: Any) -> Any:
        """Bind arrays to this worker's device: JAX would compile once more for those that are."""
        return self._jax.device_put(values, self._device)

    def part(self, x: Any, y: Any, sample_weight: Any) -> tuple[Logs, Any]:
        model = self._model
        model.reset_metrics()
        optimizer = self._bound(_values(model.optimizer.variables))
        still = model.non_trainable_variables
        logs, grads, moved = self._part(
            self._bound(_values(model.trainable_variables)), self._bound(_values(still)), optimizer, x, y, sample_weight
        )
        for variable, value in zip(still, moved, strict=True):
            variable.assign(value)
        return logs, grads

    def seed(self, key: int) -> None:
        """Nothing: all layers draw from seed generators."""

    def trained(self) -> list[Any]:
        return _values(self._model.trainable_variables)

    def set_trained(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._model.trainable_variables, values, strict=True):
            variable.assign(value)

    def arrays(self, grads: Any) -> Gradients:
        return [np.asarray(grad) for grad in grads]

    def apply(self, sums: Gradients, scale: float) -> None:
        shapes = [tuple(variable.shape) for variable in self._model.trainable_variables]
        self.apply_own([self._view(array, shape) for array, shape in zip(sums, shapes, strict=True)], scale)

    def _view(self, array: Array | None, shape: tuple[int, ...]) -> Any:
        if array is None:
            return np.zeros(shape, np.float32)
        can_share = array.flags.writeable and not array.ctypes.data % 64 and self._jax.default_backend() == "cpu"
        return self._jax.dlpack.from_dlpack(array) if can_share else array

    def apply_own(self, grads: Any, scale: float) -> None:
        model = self._model
        wide = [grad if isinstance(grad, np.ndarray) else grad.astype(np.float32) for grad in grads]
        state = (_values(model.trainable_variables), _values(model.optimizer.variables))
        given = (*self._bound(state), self._bound(wide), np.float32(scale))
        trained, optimizer = self._jax.block_until_ready(self._step(*given))
        for variable, value in zip(model.trainable_variables, trained, strict=True):
            variable.assign(value)
        for variable, value in zip(model.optimizer.variables, optimizer, strict=True):
            variable.assign(value)


class TfBase:
    """Keras on TensorFlow: traced functions over variables."""

    def __init__(self, model: Any) -> None:
        import tensorflow as tf

        self._tf, self._model, self.traces = tf, model, 0
        trained = model.trainable_variables

        def part(x: Any, y: Any, weight: Any) -> Any:
            self.traces += 1
            model.reset_metrics()
            with tf.GradientTape() as tape:
                loss, y_pred = _forward(model, x, y, weight)
                scaled = model.optimizer.scale_loss(loss)
            logs = model.compute_metrics(x, y, y_pred, weight)
            return {**logs, "loss": loss}, tape.gradient(scaled, _values(trained))

        def step(grads: Any, scale: Any) -> None:
            self.traces += 1
            model.optimizer.apply([None if grad is None else grad * scale for grad in grads], trained)

        self._part = tf.function(part, reduce_retracing=False)
        self._step = tf.function(step, reduce_retracing=False)

    def part(self, x: Any, y: Any, sample_weight: Any) -> tuple[Logs, Any]:
        convert = self._tf.nest.map_structure
        logs, grads = self._part(*convert(self._tf.convert_to_tensor, (x, y)), sample_weight)
        return logs, grads

    def seed(self, key: int) -> None:
        """Nothing: all layers draw from seed generators."""

    def trained(self) -> list[Any]:
        return [self._tf.identity(value) for value in _values(self._model.trainable_variables)]

    def set_trained(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._model.trainable_variables, values, strict=True):
            variable.assign(value)

    def arrays(self, grads: Any) -> Gradients:
        dense = [self._tf.convert_to_tensor(grad) if grad is not None else None for grad in grads]
        return [None if grad is None else np.asarray(grad) for grad in dense]

    def apply(self, sums: Gradients, scale: float) -> None:
        share = self._tf.experimental.dlpack.from_dlpack
        self._apply([None if array is None else share(_capsule(array)) for array in sums], scale)

    def apply_own(self, grads: Any, scale: float) -> None:
        cast = self._tf.cast
        self._apply([None if grad is None else cast(grad, "float32") for grad in grads], scale)

    def _apply(self, grads: Any, scale: float) -> None:
        self._step(grads, self._tf.constant(scale, "float32"))


def _capsule(array: Array) -> Any:
    """Return an array for DLPack. TensorFlow ends the process if its memory is not aligned to 64 bytes."""
    if array.ctypes.data % 64 or not array.flags.writeable:
        raise AssertionError(f"an array at {array.ctypes.data:#x} is not aligned, or is read-only")
    return array.__dlpack__()


class TorchBase:
    """Keras on PyTorch: eager."""

    def __init__(self, model: Any) -> None:
        import torch

        self._torch, self._model, self.traces = torch, model, 0

    def part(self, x: Any, y: Any, sample_weight: Any) -> tuple[Logs, Any]:
        model, torch = self._model, self._torch
        model.reset_metrics()
        model.zero_grad()
        x, y = (keras.tree.map_structure(torch.as_tensor, each) for each in (x, y))
        loss, y_pred = _forward(model, x, y, sample_weight)
        model.optimizer.scale_loss(loss).backward()
        grads = [variable.value.grad for variable in model.trainable_variables]
        with torch.no_grad():
            logs = model.compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "loss": loss.detach()}, grads

    def seed(self, key: int) -> None:
        self._torch.manual_seed(key)

    def trained(self) -> list[Any]:
        return [variable.value.data for variable in self._model.trainable_variables]

    def set_trained(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._model.trainable_variables, values, strict=True):
            variable.value.data = value

    def arrays(self, grads: Any) -> Gradients:
        return [None if grad is None else grad.detach().cpu().numpy() for grad in grads]

    def apply(self, sums: Gradients, scale: float) -> None:
        self.apply_own([None if array is None else self._torch.from_numpy(array) for array in sums], scale)

    def apply_own(self, grads: Any, scale: float) -> None:
        trained = self._model.trainable_variables
        with self._torch.no_grad():
            pairs = zip(grads, trained, strict=True)
            given = [None if grad is None else (grad * scale).to(variable.value) for grad, variable in pairs]
            self._model.optimizer.apply(given, trained)
