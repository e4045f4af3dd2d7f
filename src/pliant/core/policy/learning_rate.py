"""Rules for the learning rate of a batch that is larger than the one for which the rate was found."""

from __future__ import annotations

import math

from pliant.errors import BadInput

LINEAR, ROOT = "linear", "sqrt"


def scaled_rate(rate: float, *, found_with: float, batch: float, rule: str = LINEAR) -> float:
    """Return the learning rate for `batch` samples, from the `rate` that was found with another batch.

    `linear` keeps the step for each sample and suits SGD. `sqrt` keeps the noise of a step and suits Adam.
    """
    if not (0.0 < rate < math.inf):
        raise BadInput(f"The rate must be a number above 0, got {rate!r}.")
    if not (0.0 < found_with < math.inf and 0.0 < batch < math.inf):
        raise BadInput(f"The batches must be numbers above 0, got found_with={found_with!r} and batch={batch!r}.")
    if rule not in (LINEAR, ROOT):
        raise BadInput(f'The rule must be "{LINEAR}" or "{ROOT}", got {rule!r}.')
    ratio = batch / found_with
    return rate * (ratio if rule == LINEAR else math.sqrt(ratio))


def warmed_up_rate(rate: float, step: int, *, steps: int, start: float = 0.0) -> float:
    """Return the learning rate of `step`, counted from 1. It rises from `start` to `rate` at step `steps`."""
    if steps < 0:
        raise BadInput(f"The number of warm-up steps must be 0 or more, got {steps}.")
    if step < 1:
        raise BadInput(f"Steps are counted from 1, got {step}.")
    return rate if step >= steps else start + (rate - start) * step / steps
