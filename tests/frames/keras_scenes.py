"""A script of Keras 3, on the framework that the environment names: BatchNorm, dropout, Adam and `run.fit`."""

import time
import warnings
from typing import Any

import keras
import numpy as np

import pliant.keras as pliant
from frames.story import FEATURES, FramePlan, Story, points
from live.reports import say

Plan = FramePlan


def warm_up() -> None:
    """Members are forked: no computation may run here, and JAX warns about a fork that does no harm yet."""
    warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)


def net(seed: int, *, plain: bool) -> Any:
    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Dense(8, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.05) if plain else keras.optimizers.Adam(0.01)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


class Told(keras.callbacks.Callback):
    """Tells what the test waits for, at each step."""

    def __init__(self, story: Story, run: Any) -> None:
        super().__init__()
        self._story, self._run = story, run
        story.compiled_before = run._frame.base.traces
        self.began_at = time.time()  # differs between members, as values of users' callbacks may

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._story.at("forward", self._run)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        traces = self._run._frame.base.traces
        self._story.stepped(self._run, compiled=traces - self._story.compiled_before)
        self._story.compiled_before = traces

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        say(epoch_logs=epoch, **{name: float(value) for name, value in (logs or {}).items()})


def train(plan: FramePlan) -> None:
    story = Story(plan)
    model, data = net(plan.own_seed, plain=plan.averages > 0), points(plan)
    with pliant.join() as job:
        run = job.train(model, data, state=story.state, **plan.arguments)
        own = run.average_models(plan.averages) if plan.averages else None
        say(joined=True)
        slower = keras.callbacks.LearningRateScheduler(lambda _epoch, rate: rate * 0.9)  # of the rate before
        run.fit(callbacks=[slower, Told(story, run)], validation_data=data if plan.evaluate else None)
        variables = [*model.trainable_variables, *model.optimizer.variables, *run._frame._moving]
        found = [np.asarray(keras.ops.convert_to_numpy(each)) for each in variables]
        story.done(found, distance=0.0 if own is None else own.distance)
