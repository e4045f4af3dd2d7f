"""Frames on their way: lost, late, twice, in another order, or at a limited rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

BACKLOG_S = 0.4  # what a line that is too narrow keeps waiting; the rest is lost, as in a switch

EVERY_ADDRESS = "*"


@dataclass(frozen=True, slots=True)
class Weather:
    """One way of one link. `mute`: addresses cut off, or EVERY_ADDRESS; `rate`: bytes a second, 0: any."""

    loss: float = 0.0
    delay_s: float = 0.0
    jitter_s: float = 0.0  # so much more delay at most, each frame its own: they overtake one another
    twice: float = 0.0
    rate: float = 0.0
    mute: tuple[str, ...] = ()


@dataclass
class Way:
    """The frames that are on one way of one link."""

    chance: Random
    weather: Weather = field(default_factory=Weather)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("passed", "lost", "muted", "twice"), 0))
    _flying: list[tuple[float, int, bytes]] = field(default_factory=list)
    _sent: int = 0
    _free_at: float = 0.0

    @property
    def is_fair(self) -> bool:
        """Return whether a frame can be passed on at once."""
        return self.weather == Weather() and not self._flying

    def send(self, frame: bytes, peer: str | None, now: float) -> None:
        """Take a frame. `peer` is the address at the far end; None: it has none."""
        weather, draw = self.weather, self.chance.random
        if EVERY_ADDRESS in weather.mute or peer in weather.mute:
            self.counts["muted"] += 1
            return
        if weather.loss and draw() < weather.loss:
            self.counts["lost"] += 1
            return
        at = now
        if weather.rate:
            at = max(now, self._free_at) + len(frame) / weather.rate
            if at - now > BACKLOG_S:
                self.counts["lost"] += 1
                return
            self._free_at = at
        copies = 1 + (weather.twice > 0 and draw() < weather.twice)
        self.counts["twice"] += copies - 1
        for _ in range(copies):
            self._sent += 1
            late_s = weather.delay_s + (draw() * weather.jitter_s if weather.jitter_s else 0.0)
            heappush(self._flying, (at + late_s, self._sent, frame))

    def arrived(self, now: float) -> list[bytes]:
        """The frames that are there by now."""
        found = []
        while self._flying and self._flying[0][0] <= now:
            found.append(heappop(self._flying)[2])
        self.counts["passed"] += len(found)
        return found

    def next_at(self) -> float | None:
        return self._flying[0][0] if self._flying else None
