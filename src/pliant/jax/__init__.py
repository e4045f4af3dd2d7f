"""Live elastic training for JAX.

    import pliant.jax as pliant

    with pliant.join() as job:
        run = job.train(params, optax.adamw(1e-3), (images, labels), batch_size=256, epochs=3)
        for x, y in run:
            loss, grads = loss_and_grad(run.params, x, y, run.key)
            run.log(loss=loss)
            run.step(grads)

This package holds the code that needs jax. The loop is in `pliant.train.live`. It does not import other adapters.
"""

from pliant.core.policy.batch_size import batch_by_noise
from pliant.core.policy.learning_rate import scaled_rate, warmed_up_rate
from pliant.jax.job import JaxJob, join
from pliant.jax.run import JaxRun
from pliant.train.data.batch_size import BatchSize
from pliant.train.live.data.tools import Arrays
from pliant.train.live.errors import Left
from pliant.train.reduce.noise import NoiseScale

__all__ = [
    "Arrays",
    "BatchSize",
    "JaxJob",
    "JaxRun",
    "Left",
    "NoiseScale",
    "batch_by_noise",
    "join",
    "scaled_rate",
    "warmed_up_rate",
]
