"""The times at which members enter each step, read from the members, without the coordinator and its delay."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from chaos.job import Job
from chaos.probe import Whereabouts
from pliant.core.model.names import MemberId

LOOK_S = 0.003


Mark = tuple[int, int]
"""A place in the training that later ones are greater than: how often it was rolled back, and the step."""


class Steps:
    """Looks on in a thread of its own until it is closed. A member that begins a step has applied the one before."""

    def __init__(self, job: Job) -> None:
        self.seen: list[tuple[float, Mark]] = []  # when a member was first in each step
        self._job = job
        self._views: dict[MemberId, Whereabouts] = {}
        self._over = threading.Event()
        self._look()
        self._thread = threading.Thread(target=self._watch, name="steps", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    @property
    def now(self) -> int:
        """The highest step that a member is in."""
        return self.mark[1]

    @property
    def mark(self) -> Mark:
        """The same, fit to be compared across rollbacks."""
        return self.seen[-1][1] if self.seen else (0, 0)

    def until(self, step: int) -> None:
        while self.now < step:
            self._over.wait(LOOK_S)

    def after(self, mark: Mark, at: float) -> float:
        """Return when, after that moment, a member was further than that; that moment if no member was."""
        return next((when for when, found in self.seen if found > mark and when >= at), at)

    def longest_gap_s(self, since: float = 0.0) -> float:
        """Between two steps of which the later one came after that moment."""
        times = [when for when, _ in self.seen]
        return max((after - before for before, after in pairwise(times) if after > since), default=0.0)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        with self._job.chronicle.changed:
            live, rollbacks = tuple(self._job.chronicle.scene.live), self._job.chronicle.scene.rollbacks
        for member in live:
            if member not in self._views:
                self._views[member] = self._job.whereabouts(member)
        highest = max((self._views[member].step for member in live), default=0)
        if (rollbacks, highest) > self.mark:
            self.seen.append((time.monotonic(), (rollbacks, highest)))
