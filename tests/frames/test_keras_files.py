"""Keras' callbacks that write files: rank 0 writes, and all members decide the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras", reason="run make frameworks")
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

from pliant.errors import BadInput  # noqa: E402
from pliant.keras.callbacks import CallbackMemory  # noqa: E402
from pliant.keras.fit import Fit  # noqa: E402  # needs keras

CALLBACKS = keras.callbacks
STEPS = 2  # in an epoch
EPOCHS = 3


class Grid:
    epochs = EPOCHS
    steps_per_epoch = STEPS

    def index_in_epoch(self, step: int) -> int:
        return (step - 1) % STEPS

    def ends_epoch(self, step: int) -> bool:
        return step % STEPS == 0


class Run:
    """A run whose member has the ranks that the test names, by step. It trains nothing."""

    def __init__(self, ranks: list[int], model: Any) -> None:
        self._loop, self._ranks, self._model = self, ranks, model
        self.grid, self.total_steps, self.complete = Grid(), STEPS * EPOCHS, False
        self.step_number, self.rank = 0, 0
        self.metrics: dict[str, float] = {}

    def epochs(self) -> Any:
        for number in range(EPOCHS):
            yield Epoch(self, number)
        self.complete = True

    def step(self, batch: int) -> bool:
        self._model.optimizer.iterations.assign(self.step_number)
        self.metrics = {"loss": float(batch)}
        return True


class Epoch:
    def __init__(self, run: Run, number: int) -> None:
        self._run, self.number = run, number

    def __iter__(self) -> Any:
        for step in range(self.number * STEPS + 1, self.number * STEPS + STEPS + 1):
            self._run.step_number, self._run.rank = step, self._run._ranks[step - 1]
            yield 10 - step


def fit(ranks: list[int], *callbacks: Any, verbose: bool = False) -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    model.optimizer.build(model.trainable_variables)
    run: Any = Run(ranks, model)
    losses = iter([3.0, 2.0, 2.5])
    return Fit(run, model, CallbackMemory(), callbacks, lambda: {"val_loss": next(losses)}, verbose=verbose).train()


FIRST, OTHER = [0] * 6, [1] * 6


def test_a_model_is_saved_by_rank_zero_and_all_know_the_best(tmp_path: Path) -> None:
    paths = [tmp_path / "first.keras", tmp_path / "other.keras"]
    made = [CALLBACKS.ModelCheckpoint(path, "val_loss", save_best_only=True) for path in paths]
    for ranks, each in zip((FIRST, OTHER), made, strict=True):
        fit(ranks, each)
    assert [each.best for each in made] == [2.0, 2.0]
    assert [path.exists() for path in paths] == [True, False]
    keras.models.load_model(paths[0])


def test_a_member_saves_from_the_step_on_where_it_has_rank_zero(tmp_path: Path) -> None:
    saved = CALLBACKS.ModelCheckpoint(tmp_path / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=1)
    fit([1, 1, 1, 0, 0, 1], saved)
    assert {path.name for path in tmp_path.iterdir()} == {"2-2.weights.h5", "3-1.weights.h5"}


def test_rows_of_a_log_go_on_where_rank_zero_moves(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("of an earlier training\n")
    fit([0, 0, 0, 1, 1, 1], CALLBACKS.CSVLogger(path))
    fit([1, 1, 1, 0, 0, 0], CALLBACKS.CSVLogger(path))
    assert path.read_text().splitlines() == ["epoch,loss,val_loss", "0,8.5,3.0", "1,6.5,2.0", "2,4.5,2.5"]


class Board(CALLBACKS.TensorBoard):  # type: ignore[name-defined]
    """Notes its calls, and needs no package."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def set_model(self, model: Any) -> None:
        self.calls.append("opened")

    def on_train_begin(self, logs: Any = None) -> None:
        self._global_train_batch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.calls.append((epoch, self._global_train_batch))

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.calls.append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._global_train_batch += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append("ended")

    def on_train_end(self, logs: Any = None) -> None:
        self.calls.append("closed")


def test_tensorboard_is_open_while_a_member_has_rank_zero() -> None:
    board, other = Board(), Board()
    fit([1, 1, 1, 0, 0, 1], board)
    fit(OTHER, other)
    assert board.calls == ["opened", (1, 3), 1, "ended", (2, 4), 0, "closed"]
    assert other.calls == []


def test_only_rank_zero_shows_progress(capfd: pytest.CaptureFixture[str]) -> None:
    fit(OTHER, verbose=True)
    assert capfd.readouterr().out == ""
    fit(FIRST, verbose=True)
    assert "Epoch 3/3" in capfd.readouterr().out


def test_callbacks_that_restore_a_training_by_themselves_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"BackupAndRestore saves or restores the training by itself.*checkpoint_dir="):
        fit(FIRST, CALLBACKS.BackupAndRestore(tmp_path))


def test_a_model_that_is_not_saved_is_otherwise_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopping(CALLBACKS.ModelCheckpoint):  # type: ignore[name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert np.shape(self.model.get_weights()[0]) == (2, 1)
            self.model.stop_training = self.model.optimizer.iterations == 2

    class Finished(Exception):
        pass

    def finish(_run: Any, _why: str) -> None:
        raise Finished

    monkeypatch.setattr(Run, "finish", finish, raising=False)
    with pytest.raises(Finished):
        fit(OTHER, Stopping("never.keras"))
