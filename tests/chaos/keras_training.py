"""A training script of the chaos runs in Keras: `run.fit`, BatchNorm, dropout, Adam, callbacks and metrics."""

import math
import os
import sys
from pathlib import Path
from typing import Any

import keras

sys.path.insert(0, str(Path(__file__).parents[1]))

import pliant.keras as pliant  # after the path
from chaos import probe, worker
from chaos.array_lesson import CLASSES, FEATURES, HIDDEN, Average, Readings
from chaos.probe import Place, Probe
from chaos.worker import digest, record
from pliant.keras.frame import KerasFrame
from pliant.train.live.arrays.reducer import FloatingArrayReducer
from pliant.train.live.arrays.tree_reducer import TreeArrayReducer


def net() -> Any:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    hidden = [layers.Dense(HIDDEN, activation="tanh"), layers.BatchNormalization(), layers.Dropout(0.1)]
    model = keras.Sequential([keras.Input((FEATURES,)), *hidden, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    return model


class Watched(keras.callbacks.Callback):
    """Is there to be struck at the beginning of an item, and averages the weights after a step."""

    def __init__(self, run: Any, where: Probe, average: Average) -> None:
        super().__init__()
        self._run, self._where, self._average = run, where, average

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._where.begin_step(self._run.step_number)
        with self._where.inside(Place.FORWARD):
            pass

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._average.update(weights_of(self.model))


def weights_of(model: Any) -> list[Any]:
    return [keras.ops.convert_to_numpy(variable) for variable in model.trainable_variables]


def main() -> None:
    worker.dump_stacks_on_request()
    where = Probe(worker.FOLDER)
    probe.install(where, FloatingArrayReducer, TreeArrayReducer)
    where.wrap(KerasFrame, KerasFrame.part, Place.BACKWARD)
    where.wrap(KerasFrame, KerasFrame.apply, Place.APPLY)
    readings, model = Readings(), net()
    average = Average(weights_of(model))
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 3e-3 * (1 + math.cos(math.pi * epoch / worker.EPOCHS)))
    record(started=os.getpid())
    try:
        with pliant.join() as job:
            run = job.train(
                model,
                readings,
                batch_size=worker.BATCH,
                slots=worker.SLOTS,
                epochs=worker.EPOCHS,
                seed=worker.SEED,
                state={"average": average},
                deterministic=worker.DETERMINISTIC,
            )
            before = run._frame.base.traces
            run.fit(callbacks=[rate, Watched(run, where, average)])
            recompiled = run._frame.base.traces - before
    except pliant.Left as left:
        record(left=left.code, why=left.why)
        raise
    variables = model.optimizer.variables
    parts: dict[str, Any] = {
        "weights": weights_of(model),
        "buffers": [keras.ops.convert_to_numpy(each) for each in run._frame._moving],
        "optimizer": [keras.ops.convert_to_numpy(each) for each in variables],
        "average": average.state_dict(),
        "metrics": {name: value.hex() for name, value in sorted(run.metrics.items())},
    }
    hashes = {name: digest(part) for name, part in parts.items()}
    loss = float(model.loss(readings.labels, model(readings.points, training=False)))
    record(final=hashes, loss=loss, step=run.step_number, updates=average.updates, size=run.size, compiled=recompiled)


if __name__ == "__main__":
    main()
