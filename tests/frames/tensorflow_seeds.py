"""Draw from TensorFlow's stateful random operations during a training of one member. Prints the draws as JSON.

The kernel of a traced operation has a state of its own: if kernels are dropped, its draws begin again.
"""

import json
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import pliant.tensorflow as pliant
from pliant.tensorflow.eager_seed import DRAWS_MAX, EagerSeed


@tf.function
def traced() -> tf.Tensor:
    return tf.random.uniform((), seed=1)


def eager(seed: EagerSeed, number: int) -> list[float]:
    seed.set(number)
    return [float(tf.random.uniform(())) for _ in range(2)]


def drawn(seed: EagerSeed, number: int, draws: int) -> float:
    """Return the draw of the traced operation, after some of eager ones."""
    seed.set(number)
    for _ in range(draws):
        tf.random.uniform(())
    return float(traced())


def of_training() -> list[float]:
    """Return the draws of a traced operation, one for each item."""
    weights, found = tf.Variable(tf.zeros((4, 3))), []
    x, y = np.ones((32, 4), np.float32), np.zeros(32, np.int32)
    with pliant.join() as job:
        run = job.train([weights], keras.optimizers.SGD(0.1), (x, y), batch_size=8, epochs=2)
        for batch, labels in run:
            found.append(float(traced()))
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.constant(batch) @ weights)
                loss = tf.reduce_mean(losses)
            run.step(tape.gradient(loss, [weights]))
    return found


def main() -> None:
    os.environ.pop("PLIANT_COORDINATOR", None)
    found: dict[str, Any] = {"items": of_training()}
    seed = EagerSeed()
    found["eager"] = [eager(seed, number) for number in (5, 6, 5)]
    found["without_draws"] = [drawn(seed, number, 0) for number in range(10, 2010)]
    found["with_draws"] = [drawn(seed, number, DRAWS_MAX // 100) for number in range(10_000, 10_400)]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
