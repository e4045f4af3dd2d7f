"""Live elastic training for Keras 3, on TensorFlow, JAX and PyTorch.

    import pliant.keras as pliant

    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    with pliant.join() as job:
        run = job.train(model, (images, labels), batch_size=256, epochs=3)
        run.fit(callbacks=[keras.callbacks.EarlyStopping("val_loss")], validation_data=(test_images, test_labels))

This package holds the code that needs keras. The loop is in `pliant.train.live`. It does not import other adapters.
"""

from pliant.core.policy.batch_size import batch_by_noise
from pliant.core.policy.learning_rate import scaled_rate, warmed_up_rate
from pliant.keras.job import KerasJob, join
from pliant.keras.run import KerasRun
from pliant.train.data.batch_size import BatchSize
from pliant.train.live.data.tools import Arrays
from pliant.train.live.errors import Left
from pliant.train.reduce.noise import NoiseScale

__all__ = [
    "Arrays",
    "BatchSize",
    "KerasJob",
    "KerasRun",
    "Left",
    "NoiseScale",
    "batch_by_noise",
    "join",
    "scaled_rate",
    "warmed_up_rate",
]
