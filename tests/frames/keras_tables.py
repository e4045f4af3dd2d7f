"""A Keras model with tables, on the framework that KERAS_BACKEND names: `python -m frames.keras_tables`."""

from __future__ import annotations

import keras

from frames.table_model import BIAS, DIM, IDS, KERNEL, LABELS, STEPS, StaleOnce, require_equal
from pliant.keras.tables import KerasTableStep, TableEmbedding


def main() -> None:
    ids = keras.Input((2,), dtype="int32")
    out = keras.layers.Dense(1)(keras.layers.Flatten()(TableEmbedding("ads", DIM)(ids)))
    model = keras.Model(ids, out)
    model.layers[-1].set_weights([KERNEL, BIAS])
    run = StaleOnce()
    step = KerasTableStep(run, model, keras.losses.mean_squared_error, dense="deep", row=4)
    losses = [step(IDS, LABELS) for _ in range(STEPS)]
    require_equal(losses, run)
    assert step.evaluate(IDS, LABELS) < losses[-1]
    assert tuple(step.outputs(IDS).shape) == (4, 1)
    print("equal")


if __name__ == "__main__":
    main()
