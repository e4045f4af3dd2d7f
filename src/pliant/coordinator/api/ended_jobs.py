"""The lines of ended jobs in a list of jobs.

A coordinator loads the live jobs only. The lines of the others are read when they are first listed and remembered: an
ended job does not change, unless it is created again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pliant.coordinator.api.job_status import job_line
from pliant.coordinator.service.inbox import Pumped
from pliant.coordinator.service.loaded_jobs import RESERVED, LoadedJob, read_job
from pliant.coordinator.service.pump import Service
from pliant.coordinator.store_thread import StoreThread
from pliant.errors import BadInput
from pliant.stores.base import Store
from pliant.wire.api import JobLine

LINES_MAX = 50_000  # remembered
CHUNK = 64  # jobs of one read


class EndedJobs:
    """The lines of the jobs that the service has not loaded. Use it from one event loop."""

    def __init__(self, service: Service, store: Store, reads: StoreThread) -> None:
        self._service = service
        self._store = store
        self._reads = reads
        self._lines: dict[str, JobLine] = {}

    def note_pump(self, pumped: Pumped, leads: bool) -> None:
        """Forget jobs that changed; forget all after a change of leader."""
        if pumped.took_over or not leads:
            self._lines.clear()
        for name in pumped.changed:
            self._lines.pop(name, None)

    async def names(self) -> list[str]:
        """Return the names of all jobs of the store that are not loaded."""
        return [name for name in await self._reads.call(self._store.jobs) if self._is_missing(name)]

    async def lines(self, names: Sequence[str]) -> list[JobLine]:
        """Return the lines of some of them. A job that cannot be read has none."""
        shown = {name: self._lines[name] for name in names if name in self._lines}
        unknown = [name for name in names if name not in shown]
        for first in range(0, len(unknown), CHUNK):
            read = await self._reads.call(partial(_read_lines, self._store, unknown[first : first + CHUNK]))
            for line in read:
                if self._is_missing(line.name):  # it may have been created again meanwhile
                    shown[line.name] = line
                    if len(self._lines) < LINES_MAX:
                        self._lines[line.name] = line
        return list(shown.values())

    def remember(self, known: LoadedJob) -> None:
        """Keep the line of an ended job that was read for another reason, so that a list need not read it again."""
        if known.job is not None and len(self._lines) < LINES_MAX and self._is_missing(known.job.name):
            self._lines[known.job.name] = job_line(known.job, known.revision)

    def _is_missing(self, name: str) -> bool:
        return not name.startswith(RESERVED) and self._service.job(name) is None


def _read_lines(store: Store, names: list[str]) -> list[JobLine]:
    """Read some jobs. A job that cannot be read has no line, so that the others are listed."""
    lines = []
    for name in names:
        try:
            known = read_job(store, name)
        except BadInput:
            continue
        if known is not None and known.job is not None:
            lines.append(job_line(known.job, known.revision))
    return lines
