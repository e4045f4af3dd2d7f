"""A script of TensorFlow: variables, a tape in a tf.function, and an optimizer of Keras."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import pliant.tensorflow as pliant
from frames.story import FEATURES, FramePlan, Story, points
from live.reports import say

Plan = FramePlan


def warm_up() -> None:
    """Members are forked: no computation may run here."""


def train(plan: FramePlan) -> None:
    story = Story(plan)
    chance = np.random.Generator(np.random.PCG64(plan.own_seed))
    sizes = ((FEATURES, 8), (8,), (8, 3))
    variables = [tf.Variable((chance.normal(size=size) * 0.3).astype(np.float32)) for size in sizes]
    mean = tf.Variable(tf.zeros(FEATURES), trainable=False)
    traces: list[int] = []

    @tf.function
    def compute(x: Any, y: Any, key: Any) -> Any:
        traces.append(1)
        a, b, c = variables
        with tf.GradientTape() as tape:
            hidden = tf.tanh((x - mean) @ a + b)
            hidden *= tf.cast(tf.random.stateless_uniform(tf.shape(hidden), key) < 0.9, tf.float32) / 0.9
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, hidden @ c)
            loss = tf.reduce_mean(losses)
        mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
        return loss, tape.gradient(loss, variables)

    def part(batch: Any, key: tuple[int, int] = (0, 0)) -> Any:
        x, y = batch
        return compute(tf.constant(x), tf.constant(y), tf.constant(key))

    with pliant.join() as job:
        optimizer = keras.optimizers.SGD(0.05) if plan.averages else keras.optimizers.Adam(0.01)
        more = {"state": story.state, **plan.arguments}
        run = job.train(variables, optimizer, points(plan), compute=part, moves=[mean], **more)
        own = run.average_models(plan.averages) if plan.averages else None
        say(joined=True)
        for batch in run:
            before = len(traces) + run._frame.traces
            story.at("forward", run)
            loss, grads = part(batch, run.key)
            run.log(loss=loss)
            story.at("backward", run)
            if run.step(grads):
                story.stepped(run, compiled=len(traces) + run._frame.traces - before)
        story.done([each.numpy() for each in (*variables, mean)], distance=0.0 if own is None else own.distance)
