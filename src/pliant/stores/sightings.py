"""Measure the end of another owner's hold on one's own clock.

Clocks of two machines cannot be compared, so a caller never uses the end that the holder computed. It notes when it
first saw the holder's latest renewal. When it has seen no newer one for as long as the holder asked for, the hold is
over.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HoldSightings"]

Renewal = tuple[int, float]  # the term, and the end on the holder's clock: it differs after every renewal


@dataclass(frozen=True, slots=True)
class _Sighting:
    renewal: Renewal
    seen_s: float
    is_first: bool


class HoldSightings:
    """The latest renewals that each caller saw, with the time on that caller's clock."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Sighting] = {}

    def until(self, name: str, caller: str, renewal: Renewal, ttl_s: float, now: float) -> float:
        """Return the end of another owner's hold on the caller's clock."""
        seen = self._seen.get((name, caller))
        if seen is None or seen.renewal != renewal:
            seen = self._seen[name, caller] = _Sighting(renewal, now, is_first=seen is None)
        return seen.seen_s + ttl_s

    def has_changed(self, name: str, caller: str) -> bool:
        """Return whether the hold was gained or renewed by another owner since the caller first saw it."""
        return not self._seen[name, caller].is_first
