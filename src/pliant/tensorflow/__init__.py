"""Live elastic training for TensorFlow loops with `tf.GradientTape`. For Keras models see `pliant.keras`.

    import pliant.tensorflow as pliant

    with pliant.join() as job:
        run = job.train(variables, keras.optimizers.Adam(1e-3), (images, labels), batch_size=256, epochs=3)
        for x, y in run:
            loss, grads = compute(x, y)
            run.log(loss=loss)
            run.step(grads)

This package holds the code that needs tensorflow. The loop is in `pliant.train.live`. It imports no other adapter.
"""

from pliant.core.policy.batch_size import batch_by_noise
from pliant.core.policy.learning_rate import scaled_rate, warmed_up_rate
from pliant.tensorflow.job import TensorflowJob, join
from pliant.tensorflow.run import TensorflowRun
from pliant.train.data.batch_size import BatchSize
from pliant.train.live.data.tools import Arrays
from pliant.train.live.errors import Left
from pliant.train.reduce.noise import NoiseScale

__all__ = [
    "Arrays",
    "BatchSize",
    "Left",
    "NoiseScale",
    "TensorflowJob",
    "TensorflowRun",
    "batch_by_noise",
    "join",
    "scaled_rate",
    "warmed_up_rate",
]
