"""The gradient noise scale of a run, as an object of its state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pliant.core.policy.noise_scale import NoiseAverages, average_noise, measure_noise, noise_scale
from pliant.errors import BadInput

SQUARE, PARTS = "pliant.square", "pliant.parts"  # logged with each item, beside the user's values
DECAY = 0.9


class NoiseScale:
    """The gradient noise scale, measured in every step. Pass it to `job.train` in `state=`.

    `value` is the batch size beyond which a larger batch gains little. It comes from reduced gradients, so it is equal
    on every member, and a new member and a checkpoint have it. The items of a step are its small batches: a step with a
    single item measures nothing. It takes two of the values that a step can log.
    """

    def __init__(self, decay: float = DECAY) -> None:
        if not _is_decay(decay):
            raise BadInput(f"decay must be a number from 0 to below 1, got {decay!r}.")
        self._decay = float(decay)
        self._averages = NoiseAverages()

    @property
    def value(self) -> float | None:
        """The noise scale in samples; None before the first measurement, or while the gradient is lost in noise."""
        return noise_scale(self._averages)

    @property
    def measured(self) -> int:
        """The number of steps that were measured."""
        return self._averages.measured

    @property
    def gradient_square(self) -> float:
        """The average square of the true gradient's norm."""
        return self._averages.square

    @property
    def variance(self) -> float:
        """The average variance of the gradient of one sample, summed over all parameters."""
        return self._averages.variance

    def state_dict(self) -> dict[str, float]:
        found = self._averages
        return {
            "decay": self._decay,
            "square": found.square,
            "variance": found.variance,
            "measured": found.measured,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self._decay = float(state_dict["decay"])
        square, variance = float(state_dict["square"]), float(state_dict["variance"])
        self._averages = NoiseAverages(square, variance, int(state_dict["measured"]))

    def log_of_part(self, square: float, weight: float) -> dict[str, float]:
        """Return the values to log for an item whose gradient has this square."""
        return {SQUARE: square, PARTS: 1.0 / weight if weight else 0.0}

    def apply(self, metrics: dict[str, float], whole_square: float, weight: float) -> None:
        """Take the measurement of an applied step out of its metrics, and average it."""
        part_square, parts = metrics.pop(SQUARE, 0.0), metrics.pop(PARTS, 0.0)
        if weight and (found := measure_noise(part_square, parts, whole_square, weight)) is not None:
            self._averages = average_noise(self._averages, found, self._decay)


def noise_scale_of(others: Iterable[object]) -> NoiseScale | None:
    """Return the noise scale among the objects of a run's state."""
    found = [other for other in others if isinstance(other, NoiseScale)]
    if len(found) > 1:
        raise BadInput(f"state= has {len(found)} objects of NoiseScale. Pass one.")
    return found[0] if found else None


def _is_decay(value: object) -> bool:
    return isinstance(value, int | float) and 0.0 <= value < 1.0
