"""The contract of `pliant.stores.base` on one SQLite file. The package's docstring says what it rests on."""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from pliant.errors import BadInput, StoreError
from pliant.stores.base import (
    Busy,
    Conflict,
    Entry,
    Hold,
    Outcome,
    Stored,
    Told,
    Write,
    Written,
    check_after,
    check_batch,
    check_hold,
    check_limit,
)
from pliant.stores.sqlite.process_identity import ProcessIdentity, has_exited, current_process
from pliant.stores.sqlite.errors import damaged
from pliant.stores.sqlite.file import Row, StoreFile
from pliant.stores.sqlite.watch import REVISION, Watch, Watches

__all__ = ["SqliteStore"]

WAIT_S = 1.0
POLL_S = 0.05
PAGE_BYTES = 4096
NUMBER_MAX = 2**63 - 1  # the largest that SQLite can count to

# The record and the tail in one statement, because one statement sees one moment.
READ = """
SELECT record_revision, checksum, record FROM jobs WHERE name = ?
UNION ALL
SELECT e.revision, e.checksum, e.data FROM jobs j JOIN events e ON e.job = j.id AND e.revision > j.record_revision
WHERE j.name = ?
"""
EVENTS = """
SELECT revision, checksum, data FROM events
WHERE job = (SELECT id FROM jobs WHERE name = ?) AND revision > ? ORDER BY revision LIMIT ?
"""
CREATE = "INSERT INTO jobs (name, record_revision, checksum, record) VALUES (?, ?, ?, ?)"
RECORD = "UPDATE jobs SET record_revision = ?, checksum = ?, record = ? WHERE id = ?"
HELD = "SELECT term, owner, until_s, boot, pids, pid, started FROM holds WHERE name = ?"
RELEASE = "UPDATE holds SET owner = NULL WHERE name = ? AND owner = ? AND term = ?"
FIND = "SELECT j.id, (SELECT max(revision) FROM events WHERE job = j.id) FROM jobs j WHERE j.name = ?"


