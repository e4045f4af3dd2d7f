"""The optimizers of Keras in the adapters of Keras and TensorFlow: rates that follow a schedule, and a scaled loss."""

from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="run make frameworks")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

import pliant.keras as pliant  # noqa: E402  # needs keras
from pliant.keras.frame import KerasFrame  # noqa: E402
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


def alone(monkeypatch: pytest.MonkeyPatch, optimizer: Any, **options: Any) -> tuple[list[Any], float | None]:
    """Train a member alone. Return its weights and its noise scale."""
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer=optimizer, loss="mse")
    chance = np.random.Generator(np.random.PCG64(3))
    x = chance.normal(size=(32, 3)).astype(np.float32)
    noise = pliant.NoiseScale()
    with pliant.join() as job:
        run = job.train(model, (x, x.sum(1) * 3), batch_size=8, part=2, state={"noise": noise}, **options)
        run.fit()
    return [np.asarray(each) for each in model.get_weights()], noise.value


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_gradient_is_clipped_and_measured_without_the_scale_of_its_loss(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    options: dict[str, Any] = {"clip_norm": 0.5, "deterministic": deterministic}
    weights, noise = alone(monkeypatch, OPTIMIZERS.SGD(0.5), **options)
    for optimizer in (
        OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.SGD(0.5), initial_scale=1024.0),
        OPTIMIZERS.SGD(0.5, loss_scale_factor=1024.0),
    ):
        scaled, scaled_noise = alone(monkeypatch, optimizer, **options)
        for one, other in zip(weights, scaled, strict=True):
            assert other == pytest.approx(one, rel=1e-5)
        assert scaled_noise == pytest.approx(noise, rel=1e-3)
    assert np.abs(weights[0] - 1).max() > 0.1
