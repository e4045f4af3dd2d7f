"""Properties of a Keras optimizer, for the adapters of Keras and TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pliant.errors import BadInput

EXTRAS = (
    "momentum",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "gradient_accumulation_steps",
)


def require_plain_sgd(optimizer: Any, variables: Iterable[Any]) -> None:
    """Raise BadInput unless a step subtracts the gradient times the rate, and nothing else changes the variables."""
    kind = type(optimizer)
    if (kind.__module__.partition(".")[0], kind.__name__) != ("keras", "SGD"):
        raise BadInput(f"run.average_models needs keras.optimizers.SGD(rate), got {kind.__name__}.")
    for name in EXTRAS:
        if getattr(optimizer, name, None):
            raise BadInput(
                f"run.average_models needs SGD without {name}, got {name}={getattr(optimizer, name)!r}. "
                "Pass keras.optimizers.SGD(rate)."
            )
    if any(getattr(variable, "constraint", None) is not None for variable in variables):
        raise BadInput("run.average_models cannot be combined with a constraint of a variable. Remove the constraint.")


def loss_scale_of(optimizer: Any) -> Any:
    """Return the factor by which `optimizer.scale_loss` scales: a number, or a variable of LossScaleOptimizer."""
    dynamic = getattr(optimizer, "dynamic_scale", None)
    return (getattr(optimizer, "loss_scale_factor", None) or 1.0) if dynamic is None else dynamic


def rate_is_number(optimizer: Any) -> bool:
    """Return whether the learning rate can be set: it is neither a schedule nor another function."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return hasattr(getattr(inner, "_learning_rate", None), "assign")
