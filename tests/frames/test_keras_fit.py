"""`run.fit` of one member alone: the calls of callbacks, also after it resumes within an epoch."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="run make frameworks")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

import pliant.keras as pliant  # noqa: E402  # needs keras
from pliant.errors import BadInput  # noqa: E402

CALLBACK: Any = keras.callbacks.Callback
STEPS = 4  # in an epoch


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PLIANT_COORDINATOR", "PLIANT_JOB", "WORLD_SIZE", "PLIANT_CHECKPOINT_DIR"):
        monkeypatch.delenv(name, raising=False)


def points() -> tuple[Any, Any]:
    x = np.random.Generator(np.random.PCG64(3)).normal(size=(8 * STEPS, 3)).astype(np.float32)
    return x, x.sum(1)


def net(optimizer: Any = None) -> Any:
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer or keras.optimizers.SGD(0.5), loss="mse", metrics=["mae"])
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 2, **given: Any) -> Any:
    """Train a model alone, with parts of two samples, and return the history."""
    with pliant.join() as job:
        run = job.train(model, points(), batch_size=8, part=2, epochs=epochs, **given)
        return run.fit(callbacks=[*callbacks], validation_data=points())


class Log(CALLBACK):
    """Notes the calls, with the learning rate. At a step it interrupts the training."""

    def __init__(self, interrupted_at: int = 0) -> None:
        super().__init__()
        self._interrupted_at = interrupted_at
        self.calls: list[Any] = []
        self.epochs_begun = 0

    def _note(self, name: str, at: int) -> None:
        self.calls.append((name, at, float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs_begun += 1
        self._note("epoch", epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._note("batch", batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.iterations == self._interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._note("end", epoch)


def halving() -> Any:
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)


def test_callbacks_are_called_as_by_model_fit() -> None:
    log, theirs = Log(), Log()
    fit(net(), halving(), log)
    net().fit(*points(), batch_size=8, epochs=2, verbose=0, callbacks=[halving(), theirs])
    assert log.calls == theirs.calls


@pytest.mark.parametrize("at", [1, STEPS, STEPS + 1])
def test_a_resumed_epoch_does_not_begin_again_for_the_state(tmp_path: Path, at: int) -> None:
    whole, log, first, second = net(), Log(), Log(at), Log()
    fit(whole, halving(), log, epochs=3)
    with pytest.raises(SystemExit):
        fit(net(), halving(), first, epochs=3, checkpoint_dir=tmp_path)
    model = net()
    fit(model, halving(), second, epochs=3, checkpoint_dir=tmp_path)
    assert second.calls == log.calls
    assert (second.epochs_begun, second.calls[-1]) == (3, ("end", 2, 0.0625))
    for one, other in zip(whole.get_weights(), model.get_weights(), strict=True):
        assert other == pytest.approx(one, rel=1e-5)


def test_the_history_goes_on_after_a_resume(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        fit(net(), Log(STEPS + 1), checkpoint_dir=tmp_path)
    resumed, whole = fit(net(), Log(), checkpoint_dir=tmp_path), fit(net(), Log())
    assert resumed.epoch == whole.epoch == [0, 1]
    assert resumed.history.keys() == whole.history.keys()
    for name, values in whole.history.items():
        assert resumed.history[name] == pytest.approx(values, rel=1e-5)


class Stop(CALLBACK):
    def __init__(self, after: int) -> None:
        super().__init__()
        self._after = after

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = int(self.model.optimizer.iterations) == self._after


@pytest.mark.parametrize("after", [1, STEPS, STEPS + 2])
def test_stop_training_counts_after_each_batch(after: int) -> None:
    logs = (log, theirs) = Log(), Log()
    models = model, other = net(), net()
    found = fit(model, Stop(after), log)
    other.fit(*points(), batch_size=8, epochs=2, verbose=0, callbacks=[Stop(after), theirs])
    assert [each.optimizer.iterations for each in models] == [after, after]
    assert log.calls == theirs.calls
    assert len(found.epoch) == 1 + (after > STEPS)
    assert {each.model.stop_training for each in logs} == {True}


def test_averaged_weights_are_in_the_model_at_the_end() -> None:
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)
    model = net(optimizer)
    fit(model)
    for weights, average in zip(model.get_weights(), optimizer._model_variables_moving_average, strict=True):
        assert weights == pytest.approx(keras.ops.convert_to_numpy(average))


def test_a_training_or_test_step_of_its_own_is_refused() -> None:
    def step(self: Any, *given: Any) -> None:
        raise AssertionError("it is called")

    for name, match in (
        ("train_step", "Own has its own train_step.*pliant.tensorflow"),
        ("test_step", "own test_step"),
    ):
        kind: Any = type("Own", (keras.Model,), {name: step})
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(1)(inputs))
        model.compile(optimizer="sgd", loss="mse")
        with pytest.raises(BadInput, match=match):
            fit(model)