class SqliteStore:
    """Makes the file if there is none, with `identity` or one drawn at random; an existing one keeps its own.

    Several handles, in one process or in several, may have one file open. `wait_s` is how long a call waits for
    another writer before `StoreUnavailable`. A handle may be used by several threads, one call at a time.
    Callbacks of `watch` run on the thread that writes, after the commit and before `write` returns; for what
    other handles write, on a thread of this handle, at most about `poll_s` later.
    """

    def __init__(
        self, path: str | Path, *, identity: str | None = None, wait_s: float = WAIT_S, poll_s: float = POLL_S
    ) -> None:
        if identity is not None:
            if not identity:
                raise BadInput("A store needs an identity.")
            _check_text(identity)
        self._lock = threading.RLock()
        self._closed = False
        self._file = StoreFile(Path(path), identity, wait_s)
        self._watches = Watches(self._file.connect_to_look, poll_s)

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
        rows.sort(key=lambda row: row[0])
        record, *tail = self._checked(job, rows)
        return Stored(rows[-1][0], record.data, record.revision, tuple([entry.data for entry in tail]))

    def events(self, job: str, after: int, limit: int) -> tuple[Entry, ...]:
        check_after(after)
        check_limit(limit)
        rows = self._query(EVENTS, job, min(after, NUMBER_MAX), min(limit, NUMBER_MAX))
        if rows and rows[0][0] != after + 1:
            raise damaged(self.path, f"job {job!r} has no event {after + 1}")
        return tuple(self._checked(job, rows))

    def _checked(self, job: str, rows: list[Row]) -> list[Entry]:
        entries = []
        for place, (revision, checksum, data) in enumerate(rows, rows[0][0] if rows else 0):
            if revision != place or _checksum(revision, data) != checksum:
                raise damaged(self.path, f"job {job!r} is not as it was written at revision {place}")
            entries.append(Entry(revision, data))
        return entries

    def jobs(self) -> tuple[str, ...]:
        # By bytes of UTF-8, which is the order of code points and so that of Python.
        return tuple([name for (name,) in self._query("SELECT name FROM jobs ORDER BY name")])

    def write(self, writes: Sequence[Write]) -> tuple[Outcome, ...]:
        check_batch(writes)
        _check_text(*[write.job for write in writes])
        if not writes:
            return ()
        with self._lock:
            outcomes = self._open_file().change(lambda connection: self._apply(connection, writes))
        if self._watches:
            for write, outcome in zip(writes, outcomes, strict=True):
                if isinstance(outcome, Written):
                    self._watches.tell(write.job, outcome.revision)
        return outcomes

    def _apply(self, connection: sqlite3.Connection, writes: Sequence[Write]) -> tuple[tuple[Outcome, ...], int]:
        outcomes: list[Outcome] = []
        rows: list[tuple[int | None, int, int, bytes]] = []
        for write in writes:
            job, revision = connection.execute(FIND, (write.job,)).fetchone() or (None, 0)
            if revision is None:
                raise damaged(self.path, f"job {write.job!r} has no events")
            if revision != write.expected:
                outcomes.append(Conflict(revision))
                continue
            newest = revision + len(write.events)
            if write.record is not None:
                record = (newest, _checksum(newest, write.record), write.record)
                if job is None:
                    job = connection.execute(CREATE, (write.job, *record)).lastrowid
                else:
                    connection.execute(RECORD, (*record, job))
            rows += [(job, i, _checksum(i, data), data) for i, data in enumerate(write.events, revision + 1)]
            outcomes.append(Written(newest))
        connection.executemany("INSERT INTO events VALUES (?, ?, ?, ?)", rows)
        return tuple(outcomes), _pages(writes) if rows else 0

    def watch(self, job: str, after: int, callback: Told) -> Callable[[], None]:
        check_after(after)
        watch = Watch(job, after, callback)
        stop = self._watches.add(watch)
        try:
            ((revision,),) = self._query(REVISION, job)
        except BaseException:  # why: a watch that was never handed out cannot be stopped by anybody else
            stop()
            raise
        if revision is not None:
            watch.tell(revision)
        return stop

    def settle(self, timeout_s: float = 10.0) -> bool:
        """Call to wait until watches were told of all that anybody wrote before; False: not in this time."""
        return self._watches.settle(timeout_s)

    def hold(self, name: str, owner: str, ttl_s: float, now: float) -> Hold | Busy:
        check_hold(name, owner, ttl_s, now)
        _check_text(name, owner)
        with self._lock:
            return self._open_file().change(lambda connection: _hold(connection, name, owner, ttl_s, now))

    def release(self, hold: Hold) -> None:
        _check_text(hold.name, hold.owner)
        # By term, not by time: a renewed hold is the same hold, a later one of the same owner is not.
        values = (hold.name, hold.owner, hold.term)
        with self._lock:
            self._open_file().change(lambda connection: (None, connection.execute(RELEASE, values).rowcount))

    def close(self) -> None:
        """Call at the end, any number of times. Watches are silent from then on, and every other call fails."""
        self._watches.close()
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

    def _query(self, statement: str, *values: str | int) -> list[Row]:
        _check_text(*[value for value in values if isinstance(value, str)])
        with self._lock:
            return self._open_file().query(statement, values)


def _hold(connection: sqlite3.Connection, name: str, owner: str, ttl_s: float, now: float) -> tuple[Hold | Busy, int]:
    rows = connection.execute(HELD, (name,)).fetchall()
    term, me = 1, current_process()
    if rows:
        ((term, holder, until_s, *fields),) = rows
        life = ProcessIdentity(*fields)
        # `now` is a clock that starts again with the machine, and nobody renews for a process that is gone.
        in_force = holder is not None and now < until_s and not has_exited(life)
        # Nobody can tell whether it did start again; but then an end that far ahead was not set by this clock.
        if holder != owner and not (me.boot and life.boot) and until_s > now + ttl_s:
            in_force = False
        if in_force and holder != owner:
            return Busy(Hold(name, holder, term, until_s)), 0
        if not in_force:
            term += 1
    mine = Hold(name, owner, term, now + ttl_s)
    values = (name, term, owner, mine.until_s, me.boot, me.pids, me.pid, me.started)
    connection.execute("INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    return mine, 2


def _checksum(revision: int, data: bytes) -> int:
    """Of the bytes and of their place: the right bytes in the wrong place are wrong."""
    return zlib.crc32(data, revision & 0xFFFFFFFF)


def _pages(writes: Sequence[Write]) -> int:
    """About how many pages a batch adds to the `-wal` file, for the next checkpoint to come in time."""
    size = sum(sum(map(len, write.events)) + len(write.record or b"") for write in writes)
    return 1 + 2 * len(writes) + size // PAGE_BYTES


def _check_text(*names: str) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadInput(f"The name {name!r} is not text: half of a surrogate pair is no character.") from None
