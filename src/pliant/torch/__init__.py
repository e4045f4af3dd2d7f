"""Live elastic training for PyTorch.

    import pliant.torch as pliant

    with pliant.join() as job:
        run = job.train(model, optimizer, dataset, batch_size=256, epochs=3)
        for x, y in run:
            F.cross_entropy(model(x), y).backward()
            run.step()

This package holds the code that needs torch. The protocol is in `pliant.core`, the session in `pliant.train`. It does
not import other adapters.
"""

from pliant.core.policy.batch_size import batch_by_noise
from pliant.core.policy.learning_rate import scaled_rate, warmed_up_rate
from pliant.torch.job import TrainingJob, device, join
from pliant.torch.run import Run
from pliant.train.data.batch_size import BatchSize
from pliant.train.live.errors import Left
from pliant.train.reduce.noise import NoiseScale

__all__ = [
    "BatchSize",
    "Left",
    "NoiseScale",
    "Run",
    "TrainingJob",
    "batch_by_noise",
    "device",
    "join",
    "scaled_rate",
    "warmed_up_rate",
]
