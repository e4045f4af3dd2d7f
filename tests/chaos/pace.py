"""The pace of a job that is to last as long as what is done to it, however long that takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from chaos.job import Job

PACE_S = 0.12
PACE_RISE_S = 0.01  # for each step that the job is ahead of its story
PACE_MAX_S = 0.8
PACE_LAST_S = 6.0
RESERVE_STEPS = 60  # for the end: each lasts longer than the one before
LOOK_S = 0.05


class Pace:
    """Keeps the pace while its block lasts; after that the job runs as fast as it can.

    `told` says how much of the story there has been, from 0 to 1. The last steps almost stand still, for a story that
    takes very long.
    """

    def __init__(self, job: Job, told: Callable[[], float]) -> None:
        self._job = job
        self._told = told
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="pace", daemon=True)

    def __enter__(self) -> Pace:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._job.wish.pace_s = 0.0

    def _keep(self) -> None:
        while not self._over.wait(LOOK_S):
            self._job.wish.pace_s = pace_s(self._job.chronicle.scene.step, self._job.task.steps, self._told())


def pace_s(step: int, steps: int, told: float) -> float:
    """Return how long a step should take."""
    reserve = min(RESERVE_STEPS, steps // 3)
    left = max(steps - step, 1)
    if left <= reserve:
        return min(PACE_LAST_S, PACE_MAX_S * reserve / left)
    ahead = max(0.0, step - told * (steps - reserve))
    return min(PACE_MAX_S, PACE_S + ahead * PACE_RISE_S)
