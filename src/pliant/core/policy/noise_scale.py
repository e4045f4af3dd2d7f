"""The gradient noise scale: the batch size at which the noise of a gradient is as large as the gradient itself.

A step's gradient is the mean of the gradients of its parts. A part of weight b (samples, or tokens) has the true
gradient G and noise of variance tr(S)/b, so that the two squares that a step measures estimate both:

    mean of the parts' squares, by weight   |G|^2 + tr(S) * parts/weight
    square of the whole gradient            |G|^2 + tr(S) / weight

Parts may differ in weight: the mean by weight needs only their number. Both estimates are noisy and may even be
negative, so they are averaged over steps before one is divided by the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PARTS_MIN = 1.5  # below two parts, but for rounding: there is nothing to compare


@dataclass(frozen=True, slots=True)
class NoiseMeasurement:
    """One step's estimates: of the true gradient's square, and of the variance of the gradient of one sample."""

    square: float
    variance: float


@dataclass(frozen=True, slots=True)
class NoiseAverages:
    """Exponential averages of measurements; `measured` counts them."""

    square: float = 0.0
    variance: float = 0.0
    measured: int = 0


def measure_noise(
    part_square: float, parts_per_weight: float, whole_square: float, weight: float
) -> NoiseMeasurement | None:
    """Return the estimates of one step; None if it had one part only, or a gradient that is not finite.

    `part_square` is the mean of the parts' squares by weight, `parts_per_weight` their number by the step's weight.
    """
    if not parts_per_weight * weight > PARTS_MIN:  # false for NaN, too
        return None
    variance = (part_square - whole_square) / (parts_per_weight - 1.0 / weight)
    square = whole_square - variance / weight
    return NoiseMeasurement(square, variance) if math.isfinite(square + variance) else None


def average_noise(averages: NoiseAverages, found: NoiseMeasurement, decay: float) -> NoiseAverages:
    """Return the averages with one more measurement. The first one counts in full."""
    kept = decay if averages.measured else 0.0
    return NoiseAverages(
        kept * averages.square + (1.0 - kept) * found.square,
        kept * averages.variance + (1.0 - kept) * found.variance,
        averages.measured + 1,
    )


def noise_scale(averages: NoiseAverages) -> float | None:
    """Return the noise scale in samples; None before the first measurement, or while the gradient is lost in noise."""
    if averages.square <= 0.0:
        return None
    return max(averages.variance, 0.0) / averages.square
