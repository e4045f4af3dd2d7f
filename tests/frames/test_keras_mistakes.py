"""Losses and data that `pliant.keras` cannot train with: each error says what to do."""

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="run make frameworks")

from pliant.errors import BadInput  # noqa: E402  # needs keras
from pliant.keras.frame import KerasFrame, require_samples  # noqa: E402


def compiled(loss: Any) -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss=loss)
    return model


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: [loss]])
def test_a_loss_that_is_a_sum_is_refused(wrap: Any) -> None:
    with pytest.raises(BadInput, match=r'MeanSquaredError has reduction="sum".*multiply the learning rate'):
        KerasFrame(compiled(wrap(keras.losses.MeanSquaredError(reduction="sum"))))


@pytest.mark.parametrize("loss", ["mse", "sum_over_batch_size"])
def test_a_loss_that_is_a_mean_is_trained(loss: str) -> None:
    KerasFrame(compiled(loss if loss == "mse" else keras.losses.MeanSquaredError(reduction=loss)))


class Batches(keras.utils.PyDataset):  # type: ignore[name-defined]
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return np.zeros((4, 3)), np.zeros(4)


def test_data_in_batches_is_refused() -> None:
    x, y = np.zeros((4, 3), np.float32), np.zeros(4, np.float32)
    found: list[Any] = [Batches()]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found.append(tf.data.Dataset.from_tensor_slices((x, y)).batch(2))
    for data in found:
        with pytest.raises(BadInput, match=r"makes batches itself.*Pass the samples behind it: a tuple of arrays"):
            require_samples(data)
    torch = pytest.importorskip("torch")
    samples = [*zip(x, y, strict=True)]
    with pytest.raises(BadInput, match="DataLoader makes batches itself"):
        require_samples(torch.utils.data.DataLoader(samples))
    for plain in ((x, y), samples):
        require_samples(plain)
