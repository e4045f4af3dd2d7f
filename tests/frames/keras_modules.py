"""Keras models of model modules, on the framework that KERAS_BACKEND names: `python -m frames.keras_modules`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from pliant.errors import BadInput
from pliant.keras.module_steps import KerasSteps
from pliant.keras.tables import TableEmbedding
from pliant.ps import SGD, PushPolicy, Table
from pliant.ps.access import LocalRows, TableAccess

FEATURES = np.linspace(0.0, 1.0, 8, dtype=np.float32).reshape(-1, 1)
LABELS = FEATURES * 3 + 1
ADS = Table("ads", 4, SGD(0.5), scale=0.5)


class Unbuilt(keras.Model):
    """A model that gets its weights at its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.ads = TableEmbedding("ads", ADS.dim)
        self.dense = keras.layers.Dense(1)

    def call(self, ids: Any, training: bool = False) -> Any:
        return {"score": self.dense(self.ads(ids)), "sum": keras.ops.sum(self.ads(ids), axis=-1)}


def squares(labels: Any, outputs: Any) -> Any:
    return keras.ops.square(outputs - labels)


def scored(labels: Any, outputs: Any) -> Any:
    return squares(labels, outputs["score"])


def bound(model: Any, *more: Table, loss: Any = squares, sample: Any = FEATURES[:1], **metrics: Any) -> KerasSteps:
    steps = KerasSteps("zoo.py", model, loss, metrics, lambda: sample)
    tables = [*more, *steps.tables(SGD(0.1))]
    steps.bind(TableAccess("w", tables, PushPolicy(), LocalRows(tables, PushPolicy())))
    return steps


def line(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])


def refused(steps: KerasSteps) -> str:
    try:
        steps.train(FEATURES, LABELS, len(FEATURES))
    except BadInput as error:
        return error.why
    raise AssertionError("not refused")


def trains() -> None:
    steps = bound(line(), near=lambda labels, outputs: keras.ops.abs(outputs - labels) < 0.5)
    losses = [steps.train(FEATURES, LABELS, 8) for _ in range(200)]
    assert losses[-1] < 0.05 < losses[0], losses
    found = steps.evaluate(FEATURES, LABELS, 8)
    np.testing.assert_allclose(found["loss"], losses[-1] * 8, rtol=0.2)
    assert found["near"] > 6
    predicted = np.asarray(steps.predict(FEATURES, 8))
    np.testing.assert_allclose(predicted, LABELS, atol=0.6)


def builds_by_a_sample() -> None:
    ids = np.asarray([3, 900, 3, 7])
    labels = np.asarray([[1.0], [0.0], [1.0], [2.0]], np.float32)
    steps = bound(Unbuilt(), ADS, loss=scored, sample=ids[:1])
    losses = [steps.train(ids, labels, 4) for _ in range(100)]
    assert losses[-1] < losses[0] / 10, losses
    first, second, third, _ = steps.predict(ids, 4)
    assert first == third != second
    assert set(first) == {"score", "sum"}
    assert isinstance(first["sum"], float)


def names_its_table() -> None:
    def name(model: Any) -> str:
        return KerasSteps("zoo.py", model, squares, {}, lambda: FEATURES[:1]).tables(SGD(0.1))[0].name

    assert name(line()) == name(line())
    frozen = [line(keras.layers.Dense(2, trainable=False, kernel_initializer="ones", use_bias=bias)) for bias in (0, 1)]
    assert len({name(line()), name(line(keras.layers.Dense(2))), *map(name, frozen)}) == 4


def refuses_what_servers_do_not_keep() -> None:
    dropout = bound(line(keras.layers.Dropout(0.5)))
    dropout.train(FEATURES, LABELS, 8)  # its seeds move on, on each worker for itself
    why = refused(bound(line(keras.layers.BatchNormalization(name="norm"))))
    assert "norm/moving_mean" in why, why
    assert "LayerNorm" in why
    why = refused(bound(line(), loss=lambda labels, outputs: outputs[:3]))
    assert "loss returned a tensor of shape (3, 1) for 8 records" in why, why


def main() -> None:
    trains()
    builds_by_a_sample()
    names_its_table()
    refuses_what_servers_do_not_keep()
    print("ok")


if __name__ == "__main__":
    main()
