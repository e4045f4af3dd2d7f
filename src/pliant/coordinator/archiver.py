"""Move old events of jobs from the store into segments of the archive.

A live job leaves its newest events in the store, for quick reads. Of an ended job every event goes that can, because
its history is only read by an audit or a report. A segment is durable in the archive before the store replaces its
events by its name. A process that is killed in between writes the same segment again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.errors import StoreError
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Entry, Hold, Store

__all__ = ["Archiver", "segment_end"]

SEGMENT_EVENTS = 8192
SEGMENT_BYTES = 4 << 20  # of events, before they are compressed; a single event may be longer
KEPT_EVENTS = 1024  # newest events of a live job that stay in the store
ENDED_EVENTS = 256  # fewer events of an ended job are not worth a file
PAGE = 512  # events of one read, so that decisions do not wait long for the store


def segment_end(trimmed: int, record_revision: int, revision: int, *, ended: bool) -> int | None:
    """Return the last revision of the next segment; None if there are too few events for one yet.

    `trimmed` is the last revision that is in the archive already.
    """
    limit = min(record_revision, revision - (1 if ended else KEPT_EVENTS))
    if limit - trimmed < (ENDED_EVENTS if ended else SEGMENT_EVENTS):
        return None
    return min(limit, trimmed + SEGMENT_EVENTS)


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of one move: the last revision in the archive, and whether another segment can follow at once."""

    through: int
    again: bool


class Archiver:
    """Moves one segment at a time. Calls take some milliseconds of the store's time: make them in a thread."""

    def __init__(self, store: Store, archive: Archive) -> None:
        self._store = store
        self._archive = archive

    def move(self, job: str, hold: Hold, *, ended: bool) -> Moved:
        """Move the oldest events of a job, if there are enough of them. `hold` is that of the leader."""
        stored = self._store.read(job)
        if stored is None:
            return Moved(0, again=False)
        segments = self._store.segments(job)
        trimmed = segments[-1].last if segments else self._base(job, stored.revision)
        end = segment_end(trimmed, stored.record_revision, stored.revision, ended=ended)
        if end is None:
            return Moved(trimmed, again=False)
        entries = self._read(job, trimmed, end)
        segment = self._archive.write(job, entries[0].revision, [entry.data for entry in entries])
        done = self._store.trim(job, segment, hold)
        return Moved(segment.last if done else trimmed, again=done)

    def _base(self, job: str, revision: int) -> int:
        """Return the revision before a job's first event, which is not 0 if jobs were deleted before."""
        first = self._store.events(job, 0, 1)
        return first[0].revision - 1 if first else revision

    def _read(self, job: str, after: int, end: int) -> list[Entry]:
        """Return the events of a segment that begins after a revision and ends at `end`, or before if it is full."""
        entries: list[Entry] = []
        nbytes = 0
        while after < end:
            page = self._store.events(job, after, min(PAGE, end - after))
            if not page:
                raise StoreError(f"Job {job!r} has no event {after + 1}, though it had: the store was set back.")
            for entry in page:
                nbytes += len(entry.data)
                if entries and nbytes > SEGMENT_BYTES:
                    return entries
                entries.append(entry)
            after = entries[-1].revision
        return entries
