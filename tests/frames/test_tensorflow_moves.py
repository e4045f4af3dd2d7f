"""A Keras model under a tape: its non-trainable variables are equal on all members, whatever the process did before."""

from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="run make frameworks")
keras = pytest.importorskip("keras", reason="run make frameworks")
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="Keras runs on another framework"),
]

import pliant.tensorflow as pliant  # noqa: E402  # needs tensorflow
from pliant.tensorflow.frame import TensorflowFrame  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


def net() -> Any:
    keras.utils.set_random_seed(4)
    layers = keras.layers
    stack = [layers.Dense(4), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dropout(0.5), layers.Dense(2)]
    return keras.Sequential([keras.Input((3,)), *stack])


def trained(seeds: int) -> list[Any]:
    """Train a model whose seed generators have these seeds before. Return its weights and statistics."""
    model = net()
    variables, moves = model.trainable_variables, model.non_trainable_variables
    found = [each for each in moves if "seed" in each.path]
    assert len(found) == 2
    for each in found:
        each.assign([seeds, seeds])
    x = np.random.Generator(np.random.PCG64(3)).normal(size=(16, 3)).astype(np.float32)
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pliant.join() as job:
        data = (x, (x.sum(1) > 0).astype(np.int32))
        optimizer = keras.optimizers.SGD(0.1)
        run = job.train(variables, optimizer, data, batch_size=8, slots=2, deterministic=True, moves=moves)
        for a, b in run:
            with tf.GradientTape() as tape:
                loss = loss_fn(b, model(a, training=True))
            run.step(tape.gradient(loss, [each.value for each in variables]))
    return [np.array(each) for each in model.get_weights()]


def test_the_bits_of_dropout_depend_on_the_item_and_not_on_the_process() -> None:
    for one, other in zip(trained(1), trained(5), strict=True):
        assert np.array_equal(one, other)


def test_seeds_differ_between_layers_and_items_and_are_no_moving_values() -> None:
    model = net()
    moves = model.non_trainable_variables
    frame = TensorflowFrame(model.trainable_variables, keras.optimizers.SGD(0.1), moves)
    assert [array.shape for array in frame.moves()] == [(4,), (4,)]
    seeds = []
    for key in (1 << 40, 1 << 41, 1 << 40):
        frame.seed(key)
        seeds.append([tuple(map(int, each.numpy())) for each in moves if "seed" in each.path])
    assert seeds[0] == seeds[2] != seeds[1]
    assert len(set(seeds[0])) == 2
