"""A member's own model in JAX, Keras and TensorFlow: the optimizers that it can follow, and how it is shown."""

from typing import Any

import numpy as np
import pytest

from pliant.errors import BadInput
from pliant.train.live.arrays.frame import Layout, aligned


def jax_frame(optimizer: Any) -> Any:
    from pliant.jax.frame import JaxFrame

    return JaxFrame({"a": np.zeros((3, 2), np.float32), "b": np.ones(2, np.float32)}, optimizer, None)


def jax_optimizers(name: str) -> Any:
    import optax

    rising = optax.linear_schedule(0.0, 0.1, 10)
    return {
        "sgd": optax.sgd(0.25),
        "a pair": (lambda grads, state, params: (_minus(params, grads), state), ()),
        "momentum": optax.sgd(0.1, momentum=0.9),
        "momentum from a rate of 0": optax.sgd(rising, momentum=0.9),
        "adam": optax.adam(0.1),
        "decay": optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
        "clipping": optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        "centring": optax.chain(optax.centralize(), optax.sgd(0.1)),
        "several steps in one": optax.MultiSteps(optax.sgd(0.1), 2),
    }[name]


def _minus(params: Any, grads: Any) -> Any:
    import jax

    return jax.tree.map(lambda param, grad: param - 0.25 * grad, params, grads)


@pytest.mark.parametrize("name", ["sgd", "a pair"])
def test_jax_follows_plain_sgd(name: str) -> None:
    pytest.importorskip("optax", reason="run make frameworks")
    frame = jax_frame(jax_optimizers(name))
    frame.require_plain_sgd()
    assert frame.rates() == [0.25, 0.25]
    assert np.array_equal(frame.trained()[1], np.ones(2))


def test_jax_follows_a_rate_that_begins_at_zero() -> None:
    optax = pytest.importorskip("optax", reason="run make frameworks")
    frame = jax_frame(optax.sgd(optax.linear_schedule(0.0, 1.0, 10)))
    frame.require_plain_sgd()
    assert frame.rates() == [0.0, 0.0]
    frame.compile()
    frame.apply([np.zeros((3, 2), np.float32), np.zeros(2, np.float32)], 1.0)
    assert frame.rates() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize(
    "name",
    ["momentum", "momentum from a rate of 0", "adam", "decay", "clipping", "centring", "several steps in one"],
)
def test_jax_refuses_what_does_more(name: str) -> None:
    pytest.importorskip("optax", reason="run make frameworks")
    with pytest.raises(BadInput, match=r"Pass optax\.sgd\(rate\) without momentum"):
        jax_frame(jax_optimizers(name)).require_plain_sgd()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda keras: keras.optimizers.Adam(0.1), r"needs keras\.optimizers\.SGD\(rate\), got Adam"),
        (lambda keras: keras.optimizers.SGD(0.1, momentum=0.9), "SGD without momentum, got momentum=0.9"),
        (lambda keras: keras.optimizers.SGD(0.1, clipnorm=1.0), "SGD without clipnorm"),
        (lambda keras: keras.optimizers.SGD(0.1, weight_decay=0.1), "SGD without weight_decay"),
        (lambda keras: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "SGD without gradient_accumulation"),
    ],
)
def test_keras_and_tensorflow_refuse_what_does_more(make: Any, why: str) -> None:
    keras = pytest.importorskip("keras", reason="run make frameworks")
    from pliant.train.live.arrays.keras_optimizers import require_plain_sgd

    with pytest.raises(BadInput, match=why):
        require_plain_sgd(make(keras), [])
    free, bound = (keras.Variable(np.ones(2)) for _ in range(2))
    require_plain_sgd(keras.optimizers.SGD(0.1), [free])
    bound.constraint = keras.constraints.NonNeg()
    with pytest.raises(BadInput, match="constraint"):
        require_plain_sgd(keras.optimizers.SGD(0.1), [free, bound])


def keras_frame() -> Any:
    import keras

    from pliant.keras.frame import KerasFrame

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    return KerasFrame(model)


def tensorflow_frame() -> Any:
    import keras
    import tensorflow as tf

    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras runs on another framework: set KERAS_BACKEND to tensorflow")
    from pliant.tensorflow.frame import TensorflowFrame

    return TensorflowFrame([tf.Variable(tf.ones((3, 2))), tf.Variable(tf.zeros(2))], keras.optimizers.SGD(0.1), [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("package", "make"), [("keras", keras_frame), ("tensorflow", tensorflow_frame)])
def test_the_state_and_its_memory_stay_while_another_model_is_shown(package: str, make: Any) -> None:
    pytest.importorskip(package, reason="run make frameworks")
    frame = make()
    live = frame.value()["arrays"]
    before = [np.array(array) for array in live]
    frame.show([array + 1 for array in frame.trained()])
    for array, own in zip(before, frame.trained(), strict=False):
        assert np.array_equal(own, array + 1)
    for found in (live, frame.value()["arrays"]):
        assert all(np.array_equal(a, b) for a, b in zip(before, found, strict=True))
    for _ in range(2):
        frame.show(None)
        assert all(np.array_equal(a, b) for a, b in zip(before, frame.trained(), strict=False))
    frame.apply(ones(frame), 1.0)
    assert frame.trained()[0] == pytest.approx(before[0] - 0.1)


def ones(frame: Any) -> list[Any]:
    """Return gradients in memory that TensorFlow can share."""
    layout = Layout(frame.shapes, np.float32)
    flat = aligned(layout.numel, np.float32)
    flat[:] = 1
    return layout.views(flat)
