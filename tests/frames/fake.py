"""A framework of forty lines: a linear model in numpy, for tests of live training without any real one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pliant.errors import BadInput
from pliant.train.live.arrays.frame import Array
from pliant.train.live.arrays.job import ArrayJob, TrainArguments
from pliant.train.live.arrays.run import ArrayRun
from pliant.train.live.data.tools import ArrayTools
from pliant.train.live.job import prepare_join


class FakeFrame:
    """Weights and a bias, SGD with momentum, and the mean of the inputs as a moving value."""

    dtype = np.float64
    keeps_values = True
    about = (("model", "a line"),)

    def __init__(self, features: int, rate: float, own_seed: int) -> None:
        chance = np.random.Generator(np.random.PCG64(own_seed))
        self.arrays_now: list[Array] = [chance.normal(size=features), np.zeros(1)]
        self.momentum: list[Array] = [np.zeros(features), np.zeros(1)]
        self.mean: Array = np.zeros(features)
        self.shapes = [array.shape for array in self.arrays_now]
        self.rate = rate
        self.key = 0
        self.decay = 0.9  # of the momentum
        self.shown: Sequence[Array] | None = None

    def arrays(self, grads: Any) -> Sequence[Array | None]:
        return [*grads]

    def apply(self, sums: Sequence[Array | None], scale: float) -> None:
        given = [0.0 if each is None else each * scale for each in sums]
        self.momentum = [self.decay * m + g for m, g in zip(self.momentum, given, strict=True)]
        self.arrays_now = [a - self.rate * m for a, m in zip(self.arrays_now, self.momentum, strict=True)]

    def apply_own(self, grads: Any, scale: float) -> None:
        self.apply(grads, scale)

    def moves(self) -> list[Array]:
        return [self.mean]

    def set_moves(self, arrays: Sequence[Array]) -> None:
        (self.mean,) = arrays

    def value(self) -> Any:
        return {"arrays": self.arrays_now, "momentum": self.momentum, "rate": self.rate}

    def install(self, value: Any) -> None:
        self.arrays_now, self.momentum = ([np.array(each) for each in value[key]] for key in ("arrays", "momentum"))
        self.rate = value["rate"]

    def trained(self) -> list[Array]:
        return self.arrays_now

    def show(self, arrays: Sequence[Array] | None) -> None:
        self.shown = arrays

    def loss_scale(self) -> float:
        return 1.0

    def require_plain_sgd(self) -> None:
        if self.decay:
            raise BadInput("run.average_models needs SGD without momentum. Set decay to 0.")

    def rates(self) -> list[float]:
        return [self.rate, self.rate]

    def seed(self, key: int) -> None:
        self.key = key

    def hyperparameters(self) -> dict[str, float]:
        return {"rate": self.rate}

    def set_hyperparameter(self, name: str, value: float) -> None:
        setattr(self, name, value)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        yield

    def bits(self) -> tuple[tuple[str, str], ...]:
        return (("numpy", np.__version__),)

    def gradients(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        """Return a loss and its gradients, with some noise by the key. Changes the moving mean."""
        weights, bias = self.shown or self.arrays_now
        chance = np.random.Generator(np.random.PCG64(self.key))
        error = x @ weights + bias[0] - y + 0.01 * chance.normal()
        self.mean = 0.9 * self.mean + 0.1 * x.mean(axis=0)
        return float(np.mean(error**2)), [2 * x.T @ error / len(x), np.array([2 * error.mean()])]


class FakeRun(ArrayRun):
    def step(self, grads: Any, *, weight: float | None = None) -> bool:
        return self._step(grads, weight)


class FakeJob(ArrayJob):
    def train(self, frame: FakeFrame, dataset: Any, **given: Any) -> FakeRun:
        self._open_once()
        tools = ArrayTools()
        whole: dict[str, Any] = {
            "epochs": 1,
            "max_steps": None,
            "seed": 0,
            "slots": None,
            "part": None,
            "order": "shuffled",
            "samples_per_epoch": None,
            "state": None,
            "clip_norm": None,
            "nonfinite": "raise",
            "checkpoint_dir": None,
            "collate_fn": None,
            "stall_s": 300.0,
            "deterministic": False,
            "other_bits": False,
            "verify": 0,
            "verify_slots": 0.0,
            **given,
        }
        loop, engine = self._begin(frame, dataset, tools, TrainArguments(**whole))
        return self._opened(FakeRun(loop, engine, tools, *self._evaluation))


def join() -> FakeJob:
    return FakeJob(*prepare_join(lambda: None))
