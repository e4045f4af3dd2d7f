"""A compiled Keras model as arrays, whatever framework Keras runs on."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from pliant.core.model.fingerprint import Fingerprint
from pliant.errors import BadInput
from pliant.keras.bases import Logs, base_of
from pliant.train.live.arrays.frame import Array, Gradients, aligned
from pliant.train.live.arrays.hashing import arrays_hash
from pliant.train.live.arrays.job import digest_of
from pliant.train.live.arrays.keras_optimizers import loss_scale_of, rate_is_number, require_plain_sgd
from pliant.train.live.arrays.keras_seeds import seed_state

RATE = "learning_rate"
_BATCHED = ("tensorflow.python.data.", "torch.utils.data.dataloader")  # modules whose classes make batches


class KerasFrame:
    """A model's variables by their role.

    Trained variables get gradients. Moving ones, such as BatchNorm's statistics, get the mean of what the parts of a
    step changed. The states of seed generators are set from the key of each part. Frozen variables and those of the
    optimizer, with a loss scale if there is one, are equal on all members. Variables are known by position: their
    names count what was built before in the process.
    """

    dtype = np.float32

    def __init__(self, model: Any) -> None:
        if not isinstance(model, keras.Model) or not getattr(model, "compiled", False) or not model.built:
            raise BadInput(
                "model must be a keras.Model that is built and compiled: call model.compile before job.train."
            )
        if not model.trainable_variables:
            raise BadInput("The model has no variable to train.")
        require_default(model, "train_step")
        _require_means(model)
        self.model = model
        self.optimizer = model.optimizer
        if not self.optimizer.built:
            self.optimizer.build(model.trainable_variables)
        layers = list(model._flatten_layers())
        self._seeds = _distinct([each.state for layer in layers for each in getattr(layer, "_seed_generators", ())])
        ids = {id(variable) for variable in self._seeds}
        moving = [variable for layer in layers for variable in layer._non_trainable_variables]
        self._moving = [variable for variable in _distinct(moving) if id(variable) not in ids]
        ids |= {id(variable) for variable in (*self._moving, *model.trainable_variables)}
        frozen = [variable for variable in model.variables if id(variable) not in ids]
        self._rest = [*model.trainable_variables, *frozen, *self.optimizer.variables]
        self.shapes = [tuple(variable.shape) for variable in model.trainable_variables]
        kinds = [(tuple(each.shape), _kind(each)) for each in (*self._rest, *self._moving)]
        self.about = (
            ("framework", "keras"),
            ("model", f"{type(model).__name__} with {model.count_params():,} parameters ({digest_of(kinds)})"),
            ("optimizer", type(self.optimizer).__name__),
        )
        self.base = base_of(model)
        self.keeps_values = keras.backend.backend() == "jax"
        self._centre: list[Any] | None = None  # values of the trained variables, while these have others
        self._showing = threading.Lock()
        self._key = 0
        self._has_metrics = False

    @property
    def scales_loss(self) -> bool:
        """True if the optimizer scales the loss, and skips steps whose gradient is not finite by itself."""
        return isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)

    def part(self, batch: Any) -> tuple[Logs, Any]:
        """Return the metrics and the gradients of one batch."""
        return self.base.part(*keras.utils.unpack_x_y_sample_weight(batch))

    def warm_up(self, batch: Any) -> None:
        """Compile for the shape of a batch, and leave no trace."""
        kept = [np.array(keras.ops.convert_to_numpy(each)) for each in (*self._moving, *self._seeds)]
        if not self._has_metrics:
            self.evaluate(batch)  # metrics make their variables at their first use, which must not be compiled
            self._has_metrics = True
        self.part(batch)
        for variable, array in zip((*self._moving, *self._seeds), kept, strict=True):
            variable.assign(array)

    def compile(self) -> None:
        """Compile the step of the optimizer, and leave no trace."""
        kept = [np.array(keras.ops.convert_to_numpy(each)) for each in self._rest]
        self.apply([_aligned_zeros(shape) for shape in self.shapes], 0.0)
        for variable, array in zip(self._rest, kept, strict=True):
            variable.assign(array)

    def evaluate(self, batch: Any) -> dict[str, Any]:
        """Return the sums of the loss and the metrics over a batch, without training."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        self.model.reset_metrics()
        y_pred = self.model(x, training=False)
        loss = self.model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=False)
        logs = {**self.model.compute_metrics(x, y, y_pred, weight), "loss": loss}
        count = len(keras.tree.flatten(x)[0])
        return {"count": count, **{name: number(value) * count for name, value in logs.items()}}

    # -------------------------------------------------------------------------------------------------- the frame

    def arrays(self, grads: Any) -> Gradients:
        return self.base.arrays(grads)

    def apply(self, sums: Gradients, scale: float) -> None:
        self.base.apply(sums, scale)

    def apply_own(self, grads: Any, scale: float) -> None:
        self.base.apply_own(grads, scale)

    def moves(self) -> list[Array]:
        return [np.asarray(keras.ops.convert_to_numpy(variable)) for variable in self._moving]

    def set_moves(self, arrays: Sequence[Array]) -> None:
        for variable, array in zip(self._moving, arrays, strict=True):
            variable.assign(array)

    def value(self) -> Any:
        with self._showing:
            trained = self.base.trained() if self._centre is None else self._centre
            arrays = [np.asarray(keras.ops.convert_to_numpy(each)) for each in (*trained, *self._rest[len(trained) :])]
        return {"framework": "keras", "arrays": arrays}

    def install(self, value: Any) -> None:
        if not isinstance(value, dict) or value.get("framework") != "keras" or len(value["arrays"]) != len(self._rest):
            raise BadInput("The received state belongs to another model. Start every member with the same script.")
        for variable, array in zip(self._rest, value["arrays"], strict=True):
            variable.assign(array)

    def trained(self) -> list[Array]:
        return [np.asarray(keras.ops.convert_to_numpy(each)) for each in self.base.trained()]

    def show(self, arrays: Sequence[Array] | None) -> None:
        with self._showing:
            if arrays is not None:
                pairs = zip(arrays, self.model.trainable_variables, strict=True)
                own = [keras.ops.convert_to_tensor(array, variable.dtype) for array, variable in pairs]
                self._centre = self.base.trained()
                self.base.set_trained(own)
            elif self._centre is not None:
                self.base.set_trained(self._centre)
                self._centre = None

    def loss_scale(self) -> float:
        return number(loss_scale_of(self.optimizer))

    def require_plain_sgd(self) -> None:
        require_plain_sgd(self.optimizer, self.model.trainable_variables)

    def rates(self) -> list[float]:
        return [number(self.optimizer.learning_rate)] * len(self.shapes)

    def seed(self, key: int) -> None:
        self._key = key
        self.base.seed(key)
        for at, variable in enumerate(self._seeds):
            variable.assign(seed_state(key, at).astype(variable.dtype))

    def hyperparameters(self) -> dict[str, float]:
        return {RATE: number(self.optimizer.learning_rate)} if rate_is_number(self.optimizer) else {}

    def set_hyperparameter(self, name: str, value: float) -> None:
        setattr(self.optimizer, name, value)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        kept = self.moves()
        try:
            yield
        finally:
            self.set_moves(kept)
            self.seed(self._key)

    def bits(self) -> Fingerprint:
        base = keras.backend.backend()
        chance = np.random.Generator(np.random.PCG64(5))
        x, w = (keras.ops.convert_to_tensor(chance.normal(size=s).astype("float32")) for s in ((64, 65), (65, 96)))
        hidden = keras.ops.gelu(keras.ops.matmul(x, w))
        total = keras.ops.softmax(keras.ops.matmul(hidden, keras.ops.transpose(hidden)))
        found = arrays_hash([np.asarray(keras.ops.convert_to_numpy(each)) for each in (hidden, total)])
        version = importlib.import_module(base).__version__
        return (
            ("keras", f"{keras.__version__} on {base} {version}"),
            ("threads", str(len(os.sched_getaffinity(0)))),
            ("fingerprint", f"{found:016x}"),
        )


