"""The digits of `digits.py` with Keras 3, on any number of workers and on any framework below Keras.

Alone: `python examples/keras_digits.py`. Elastically: `pliant run --job digits --workers 1:4 examples/keras_digits.py`.
The variable KERAS_BACKEND chooses tensorflow, jax or torch.
"""

import argparse

import keras
import numpy as np
from sklearn.datasets import load_digits

import pliant.keras as pliant


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    data = load_digits()
    x, y = (data.images[..., None] / 16).astype(np.float32), data.target.astype(np.int32)
    test = np.arange(len(y)) % 5 == 0
    keras.utils.set_random_seed(7)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(2e-3), loss=loss, metrics=["accuracy"])

    with pliant.join() as job:
        run = job.train(model, (x[~test], y[~test]), batch_size=64, slots=16, epochs=args.epochs)
        history = run.fit(
            validation_data=(x[test], y[test]), callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=3)]
        )
        if run.rank == 0:
            print(f"{history.history['val_accuracy'][-1]:.1%} right")


if __name__ == "__main__":
    main()
