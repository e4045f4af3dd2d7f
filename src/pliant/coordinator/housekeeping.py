"""Keep the store small while a coordinator leads: archive old events, delete jobs that ended long ago.

All of it happens beside the decisions: a piece at a time, in a thread of its own, with a pause after each. A deletion
is decided by the pump like a command, so that it cannot cross another decision.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from pliant.coordinator.archiver import KEPT_EVENTS, SEGMENT_EVENTS, Archiver
from pliant.coordinator.async_service import AsyncService
from pliant.coordinator.service.inbox import Accepted, DeletionReply
from pliant.coordinator.service.loaded_jobs import RESERVED, LoadedJob, read_job
from pliant.coordinator.store_thread import StoreThread
from pliant.core.model.job import Job
from pliant.errors import BadInput, PliantError
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Store

__all__ = ["Housekeeper", "remove_leftover"]

LOOK_S = 5.0  # between two looks at the loaded jobs
SWEEP_S = 3600.0  # between two looks at all jobs of the store
PAUSE_S = 0.02  # after each piece of work
DAY_S = 86400.0

log = logging.getLogger(__name__)


class Housekeeper:
    """The housekeeping of one coordinator. `run` works until it is cancelled.

    `keep_ended_s` is how long a job is kept after its end; None keeps all. Without an archive no event is moved.
    `end_tokens` is called with the names of all jobs, now and then. `on_ended` is called with each ended job that is
    read.
    """

    def __init__(
        self,
        service: AsyncService,
        store: Store,
        archive: Archive | None,
        keep_ended_s: float | None = None,
        wall: Callable[[], float] = time.time,
        end_tokens: Callable[[frozenset[str]], Awaitable[None]] | None = None,
    ) -> None:
        self._service = service
        self._store = store
        self._archive = archive
        self._archiver = None if archive is None else Archiver(store, archive)
        self._keep_ended_s = keep_ended_s
        self._wall = wall
        self._end_tokens = end_tokens
        self.on_ended: Callable[[LoadedJob], None] = lambda _: None
        self._thread = StoreThread("pliant-archive")
        self._trimmed: dict[str, int] = {}  # by loaded job, the last revision in the archive
        self._ended: dict[str, float] = {}  # by ended job whose events are archived, the time of its end
        self._swept_at: float | None = None  # on the monotonic clock, since this coordinator leads
        self._trouble = ""  # reported last, to report it once

    async def run(self) -> None:
        """Work whenever this coordinator leads."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self.work()
        finally:
            self._thread.close()

    async def work(self) -> None:
        """Do what there is to do now. Problems are logged; the next call tries again."""
        try:
            if not self._service.service.leads:
                self._trimmed.clear()
                self._ended.clear()
                self._swept_at = None
                return
            for name in self._service.service.names():
                await self._look_at(name)
            if self._swept_at is None or time.monotonic() - self._swept_at >= SWEEP_S:
                self._swept_at = time.monotonic()
                await self._sweep()
            self._trouble = ""
        except PliantError as error:
            if error.why != self._trouble:
                log.warning("old events stay in the store: %s", error.why)
            self._trouble = error.why

    async def _look_at(self, name: str) -> None:
        """Archive a loaded job if it may have enough events."""
        found = self._service.service.job(name)
        if found is None:
            return
        job, revision = found
        if job.state.ended:
            await self._archive_ended(name, job)
            return
        self._ended.pop(name, None)
        if revision - self._trimmed.get(name, 0) >= SEGMENT_EVENTS + KEPT_EVENTS:
            await self._archive_job(name, ended=False)

    async def _archive_ended(self, name: str, job: Job) -> None:
        if self._ended.get(name) != job.state_since:
            await self._archive_job(name, ended=True)
            self._ended[name] = job.state_since
            self._trimmed.pop(name, None)

    async def _archive_job(self, name: str, *, ended: bool) -> None:
        while self._archiver is not None and (hold := self._service.service.hold) is not None:
            moved = await self._thread.call(partial(self._archiver.move, name, hold, ended=ended))
            self._trimmed[name] = moved.through
            if not moved.again:
                return
            await asyncio.sleep(PAUSE_S)

    async def _sweep(self) -> None:
        """Look at the jobs that are not loaded, and delete those that ended long ago."""
        names = [name for name in await self._thread.call(self._store.jobs) if not name.startswith(RESERVED)]
        for name in names:
            if name not in self._ended and self._service.service.job(name) is None:
                await self._read_ended(name)
                await asyncio.sleep(0)
        self._trimmed = {name: through for name, through in self._trimmed.items() if name in names}
        self._ended = {name: since for name, since in self._ended.items() if name in names}
        if self._keep_ended_s is not None:
            before = self._wall() - self._keep_ended_s
            for name, since in [*self._ended.items()]:
                if since < before and isinstance((await self.delete(name, before)).answer, Accepted):
                    days = self._keep_ended_s / DAY_S
                    log.info("%s: deleted, because it ended more than %g days ago; its checkpoints stay", name, days)
        if self._end_tokens is not None:
            await self._end_tokens(frozenset(names))
        await self.remove_leftovers(set(names))

    async def _read_ended(self, name: str) -> None:
        try:
            known = await self._thread.call(partial(read_job, self._store, name))
        except BadInput as error:  # the record of another version; takeovers report it too
            log.warning("%s cannot be read and is left as it is: %s", name, error.why)
            return
        if known is not None and known.job is not None and known.job.state.ended:
            self.on_ended(known)
            await self._archive_ended(name, known.job)

    async def delete(self, name: str, ended_before: float | None = None) -> DeletionReply:
        """Delete an ended job and its segments. A job that ended after `ended_before` is refused."""
        reply = await self._service.delete(name, ended_before)
        if isinstance(reply.answer, Accepted):
            self._ended.pop(name, None)
            self._trimmed.pop(name, None)
            if self._archive is not None:
                try:
                    await self._thread.call(partial(self._archive.remove, name, reply.revision))
                except PliantError as error:
                    log.warning("%s: its segments are removed later: %s", name, error.why)
        return reply

    async def remove_leftovers(self, names: set[str]) -> None:
        """Remove segments of deleted jobs that a killed process left.

        `names` were read before. A job that was created since has higher revisions, and no segments yet.
        """
        if self._archive is None:
            return
        for name in await self._thread.call(self._archive.jobs):
            if name not in names and self._service.service.job(name) is None:
                await self._thread.call(partial(remove_leftover, self._store, self._archive, name))


def remove_leftover(store: Store, archive: Archive, name: str) -> None:
    """Remove the segments of a job that does not exist. Only the leader calls it."""
    newest = archive.newest(name)  # before the store is asked: later segments are of a job that exists
    if store.read(name) is None:
        archive.remove(name, newest)
