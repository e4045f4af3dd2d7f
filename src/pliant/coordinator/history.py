"""Read a job's events wherever they are: in the store, or in segments of the archive."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from pliant.errors import EventsTrimmed, StoreError
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Entry, Segment, Store

__all__ = ["JobHistory"]

SEGMENTS_CACHED = 8  # a reader asks for one page of a segment after the other
JOBS_CACHED = 64


class JobHistory:
    """The whole history of every job. Use it from one thread; a call may read a file."""

    def __init__(self, store: Store, archive: Archive | None) -> None:
        self._store = store
        self._archive = archive
        self._segments: dict[str, tuple[Segment, ...]] = {}
        self._cached: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        """Return up to `limit` events from revision `after + 1` on, like the store."""
        found: list[Entry] = []
        while len(found) < limit:
            try:
                return (*found, *self._store.events(job, after, limit - len(found)))
            except EventsTrimmed as error:
                page = self._archived(job, after, limit - len(found), error.through)
            if not page:
                break
            found += page
            after = page[-1].revision
        return tuple(found)

    def _archived(self, job: str, after: int, limit: int, through: int) -> list[Entry]:
        """Return events of one segment. None if the job was deleted a moment ago."""
        segments = self._segments.get(job, ())
        if not segments or segments[-1].last != through:  # no two jobs share a revision, so this tells them apart
            segments = self._segments[job] = self._store.segments(job)
            if len(self._segments) > JOBS_CACHED:
                del self._segments[next(iter(self._segments))]
        at = bisect_right(segments, after, key=lambda segment: segment.last)
        if at == len(segments):
            return []
        segment = segments[at]
        events = self._read(job, segment)
        begin = max(after - segment.first + 1, 0)
        return [Entry(segment.first + i, events[i]) for i in range(begin, min(begin + limit, len(events)))]

    def _read(self, job: str, segment: Segment) -> tuple[bytes, ...]:
        found = self._cached.pop(segment.name, None)
        if found is None:
            if self._archive is None:
                raise StoreError(
                    f"The events of job {job!r} up to revision {segment.last} are in an archive, and this coordinator "
                    "has none. Start it with --archive and the folder or URL that it had before."
                )
            found = self._archive.read(segment)
        self._cached[segment.name] = found
        if len(self._cached) > SEGMENTS_CACHED:
            self._cached.popitem(last=False)
        return found
