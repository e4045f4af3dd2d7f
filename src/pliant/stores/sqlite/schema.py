"""The tables, and the migrations from older versions.

A job's revision is not stored, because it is that of its newest event. So a write without a record only adds its
events. Each event and each record has a checksum, since SQLite has none for its pages and returns a flipped bit as it
is.

A change of the tables is a new migration at the end of `MIGRATIONS`. Existing migrations never change. Each one is a
single transaction together with the version number, so a kill leaves either the old version or the new one.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path

from pliant.errors import StoreError
from pliant.stores.sqlite.checksum import checksum
from pliant.stores.sqlite.mark import MODE

__all__ = ["APPLICATION", "MIGRATIONS", "check_is_store", "create", "migrate"]

APPLICATION = int.from_bytes(b"Plnt", "big")
"""The application id in the header of the file, which `file` and a hex dump show too."""

Migration = Callable[[sqlite3.Connection], None]


_BASE = """
CREATE TABLE meta (
    only INTEGER PRIMARY KEY CHECK (only = 1), identity TEXT NOT NULL, writes INTEGER NOT NULL
);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
    record_revision INTEGER NOT NULL, checksum INTEGER NOT NULL, record BLOB NOT NULL
);
CREATE TABLE events (
    job INTEGER NOT NULL, revision INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (job, revision)
) WITHOUT ROWID;
CREATE TABLE holds (
    name TEXT PRIMARY KEY, term INTEGER NOT NULL, owner TEXT, until_s REAL NOT NULL,
    boot_id TEXT NOT NULL, pid_namespace TEXT NOT NULL, pid INTEGER NOT NULL, start_ticks INTEGER NOT NULL
) WITHOUT ROWID
"""


def _base(connection: sqlite3.Connection) -> None:
    for statement in _BASE.split(";"):  # `executescript` would end the transaction
        connection.execute(statement)


_BLOCKS = """
CREATE TABLE blocks (
    job INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, checksum INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (job, last)
) WITHOUT ROWID
"""


def _blocks(connection: sqlite3.Connection) -> None:
    connection.execute(_BLOCKS)


_LIVE = """
ALTER TABLE jobs ADD COLUMN live INTEGER NOT NULL DEFAULT 1;
CREATE INDEX live_jobs ON jobs (name) WHERE live = 1;
ALTER TABLE holds ADD COLUMN ttl_s REAL NOT NULL DEFAULT 3.0;
ALTER TABLE holds ADD COLUMN url TEXT NOT NULL DEFAULT ''
"""


def _live(connection: sqlite3.Connection) -> None:
    for statement in _LIVE.split(";"):
        connection.execute(statement)


_SEGMENTS = """
DROP TABLE blocks;
CREATE TABLE segments (
    job INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (job, last)
) WITHOUT ROWID;
ALTER TABLE jobs ADD COLUMN base INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN floor INTEGER NOT NULL DEFAULT 0
"""


def _segments(connection: sqlite3.Connection) -> None:
    """Put the events in blocks back as they were before. The archive takes them from there."""
    for job, first, last, found, packed in connection.execute("SELECT * FROM blocks"):
        if checksum(last, packed) != found:
            raise StoreError(
                f"A block of the store, revisions {first} to {last}, is not as it was written. Restore a backup."
            )
        whole, at = zlib.decompress(packed), 0
        for revision in range(first, last + 1):
            length = int.from_bytes(whole[at : at + 4], "little")
            data = whole[at + 4 : at + 4 + length]
            at += 4 + length
            connection.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?)", (job, revision, checksum(revision, data), data)
            )
    for statement in _SEGMENTS.split(";"):
        connection.execute(statement)


MIGRATIONS: tuple[Migration, ...] = (_base, _blocks, _live, _segments)
"""The migration at index n leads from version n to version n + 1."""


def create(path: Path, identity: str) -> None:
    """Create a complete, empty store under a temporary name."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        os.fchmod(fd, MODE)  # regardless of the umask; SQLite gives the files beside it the same mode
    finally:
        os.close(fd)
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        migrate(connection)
        connection.execute("INSERT INTO meta (only, identity, writes) VALUES (1, ?, 0)", (identity,))
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def check_is_store(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError unless the file is a store of a supported version. Call it before any change."""
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    if application != APPLICATION:
        empty = not application and not _number(connection, "SELECT count(*) FROM sqlite_schema")
        kind = "is empty" if empty else "is a SQLite file of another program"
        raise StoreError(f"{path} is not a store: it {kind}. Use another path, or move the file.")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} has schema version {version}; this Pliant supports versions up to {len(MIGRATIONS)}. Use the "
            f"newer Pliant that wrote it, or restore a backup from before it did."
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Run the migrations that a store still needs."""
    for version in range(_number(connection, "PRAGMA user_version"), len(MIGRATIONS)):
        connection.execute("BEGIN IMMEDIATE")
        try:
            MIGRATIONS[version](connection)
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])
