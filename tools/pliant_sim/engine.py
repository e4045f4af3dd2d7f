"""Virtual time: one queue of events, one source of randomness, and the story of a run."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container
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

    def at(self, when: float, act: Callable[..., None], *args: object) -> None:
        self._sequence += 1
        heappush(self._queue, (when, self._sequence, act, args))

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


class Deadlines:
    """Deadlines that all end a fixed time after they are set. Most are met, so they share one event of the timeline."""

    def __init__(self, timeline: Timeline, delay_s: float) -> None:
        self._timeline = timeline
        self._delay_s = delay_s
        self._set: deque[tuple[float, Container[int], int, Callable[[int], None]]] = deque()
        self._is_waiting = False

    def add(self, waiting: Container[int], number: int, act: Callable[[int], None]) -> None:
        """Call `act` with the number, unless it has left `waiting` by then."""
        self._set.append((self._timeline.now + self._delay_s, waiting, number, act))
        if not self._is_waiting:
            self._wait()

    def _wait(self) -> None:
        self._is_waiting = True
        self._timeline.at(self._set[0][0], self._end)

    def _end(self) -> None:
        while self._set and (self._set[0][0] <= self._timeline.now or self._set[0][2] not in self._set[0][1]):
            _, waiting, number, act = self._set.popleft()
            if number in waiting:
                act(number)
        self._is_waiting = False
        if self._set:
            self._wait()
