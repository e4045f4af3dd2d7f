"""Keras models whose parameters are on parameter servers, on TensorFlow, JAX and PyTorch.

model = keras.Sequential([TableEmbedding("ads", 16), keras.layers.Flatten(), keras.layers.Dense(1)])
step = KerasTableStep(run, model, loss, dense="deep")
for ids, labels in run:
    step(ids, labels)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import keras
import numpy as np

from pliant.errors import BadInput
from pliant.ps.gradients import DenseRows, TableGradients, TableRun

__all__ = ["KerasTableStep", "TableEmbedding"]

Loss = Callable[[Any, Any], Any]


class TableEmbedding(keras.layers.Layer):  # type: ignore[misc]  # keras ships no types
    """An embedding whose rows are in a table. It has no weights of its own.

    Each training step pulls the rows that a batch needs, and pushes their gradients. Use it in a model that a
    `KerasTableStep` trains or calls.
    """

    def __init__(self, table: str, dim: int, **options: Any) -> None:
        super().__init__(**options)
        self.table, self.dim = table, dim
        self.pass_: TablePass | None = None

    def call(self, ids: Any) -> Any:
        if self.pass_ is None:
            raise BadInput(f"Table {self.table}: call the model through a KerasTableStep, which pulls the rows.")
        return self.pass_.rows_of(self, ids)

    def compute_output_spec(self, ids: Any) -> Any:
        return keras.KerasTensor((*ids.shape, self.dim), "float32")

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.dim)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "table": self.table, "dim": self.dim}


class TablePass:
    """One pass over a model. It pulls rows, or uses those that a pass before pulled, in the order of the calls."""

    def __init__(self, run: TableRun, watch: Callable[[Any], Any], given: list[Any] | None = None) -> None:
        self._run, self._watch, self._given = run, watch, given
        self._ids: list[tuple[str, Any]] = []
        self.rows: list[Any] = []

    def rows_of(self, layer: TableEmbedding, ids: Any) -> Any:
        if self._given is not None:
            self.rows.append(self._given[len(self.rows)])
            return self.rows[-1]
        numbers = keras.ops.convert_to_numpy(ids).astype(np.int64)
        rows = self._watch(self._run.pull(layer.table, numbers))
        self._ids.append((layer.table, numbers))
        self.rows.append(rows)
        return rows

    def with_gradients(self, found: Sequence[Any]) -> list[tuple[str, Any, Any]]:
        """Return the table, the ids and the gradients of the rows of each call."""
        return [(table, ids, grad) for (table, ids), grad in zip(self._ids, found, strict=True)]


class KerasTableStep:
    """A training step of a model with tables: pull, compute, push.

    `loss(labels, outputs)` returns the loss of a batch, or of each record. Without one, the model must be compiled
    with a loss. With `dense`, the trainable variables of the model are in that table, in rows of `row` numbers. The
    first worker's initial values count. Other variables, such as moving means, stay on each worker.
    """

    def __init__(
        self, run: TableRun, model: Any, loss: Loss | None = None, dense: str | None = None, row: int = 64
    ) -> None:
        self.run, self.model, self._loss = run, model, loss
        self._layers = [each for each in model._flatten_layers() if isinstance(each, TableEmbedding)]
        self._dense_table, self._row = dense, row
        self._dense: DenseRows | None = None
        name = keras.backend.backend()
        if name not in _FRAMEWORKS:
            raise BadInput(f"Keras runs on {name}. Set KERAS_BACKEND to tensorflow, jax or torch.")
        self._framework = _FRAMEWORKS[name](self)

    def __call__(self, x: Any, y: Any) -> float:
        """Train on a batch, again if its gradients were too old. Return its loss."""
        while True:
            self._pull(x)
            loss, embedded, dense = self._framework.gradients(x, y)
            found = TableGradients()
            for table, ids, values in embedded:
                found.add(table, ids, values)
            if self._dense is not None:
                found.add(self._dense.table, self._dense.ids, self._dense.pack(dense))
            if found.push(self.run):
                return loss

    def outputs(self, x: Any) -> Any:
        """Return the outputs of the model for a batch, and train nothing."""
        self._pull(x)
        with self.passing(TablePass(self.run, keras.ops.convert_to_tensor)):
            return self.model(x, training=False)

    def evaluate(self, x: Any, y: Any) -> float:
        """Return the loss of a batch, and train nothing."""
        outputs = self.outputs(x)
        return float(keras.ops.convert_to_numpy(self.loss_of(x, y, outputs)))

    def loss_of(self, x: Any, y: Any, outputs: Any) -> Any:
        if self._loss is not None:
            return keras.ops.mean(self._loss(y, outputs))
        return self.model.compute_loss(x=x, y=y, y_pred=outputs)

    def _pull(self, x: Any) -> None:
        """Set the trainable variables to their values on the servers."""
        if self._dense_table is None:
            return
        if self._dense is None:
            self._build(x)
            shapes = [tuple(each.shape) for each in self.model.trainable_variables]
            self._dense = DenseRows(self._dense_table, shapes, self._row)
            if len(self._dense.ids):
                values = [keras.ops.convert_to_numpy(each.value) for each in self.model.trainable_variables]
                self.run.create(self._dense_table, self._dense.ids, self._dense.pack(values))
        if len(self._dense.ids):
            arrays = self._dense.unpack(self.run.pull(self._dense_table, self._dense.ids))
            for variable, array in zip(self.model.trainable_variables, arrays, strict=True):
                variable.assign(array)

    def _build(self, x: Any) -> None:
        """Create the variables of a model that has not seen a batch yet."""
        with self.passing(TablePass(self.run, keras.ops.convert_to_tensor)):
            self.model(x, training=False)

    @contextmanager
    def passing(self, made: TablePass) -> Iterator[TablePass]:
        """Let the embeddings of the model take their rows from a pass."""
        for layer in self._layers:
            layer.pass_ = made
        try:
            yield made
        finally:
            for layer in self._layers:
                layer.pass_ = None


Embedded = list[tuple[str, Any, Any]]  # table, ids and gradients


class StepGradients(Protocol):
    """The framework that Keras runs on, as far as steps differ."""

    def gradients(self, x: Any, y: Any) -> tuple[float, Embedded, Sequence[Any]]:
        """Return the loss of a batch, and the gradients of rows and of trainable variables."""


class TorchGradients:
    """Keras on PyTorch."""

    def __init__(self, step: KerasTableStep) -> None:
        import torch

        self._torch, self._step = torch, step

    def gradients(self, x: Any, y: Any) -> tuple[float, Embedded, Sequence[Any]]:
        step = self._step
        with step.passing(TablePass(step.run, self._watch)) as made:
            loss = step.loss_of(x, y, step.model(x, training=True))
        wanted = [*made.rows, *(each.value for each in step.model.trainable_variables)]
        grads = self._torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
        found = [grad.cpu().numpy() for grad in grads]
        count = len(made.rows)
        return loss.item(), made.with_gradients(found[:count]), found[count:]

    def _watch(self, rows: Any) -> Any:
        return keras.ops.convert_to_tensor(rows).requires_grad_()


class TensorFlowGradients:
    """Keras on TensorFlow. The pass is not compiled, because it pulls rows."""

    def __init__(self, step: KerasTableStep) -> None:
        import tensorflow as tf

        self._tf, self._step = tf, step

    def gradients(self, x: Any, y: Any) -> tuple[float, Embedded, Sequence[Any]]:
        step, tf = self._step, self._tf
        with tf.GradientTape() as tape:

            def watch(rows: Any) -> Any:
                tensor = tf.constant(rows)
                tape.watch(tensor)
                return tensor

            with step.passing(TablePass(step.run, watch)) as made:
                loss = step.loss_of(x, y, step.model(x, training=True))
        wanted = [*made.rows, *(each.value for each in step.model.trainable_variables)]
        grads = tape.gradient(loss, wanted, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        found = [tf.convert_to_tensor(grad).numpy() for grad in grads]
        count = len(made.rows)
        return float(loss), made.with_gradients(found[:count]), found[count:]


class JaxGradients:
    """Keras on JAX: one pass pulls the rows, and a compiled one computes with them."""

    def __init__(self, step: KerasTableStep) -> None:
        import jax

        self._step = step
        self._compiled = jax.jit(jax.value_and_grad(self._loss, argnums=(0, 1), has_aux=True))

    def _loss(self, trained: Any, rows: Any, still: Any, x: Any, y: Any) -> Any:
        step = self._step
        with step.passing(TablePass(step.run, lambda _: None, rows)):
            outputs, still = step.model.stateless_call(trained, still, x, training=True)
        return step.loss_of(x, y, outputs), still

    def gradients(self, x: Any, y: Any) -> tuple[float, Embedded, Sequence[Any]]:
        step = self._step
        with step.passing(TablePass(step.run, keras.ops.convert_to_tensor)) as made:
            step.model(x, training=False)
        trained = [each.value for each in step.model.trainable_variables]
        still = [each.value for each in step.model.non_trainable_variables]
        (loss, still), (dense, rows) = self._compiled(trained, made.rows, still, x, y)
        for variable, value in zip(step.model.non_trainable_variables, still, strict=True):
            variable.assign(value)
        return (
            float(loss),
            made.with_gradients([np.asarray(each) for each in rows]),
            [np.asarray(each) for each in dense],
        )


_FRAMEWORKS: dict[str, Callable[[KerasTableStep], StepGradients]] = {
    "torch": TorchGradients,
    "tensorflow": TensorFlowGradients,
    "jax": JaxGradients,
}
