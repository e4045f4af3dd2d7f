"""The optimizers of Keras in the adapters of Keras and TensorFlow: rates that follow a schedule, and a scaled loss."""

from typing import Any

import pytest

keras = pytest.importorskip("keras", reason="run make frameworks")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

from pliant.keras.frame import KerasFrame  # noqa: E402  # needs keras
from pliant.train.live.arrays.moves import ArrayMoves  # noqa: E402
from pliant.train.live.arrays.state import ArrayState  # noqa: E402
from pliant.train.state.transfer import copy_state  # noqa: E402

OPTIMIZERS = keras.optimizers


def keras_frame(optimizer: Any) -> KerasFrame:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer=optimizer, loss="mse")
    return KerasFrame(model)


def tensorflow_frame(optimizer: Any) -> Any:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another framework: set KERAS_BACKEND to tensorflow")
    import tensorflow as tf

    from pliant.tensorflow.frame import TensorflowFrame

    return TensorflowFrame([tf.Variable(tf.ones((3, 2)))], optimizer, [])


FRAMES = [keras_frame, tensorflow_frame]


@pytest.mark.parametrize("frame_of", FRAMES)
@pytest.mark.parametrize("wrap", [lambda each: each, OPTIMIZERS.LossScaleOptimizer])
def test_a_schedule_is_no_number_to_override(frame_of: Any, wrap: Any) -> None:
    rate = OPTIMIZERS.schedules.ExponentialDecay(0.5, 1, 0.5)
    frame = frame_of(wrap(OPTIMIZERS.SGD(rate)))
    state = ArrayState(frame, ArrayMoves(frame), {})
    frame.optimizer.iterations.assign(3)
    state.install(copy_state(state.capture()))
    assert state.choose_hyperparameters(from_script=True) == []
    assert frame.hyperparameters() == {}


@pytest.mark.parametrize("frame_of", FRAMES)
@pytest.mark.parametrize("wrap", [lambda each: each, OPTIMIZERS.LossScaleOptimizer])
def test_a_number_is_overridden(frame_of: Any, wrap: Any) -> None:
    frame = frame_of(wrap(OPTIMIZERS.SGD(0.5)))
    state = ArrayState(frame, ArrayMoves(frame), {})
    frame.set_hyperparameter("learning_rate", 0.25)
    (line,) = state.choose_hyperparameters(from_script=True)
    assert line == "learning_rate is 0.5 in the script and 0.25 in the checkpoint: the script's is used"
    assert frame.hyperparameters() == {"learning_rate": 0.5}
