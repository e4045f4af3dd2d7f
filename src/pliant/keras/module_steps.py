"""The steps of a model module in Keras: train, evaluate and predict one batch, with parameters on servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from pliant.keras.tables import KerasTableStep, TableEmbedding
from pliant.ps import SGD, PushPolicy
from pliant.ps.access import LocalRows, TableAccess
from pliant.ps.gradients import TableRun
from pliant.ps.model_batches import ROW, StillValues, model_table, plain_rows, require_score, require_still
from pliant.ps.tables.optimizers import RowOptimizer
from pliant.ps.tables.spec import Table

Scored = Callable[[Any, Any], Any]


class KerasSteps:
    """A model whose trainable weights are in a table of their own. Call `bind` before the first batch.

    The table's name has a hash of their shapes, and of the values of all other weights, which no server keeps. A model
    without weights yet gets them from the sample: the features of one record.
    """

    def __init__(
        self, name: str, model: Any, loss: Scored, metrics: Mapping[str, Scored], sample: Callable[[], Any]
    ) -> None:
        self._name, self._model, self._loss, self._metrics = name, model, loss, metrics
        if not model.built:
            KerasTableStep(_tables_here(model), model).outputs(sample())
        self._table = _table_name(model)
        self._step: KerasTableStep
        self._count = 0
        self._still: list[Any] | None = [keras.ops.convert_to_numpy(each) for each in model.non_trainable_weights]

    def tables(self, optimizer: RowOptimizer) -> list[Table]:
        """Return the table of the model's own weights, without rows if all are frozen; none if it has none."""
        return [Table(self._table, ROW, optimizer)] if self._table else []

    def bind(self, run: TableRun) -> None:
        """Keep the model's own weights in the tables of this run."""
        dense = self._table if self._model.trainable_weights else None
        self._step = KerasTableStep(run, self._model, self._loss_of_each, dense, ROW)

    def train(self, features: Any, labels: Any, count: int) -> float:
        """Train on a batch, again if its gradients were too old. Return its mean loss."""
        self._count = count
        loss = self._step(features, _tensors(labels))
        self._check_still()
        return loss

    def evaluate(self, features: Any, labels: Any, count: int) -> dict[str, float]:
        """Return the totals of the loss and of each metric over the records of a batch."""
        outputs, labels = self._step.outputs(features), _tensors(labels)
        found = {"loss": self._loss(labels, outputs)}
        found |= {name: metric(labels, outputs) for name, metric in self._metrics.items()}
        return {name: self._mean(name, value, count) * count for name, value in found.items()}

    def predict(self, features: Any, count: int) -> list[Any]:
        """Return one plain value for each record of a batch: a number, a list, or a dictionary of them."""
        outputs = keras.tree.map_structure(_array, self._step.outputs(features))
        return plain_rows(self._name, outputs, count, np.ndarray, lambda each: each.tolist())

    def _loss_of_each(self, labels: Any, outputs: Any) -> Any:
        value = self._loss(labels, outputs)
        require_score(self._name, "loss", tuple(np.shape(value)), self._count)
        return value

    def _mean(self, name: str, value: Any, count: int) -> float:
        array = _array(value)
        require_score(self._name, name, array.shape, count)
        return float(array.mean(dtype=np.float64))

    def _check_still(self) -> None:
        """Refuse a model whose training changes other weights, at its first batch: servers do not keep them."""
        if self._still is None:
            return
        pairs = zip(self._model.non_trainable_weights, self._still, strict=True)
        moved = [each.path for each, before in pairs if not np.array_equal(_array(each), before)]
        require_still(self._name, moved, "weights")
        self._still = None


def _tables_here(model: Any) -> TableRun:
    """Return tables in this process, for the pass that gives a model its weights."""
    dims = {each.table: each.dim for each in model._flatten_layers() if isinstance(each, TableEmbedding)}
    tables = [Table(name, dim, SGD(1.0)) for name, dim in dims.items()]
    return TableAccess("first", tables, PushPolicy(), LocalRows(tables, PushPolicy()))


def _table_name(model: Any) -> str:
    shapes = [(str(number), tuple(each.shape)) for number, each in enumerate(model.trainable_weights)]
    still = [_still(number, _array(each)) for number, each in enumerate(model.non_trainable_weights)]
    return model_table(shapes, still)


def _still(number: int, array: Any) -> StillValues:
    return StillValues(f"{number:06d}", array.shape, str(array.dtype), np.ascontiguousarray(array).tobytes())


def _tensors(labels: Any) -> Any:
    return keras.tree.map_structure(keras.ops.convert_to_tensor, labels)


def _array(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(value))
