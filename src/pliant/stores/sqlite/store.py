"""The contract of `pliant.stores.base` on one SQLite file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pliant.errors import BadInput, EventsTrimmed, StoreError
from pliant.stores.base import (
    Busy,
    Conflict,
    Entry,
    Hold,
    Outcome,
    Segment,
    Stored,
    Write,
    Written,
    check_after,
    check_batch,
    check_expected,
    check_hold,
    check_limit,
    check_now,
    check_text,
    hold_lost,
)
from pliant.stores.sqlite import holds, removal
from pliant.stores.sqlite.checksum import checksum
from pliant.stores.sqlite.errors import damaged
from pliant.stores.sqlite.file import Row, StoreFile

__all__ = ["SqliteStore"]

T = TypeVar("T")

WAIT_S = 1.0
PAGE_BYTES = 4096
NUMBER_MAX = 2**63 - 1  # the largest integer of SQLite

# One statement, because only one statement reads record and tail from the same moment.
READ = """
SELECT record_revision, checksum, record FROM jobs WHERE name = ?
UNION ALL
SELECT e.revision, e.checksum, e.data FROM jobs j JOIN events e ON e.job = j.id AND e.revision > j.record_revision
WHERE j.name = ?
"""
READ_PAGE = """
WITH page AS (SELECT * FROM jobs WHERE live = 1 AND name > ? ORDER BY name LIMIT ?)
SELECT name, record_revision, checksum, record FROM page
UNION ALL
SELECT p.name, e.revision, e.checksum, e.data
FROM page p JOIN events e ON e.job = p.id AND e.revision > p.record_revision
ORDER BY 1, 2
"""
EVENTS = """
SELECT revision, checksum, data FROM events
WHERE job = (SELECT id FROM jobs WHERE name = ?) AND revision > ? ORDER BY revision LIMIT ?
"""
TRIMMED = "SELECT base, (SELECT max(last) FROM segments WHERE job = jobs.id) FROM jobs WHERE name = ?"
CREATE = "INSERT INTO jobs (name, base, record_revision, checksum, record, live) VALUES (?, ?, ?, ?, ?, ?)"
RECORD = "UPDATE jobs SET record_revision = ?, checksum = ?, record = ? WHERE id = ?"
LIVE = "UPDATE jobs SET live = ? WHERE id = ?"
FIND = "SELECT j.id, j.live, (SELECT max(revision) FROM events WHERE job = j.id) FROM jobs j WHERE j.name = ?"


class SqliteStore:
    """One handle on a store file.

    Creates the file if there is none, with `identity` or a random one. An existing file keeps its identity. Several
    handles, in one process or in several, may have one file open. A call waits up to `wait_s` for another writer, then
    raises `StoreUnavailable`. Threads may share a handle; their calls run one at a time.
    """

    def __init__(self, path: str | Path, *, identity: str | None = None, wait_s: float = WAIT_S) -> None:
        if identity is not None:
            if not identity:
                raise BadInput("A store needs an identity.")
            check_text(identity)
        self._lock = threading.RLock()
        self._closed = False
        self._file = StoreFile(Path(path), identity, wait_s)
        self._holds = holds.HoldTable(self._file.path)

    @property
    def identity(self) -> str:
        return self._file.identity

    @property
    def path(self) -> Path:
        return self._file.path

    def read(self, job: str) -> Stored | None:
        rows = self._query(READ, job, job)
        if not rows:
            return None
        with self._wrong_types_reported():
            rows.sort(key=lambda row: row[0])
            return self._stored(job, rows)

    def read_page(self, after: str, limit: int) -> tuple[tuple[str, Stored], ...]:
        check_limit(limit)
        rows = self._query(READ_PAGE, after, min(limit, NUMBER_MAX))
        by_name = groupby(rows, key=lambda row: row[0])
        with self._wrong_types_reported():
            return tuple([(name, self._stored(name, [row[1:] for row in group])) for name, group in by_name])

    def _stored(self, job: str, rows: list[Row]) -> Stored:
        record, *tail = self._checked(job, rows)
        return Stored(rows[-1][0], record.data, record.revision, tuple([entry.data for entry in tail]))

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        check_after(after)
        check_limit(limit)
        rows = self._query(EVENTS, job, min(after, NUMBER_MAX), min(limit, NUMBER_MAX))
        with self._wrong_types_reported():
            if rows and rows[0][0] != after + 1:
                self._check_begin(job, after, rows[0][0])
            return tuple(self._checked(job, rows))

    @contextmanager
    def _wrong_types_reported(self) -> Iterator[None]:
        """Report a value of another type as damage: in SQLite, the type of a value is stored beside it."""
        try:
            yield
        except TypeError as error:
            raise damaged(self.path, f"a value has another type: {error}") from error

    def _check_begin(self, job: str, after: int, first: int) -> None:
        """Explain why the events after a revision begin with `first`: a job that began later, or trimmed events."""
        base, trimmed = next(iter(self._query(TRIMMED, job)), (0, None))
        if trimmed is not None and max(after, base) < trimmed:
            raise EventsTrimmed(f"The events of job {job!r} up to revision {trimmed} are archived.", trimmed)
        if first != max(after, base) + 1:
            raise damaged(self.path, f"job {job!r} has no event {max(after, base) + 1}")

    def segments(self, job: str) -> tuple[Segment, ...]:
        return tuple([Segment(*row) for row in self._query(removal.SEGMENTS, job)])

    def trim(self, job: str, segment: Segment, under: Hold | None = None) -> bool:
        check_text(job, segment.name)
        return self._change(under, lambda connection: removal.trim(connection, job, segment))

    def delete(self, job: str, expected: int, under: Hold | None = None) -> Conflict | None:
        check_expected(expected)
        check_text(job)
        return self._change(under, lambda connection: removal.delete(connection, job, expected))

    def _checked(self, job: str, rows: list[Row]) -> list[Entry]:
        entries = []
        for place, (revision, found, data) in enumerate(rows, rows[0][0] if rows else 0):
            if revision != place or checksum(revision, data) != found:
                raise damaged(self.path, f"job {job!r} is not as it was written at revision {place}")
            entries.append(Entry(revision, data))
        return entries

    def jobs(self) -> tuple[str, ...]:
        # SQLite compares the bytes of UTF-8, whose order is that of code points and of Python's strings.
        names = tuple([name for (name,) in self._query("SELECT name FROM jobs ORDER BY name")])
        if not all(isinstance(name, str) for name in names):
            raise damaged(self.path, "the name of a job is not text")
        return names

    def write(self, writes: Sequence[Write], under: Hold | None = None) -> tuple[Outcome, ...]:
        check_batch(writes)
        check_text(*[write.job for write in writes])
        if not writes:
            return ()
        return self._change(under, lambda connection: self._apply(connection, writes))

    def _apply(self, connection: sqlite3.Connection, writes: Sequence[Write]) -> tuple[tuple[Outcome, ...], int]:
        outcomes: list[Outcome] = []
        rows: list[tuple[Any, int, int, bytes]] = []
        for write in writes:
            job, live, revision = connection.execute(FIND, (write.job,)).fetchone() or (None, write.live, 0)
            if revision is None:
                raise damaged(self.path, f"job {write.job!r} has no events")
            if revision != write.expected:
                outcomes.append(Conflict(revision))
                continue
            if job is None:
                (revision,) = connection.execute("SELECT floor FROM meta").fetchone()
            newest = revision + len(write.events)
            if write.record is not None:
                record = (newest, checksum(newest, write.record), write.record)
                if job is None:
                    job = connection.execute(CREATE, (write.job, revision, *record, write.live)).lastrowid
                else:
                    connection.execute(RECORD, (*record, job))
            if live != write.live:
                connection.execute(LIVE, (write.live, job))
            rows += [(job, i, checksum(i, data), data) for i, data in enumerate(write.events, revision + 1)]
            outcomes.append(Written(newest))
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        return tuple(outcomes), _pages(writes) if rows else 0

    def hold(self, name: str, owner: str, ttl_s: float, now: float, url: str = "") -> Hold | Busy:
        check_hold(name, owner, ttl_s, now)
        check_text(name, owner, url)
        wanted = Hold(name, owner, 0, now + ttl_s, url)
        with self._lock:
            return self._open_file().change(lambda connection: self._holds.hold(connection, wanted, ttl_s, now))

    def holder(self, name: str, now: float) -> Hold | None:
        check_now(now)
        rows = self._query(holds.HELD, name)
        return self._holds.holder(name, rows[0], now) if rows else None

    def release(self, hold: Hold) -> None:
        check_text(hold.name, hold.owner)
        with self._lock:
            self._open_file().change(lambda connection: (None, holds.release(connection, hold)))

    def close(self) -> None:
        """Close the file. May be called any number of times; every other call fails afterwards."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._file.close()

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_file(self) -> StoreFile:
        if self._closed:
            raise StoreError(f"The store {self.path} was closed. Open it again.")
        return self._file

    def _change(self, under: Hold | None, body: Callable[[sqlite3.Connection], tuple[T, int]]) -> T:
        """Run `body` in a write transaction, if the hold `under` is in force."""

        def fenced(connection: sqlite3.Connection) -> tuple[T, int]:
            if under is not None and not holds.is_held(connection, under):
                raise hold_lost(under)
            return body(connection)

        with self._lock:
            return self._open_file().change(fenced)

    def _query(self, statement: str, *values: str | int) -> list[Row]:
        check_text(*[value for value in values if isinstance(value, str)])
        with self._lock:
            return self._open_file().query(statement, values)


def _pages(writes: Sequence[Write]) -> int:
    """Estimate how many pages a batch adds to the `-wal` file, to decide when the next checkpoint is due."""
    size = sum(sum(map(len, write.events)) + len(write.record or b"") for write in writes)
    return 1 + 2 * len(writes) + size // PAGE_BYTES
