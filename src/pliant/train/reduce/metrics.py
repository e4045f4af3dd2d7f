"""Values passed to `run.log` in a step, by micro-batch and name, weighted like the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from pliant.errors import BadInput
from pliant.train.reduce.control_row import LOGGED_MAX


@dataclass(frozen=True, slots=True)
class LoggedValues:
    """The values logged in one micro-batch, times its weight."""

    weight: float
    values: Mapping[str, float]


NOTHING = LoggedValues(0.0, {})


class StepMetrics:
    """The values of the current micro-batch, and those of the finished ones."""

    def __init__(self) -> None:
        self._current: dict[str, object] = {}
        self._slot = -1
        self._kept: dict[int, LoggedValues] = {}  # by the first slot of the micro-batch
        self.names: tuple[str, ...] = ()  # as logged last, also for a step that others computed

    def begin(self, slot: int) -> None:
        """Start the micro-batch whose first slot this is."""
        self._slot = slot
        self._current = {}

    def log(self, values: Mapping[str, object]) -> None:
        """Record values of this micro-batch; a name logged twice keeps the last value."""
        self._current |= dict(values)
        if len(self._current) > LOGGED_MAX:
            raise BadInput(f"A step can log at most {LOGGED_MAX} values, not {len(self._current)}. Log fewer names.")

    def finish(self, weight: float) -> None:
        """Finish the micro-batch: its values weigh as much as its gradient, and nothing without a weight."""
        if not weight or not self._current:
            self.drop()
            return
        if self._kept and set(self._current) != set(self.names):
            raise BadInput(
                f"A step must log the same names in all its micro-batches: {sorted(self._current)} here, "
                f"{list(self.names)} before."
            )
        weighted = {name: weight * float(value) for name, value in self._current.items()}  # type: ignore[arg-type]  # a tensor
        self._kept[self._slot] = LoggedValues(weight, weighted)
        self.names = tuple(sorted(weighted))

    def drop(self) -> None:
        """Discard the values of the micro-batch, and keep the names."""
        if not self._kept:
            self.names = tuple(sorted(self._current))

    def clear(self) -> None:
        """Discard all values: the step is applied, or its gradients are dropped."""
        self._kept = {}

    def of(self, slot: int) -> LoggedValues:
        """Return the values logged in the micro-batch that begins with this slot."""
        return self._kept.get(slot, NOTHING)

    @property
    def weight(self) -> float:
        """The weight of the micro-batches that logged something."""
        return sum(part.weight for part in self._kept.values())

    @property
    def sums(self) -> tuple[float, ...]:
        """The sums over all finished micro-batches, in the order of `names`."""
        if not self._kept:
            return ()
        return tuple(sum(part.values.get(name, 0.0) for part in self._kept.values()) for name in self.names)

    @property
    def names_hash(self) -> int:
        """A hash of the names; 0 if nothing was logged."""
        if not self._kept:
            return 0
        joined = "\0".join(self.names).encode()
        return int.from_bytes(blake2b(joined, digest_size=8, person=b"pliant names").digest(), "little") | 1
