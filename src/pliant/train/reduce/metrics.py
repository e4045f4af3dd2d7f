"""What `run.log` was given in a step: values by part and name, weighted like the part's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from pliant.errors import BadInput
from pliant.train.reduce.control_row import LOGGED_MAX


@dataclass(frozen=True, slots=True)
class LoggedValues:
    """What was logged in one part, times the part's weight."""

    weight: float
    values: Mapping[str, float]


NOTHING = LoggedValues(0.0, {})


class StepMetrics:
    """The values of the part under way, and those of the parts kept."""

    def __init__(self) -> None:
        self._current: dict[str, object] = {}
        self._slot = -1
        self._kept: dict[int, LoggedValues] = {}  # by the first slot of the part
        self.names: tuple[str, ...] = ()  # as they were logged last, kept for a step that was computed by others

    def begin(self, slot: int) -> None:
        """A part is yielded whose first slot this is."""
        self._slot = slot
        self._current = {}

    def log(self, values: Mapping[str, object]) -> None:
        """Values of this part; a name that is logged twice keeps the last one."""
        self._current |= dict(values)
        if len(self._current) > LOGGED_MAX:
            raise BadInput(f"A step logs at most {LOGGED_MAX} values, not {len(self._current)}: log fewer names.")

    def finish(self, weight: float) -> None:
        """The part is done: its values count as much as its gradient, and not at all where that has no weight."""
        if not weight or not self._current:
            self.drop()
            return
        if self._kept and set(self._current) != set(self.names):
            raise BadInput(
                f"A step logs the same names in all its parts: {sorted(self._current)} here, {list(self.names)} before."
            )
        weighted = {name: weight * float(value) for name, value in self._current.items()}  # type: ignore[arg-type]  # a tensor
        self._kept[self._slot] = LoggedValues(weight, weighted)
        self.names = tuple(sorted(weighted))

    def drop(self) -> None:
        """Nothing of the part counts: of its values only the names are kept."""
        if not self._kept:
            self.names = tuple(sorted(self._current))

    def clear(self) -> None:
        """The step is applied, or its parts are of no use."""
        self._kept = {}

    def of(self, slot: int) -> LoggedValues:
        """What was logged in the part that begins with this slot."""
        return self._kept.get(slot, NOTHING)

    @property
    def weight(self) -> float:
        """That of the parts in which something was logged."""
        return sum(part.weight for part in self._kept.values())

    @property
    def sums(self) -> tuple[float, ...]:
        """The values of all parts kept, added up, in the order of `names`."""
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
