"""The memory of Keras' callbacks: what a member that joins later receives."""

from typing import Any

import numpy as np
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


class Counting(keras.callbacks.Callback):  # type: ignore[name-defined]
    """Has values of many kinds."""

    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name  # never changes
        self._steps = 0
        self._by_name: dict[str, Any] = {"losses": [], "pair": (1, None)}
        self._file = object()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        self._by_name["losses"].append(np.float32(0.5))
        self._by_name["pair"] = (batch, True)
        self._late = [np.arange(3)]


def test_private_values_lists_and_dictionaries_are_sent_and_those_that_never_change_are_not() -> None:
    one, other = Counting("one"), Counting("other")
    stayed, joined = member(one), member(other)
    before = stayed.state_dict()
    file = other._file
    one.on_train_batch_end(3)
    sent = stayed.state_dict()
    joined.load_state_dict(sent)
    assert sent["callbacks"] == joined.state_dict()["callbacks"]
    assert sent["callbacks"][0].keys() == {"_steps", "_by_name", "_late"}
    assert (other.name, other._steps, other._file) == ("other", 1, file)
    assert other._by_name == {"losses": [0.5], "pair": (3, True)}
    one.on_train_batch_end(4)
    assert other._by_name["losses"] == sent["callbacks"][0]["_by_name"]["losses"] == [0.5], "containers are copied"
    joined.load_state_dict(before)
    assert (other._steps, other._by_name) == (0, {"losses": [], "pair": (1, None)})
    assert not hasattr(other, "_late")


def test_values_are_those_of_the_boundary_while_a_step_is_under_way() -> None:
    one = Counting()
    memory = member(one)
    memory.hold()
    one.on_train_batch_end(0)
    assert memory.state_dict()["callbacks"] == [{}]
    memory.release()
    assert memory.state_dict()["callbacks"][0]["_steps"] == 1


class Stateful(Counting):
    """Decides itself what is sent."""

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]


def test_a_callback_with_a_state_dict_sends_that() -> None:
    one, other = Stateful(), Stateful()
    stayed, joined = member(one), member(other)
    one.on_train_batch_end(0)
    joined.load_state_dict(stayed.state_dict())
    assert stayed.state_dict()["callbacks"] == [{"state_dict": {"steps": 1}}]
    assert (other._steps, other._by_name["losses"]) == (1, [])