def require_default(model: Any, name: str) -> None:
    """Raise BadInput if a model has a `train_step` or `test_step` of its own, which nothing would call."""
    if getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name):
        raise BadInput(
            f"{type(model).__name__} has its own {name}, which pliant.keras cannot share among members. Move what it "
            "computes to compute_loss and compute_metrics of the model, or write the loop yourself with "
            "pliant.tensorflow or pliant.jax."
        )


def _require_means(model: Any) -> None:
    """Raise BadInput for a loss that is a sum over samples: its gradient would depend on the sizes of the items."""
    for loss in keras.tree.flatten(model.loss):
        if getattr(loss, "reduction", None) == "sum":
            raise BadInput(
                f'The loss {type(loss).__name__} has reduction="sum". Items have different sizes, so the loss must be '
                "a mean over samples: remove reduction, and multiply the learning rate by the batch size."
            )


def require_samples(data: Any) -> None:
    """Raise BadInput for data that comes in batches of its own."""
    kind = type(data)
    makes_batches = any(each.__module__.startswith(_BATCHED) for each in kind.__mro__)
    if makes_batches or isinstance(data, keras.utils.PyDataset):
        raise BadInput(
            f"{kind.__name__} makes batches itself, but Pliant cuts each batch for the members. Pass the samples "
            "behind it: a tuple of arrays, or an object with len and [index] whose samples are (x, y)."
        )


def number(value: Any) -> float:
    """Return a scalar of Keras as a number."""
    return float(keras.ops.convert_to_numpy(value))


def _kind(variable: Any) -> str:
    """Return a variable's type. The width of an integer differs between the frameworks below Keras."""
    return "int" if "int" in str(variable.dtype) else str(variable.dtype)


def _distinct(variables: list[Any]) -> list[Any]:
    return list({id(variable): variable for variable in variables}.values())


def _aligned_zeros(shape: tuple[int, ...]) -> Array:
    return aligned(int(np.prod(shape, dtype=np.int64)), np.float32).reshape(shape)
