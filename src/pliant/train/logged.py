"""What `run.log` was given in a step: weighted sums over its parts, by name."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from pliant.errors import BadInput
from pliant.train.cells import LOGGED_MAX


class Logged:
    """The values of the part under way, and the sums of the parts kept."""

    def __init__(self) -> None:
        self._now: dict[str, object] = {}
        self._sums: dict[str, float] = {}
        self.weight = 0.0  # of the parts in which something was logged
        self.names: tuple[str, ...] = ()  # as they were logged last, kept for a step that was computed by others

    def begin(self) -> None:
        self._now = {}

    def log(self, values: Mapping[str, object]) -> None:
        """Values of this part; a name that is logged twice keeps the last one."""
        self._now |= dict(values)
        if len(self._now) > LOGGED_MAX:
            raise BadInput(f"A step logs at most {LOGGED_MAX} values, not {len(self._now)}: log fewer names.")

    def weigh(self, weight: float) -> None:
        """The part is done: its values count as much as its gradient, and not at all where that has no weight."""
        if not weight:
            self.drop()
            return
        self.weight += weight if self._now else 0.0
        for name, value in self._now.items():
            self._sums[name] = self._sums.get(name, 0.0) + weight * float(value)  # type: ignore[arg-type]  # a tensor
        self.names = tuple(sorted(self._sums))

    def drop(self) -> None:
        """The part is idle: of its values only the names are kept."""
        if not self._sums:
            self.names = tuple(sorted(self._now))

    def clear(self) -> None:
        """The step is applied, or its parts are of no use."""
        self._sums = {}
        self.weight = 0.0

    @property
    def sums(self) -> tuple[float, ...]:
        return tuple(self._sums[name] for name in self.names) if self._sums else ()

    @property
    def names_key(self) -> int:
        """A hash of the names; 0 if nothing was logged."""
        if not self._sums:
            return 0
        joined = "\0".join(self.names).encode()
        return int.from_bytes(blake2b(joined, digest_size=8, person=b"pliant names").digest(), "little") | 1
