"""Virtual time: one queue of events, one source of randomness, and the story of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from pliant_sim.fault_kinds import AnyFaultKind


class Timeline:
    """The event queue of a simulation. It depends on its seed alone."""

    def __init__(self, seed: int, story: list[str] | None) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self.events = 0
        self.trace = 0
        self.story = story
        self.fired: Counter[AnyFaultKind] = Counter()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._sequence = 0

    def after(self, delay_s: float, act: Callable[..., None], *args: object) -> None:
        self._sequence += 1
        heappush(self._queue, (self.now + delay_s, self._sequence, act, args))

    def run(self, until_s: float, done: Callable[[], bool]) -> None:
        """Run events until a time, or until `done`, which is called only now and then because it is slow."""
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            now, sequence, act, args = heappop(queue)
            self.now = now
            self.events += 1
            self.trace = hash((self.trace, sequence, now))  # of numbers only: the same in every process
            act(*args)
            if not self.events % 16 and done():
                return

    def faults_fired(self, kind: AnyFaultKind) -> None:
        self.fired[kind] += 1
        self.tell(f"FAULT {kind}")

    def tell(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:8.3f}  {what}")
