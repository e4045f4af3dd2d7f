"""The memory of Keras' callbacks: what a member that joins later receives."""

from typing import Any

import pytest

keras = pytest.importorskip("keras", reason="run make frameworks")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

from pliant.keras.callbacks import CallbackMemory  # noqa: E402  # needs keras


def net() -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="mse", metrics=["mae"])
    return model


def member(*callbacks: Any) -> CallbackMemory:
    """Return the memory of callbacks whose training begins."""
    keras.callbacks.CallbackList([*callbacks], model=net()).on_train_begin()
    memory = CallbackMemory()
    memory.watch(callbacks)
    return memory


MONITORS = [
    lambda: keras.callbacks.EarlyStopping("val_loss", min_delta=0.01),
    lambda: keras.callbacks.ReduceLROnPlateau("val_loss", min_delta=0.01),
]


@pytest.mark.parametrize("made", MONITORS)
def test_a_monitor_that_joins_decides_as_the_others_do(made: Any) -> None:
    one, other = made(), made()
    stayed, joined = member(one), member(other)
    one.on_epoch_end(0, {"val_loss": 1.0})
    joined.load_state_dict(stayed.state_dict())
    assert joined.state_dict() == stayed.state_dict()
    for each in (one, other):
        each.on_epoch_end(1, {"val_loss": 0.995})  # improved by less than min_delta
    assert (other.wait, other.best, other.min_delta) == (one.wait, one.best, one.min_delta) == (1, 1.0, -0.01)


@pytest.mark.parametrize("made", MONITORS)
def test_a_monitor_that_goes_back_to_before_its_first_epoch_decides_as_one_that_joins(made: Any) -> None:
    one, other = made(), made()
    memory, joined = member(one), member(other)
    before = memory.state_dict()
    one.on_epoch_end(0, {"val_loss": 1.0})
    for each in (memory, joined):
        each.load_state_dict(before)
    assert joined.state_dict() == memory.state_dict() == before
    for each in (one, other):
        each.on_epoch_end(0, {"val_loss": 2.0})
        each.on_epoch_end(1, {"val_loss": 1.995})
    assert (other.wait, other.best, other.min_delta) == (one.wait, one.best, one.min_delta) == (1, 2.0, -0.01)
