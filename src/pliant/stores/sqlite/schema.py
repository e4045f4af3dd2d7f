"""The tables, and how a file of an older version becomes one of ours.

A job's revision is not kept: it is the newest event's. So a write without a record adds its events and touches
nothing else of the job. Each event and each record has a checksum, since SQLite has none for its pages and
hands out a flipped bit as it finds it.

A change of the tables is a new step at the end of `MIGRATIONS`; what is there never changes. Each step is one
transaction together with the number of the version, so a kill leaves the old version whole, or the new one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from pliant.errors import StoreError
from pliant.stores.sqlite.mark import MODE

__all__ = ["APPLICATION", "MIGRATIONS", "check_is_store", "create", "migrate"]

APPLICATION = int.from_bytes(b"Plnt", "big")
"""In the file's header: it says whose file this is, also to `file` and to a person with a hex dump."""

Step = Callable[[sqlite3.Connection], None]


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
    for statement in _BASE.split(";"):  # not executescript, which would end the transaction
        connection.execute(statement)


MIGRATIONS: tuple[Step, ...] = (_base,)
"""The step at place n leads from version n to version n + 1."""


def create(path: Path, identity: str) -> None:
    """Call to make a whole, empty store under a name that nobody knows yet."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
    try:
        os.fchmod(fd, MODE)  # whatever the umask says; SQLite gives the files beside it the same mode
    finally:
        os.close(fd)
    connection = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, isolation_level=None)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        migrate(connection)
        connection.execute("INSERT INTO meta VALUES (1, ?, 0)", (identity,))
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()


def check_is_store(connection: sqlite3.Connection, path: Path) -> None:
    """Call before anything is done to a file: it may be somebody else's, or of a version we do not know."""
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    if application != APPLICATION:
        empty = not application and not _number(connection, "SELECT count(*) FROM sqlite_schema")
        kind = "is empty" if empty else "is another program's SQLite file"
        raise StoreError(f"{path} is not a store: it {kind}. Name another path, or move it away.")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} has schema version {version}; this Pliant supports versions up to {len(MIGRATIONS)}. Use the "
            f"newer Pliant that wrote it, or restore a backup from before it did."
        )


def migrate(connection: sqlite3.Connection) -> None:
    """Call with a file that is ours, before using it: takes the steps that it has not taken yet."""
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
