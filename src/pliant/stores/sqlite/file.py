"""The store's file: open it, identify it, check it, and commit to it.

**Checks.** On opening: the file is a store of a supported version, its `-wal` file is its own, and it is not behind its
mark. The pages are not checked: that takes as long as reading the whole file and would delay a coordinator's restart. A
damaged page is reported when it is read (`PRAGMA quick_check` checks all). In every transaction: identity and version
are unchanged, and the number of commits has not decreased. Before and after every commit: the path still names the open
file. A commit into a file that was renamed or removed would be lost.

**Checkpoints.** Only this module runs them, with `RESTART`, which waits for the write lock as long as a write does.
SQLite's automatic checkpoints run beside other writers. Up to version 3.51.2 a race between a second checkpoint and a
commit that restarts the `-wal` file damages the file.

**Never open the main file except through SQLite.** Its locks belong to the process and are all released when any
descriptor of the file is closed.
"""

from __future__ import annotations

import logging
import sqlite3
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pliant.errors import PliantError, StoreError, StoreTimeout, StoreUnavailable
from pliant.stores.sqlite import schema
from pliant.stores.sqlite.errors import SQLITE_ERRORS, SqliteError, damaged, explain, explain_os, is_recoverable
from pliant.stores.sqlite.mark import StoreMark, flush_directory

__all__ = ["Row", "StoreFile"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]
Id = tuple[int, int] | None

CHECKPOINT_PAGES = 1000

SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",  # on systems where fsync stops at the disk's cache
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA mmap_size = 0",  # so that a read error raises an error and no signal
    "PRAGMA cell_size_check = ON",  # check a page before using its lengths
    "PRAGMA trusted_schema = OFF",  # nothing in the file can call a function
)


class StoreFile:
    """One connection to one file, not thread-safe. `identity` is for a file that does not exist yet."""

    def __init__(self, path: Path, identity: str | None, wait_s: float) -> None:
        self.path = path.absolute()
        self._wait_s = wait_s
        self._file = self.path.resolve()  # the file that SQLite opens, beside which it keeps its others
        self._wal = self._file.with_name(f"{self._file.name}-wal")
        self._shm = self._file.with_name(f"{self._file.name}-shm")  # it has the locks
        self._pages = 0  # written since the last checkpoint, estimated
        self._must_reconnect = False  # after an error that made the connection unusable
        try:
            self._mark = StoreMark(self._file.with_name(f"{self._file.name}.mark"))
        except OSError as error:
            raise explain_os(error, self.path) from error
        try:
            with self._mark.locked(wait_s):
                self._open(identity)
        except SQLITE_ERRORS as error:
            self._mark.close()
            raise explain(error, self.path) from error
        except OSError as error:
            self._mark.close()
            raise explain_os(error, self.path) from error
        except PliantError:
            self._mark.close()
            raise

    # ------------------------------------------------------------------------------------------- opening it

    def _open(self, identity: str | None) -> None:
        if self._file.exists():
            self._check_wal()
        else:
            self._check_no_wal()
            self._create(identity or uuid.uuid4().hex)
        self._connection = self._connect()
        try:
            schema.migrate(self._connection)
            self._identify()
            self._ids = self._ids_now()
            flush_directory(self._file.parent)  # SQLite does it for a new `-wal` file too, but ignores failures
        except BaseException:  # why: no other code has this connection, so close it after any failure
            self._connection.close()
            raise

    def _create(self, identity: str) -> None:
        """Create the store under a temporary name and rename it when complete, so that no partial store exists."""
        before = self._mark.read()
        if before is not None and before.writes:
            log.warning(
                "The store %s had %d commits and is missing: created a new, empty one.", self.path, before.writes
            )
        draft = self._file.with_name(f".{self._file.name}.{uuid.uuid4().hex}.new")
        try:
            schema.create(draft, identity)
            self._mark.write_durably(identity, 0, draft.stat().st_ino)
            draft.rename(self._file)
        finally:
            draft.unlink(missing_ok=True)

    def _check_no_wal(self) -> None:
        if self._has_leftover_wal():
            raise StoreError(
                f"{self.path} is missing, but {self._wal} exists; nothing was created. Put the file back. If it is "
                f"lost or you want an empty store, move {self._wal} away as well."
            )

    def _check_wal(self) -> None:
        marked = self._mark.read()
        if self._has_leftover_wal() and marked is not None and marked.inode != self._file.stat().st_ino:
            raise StoreError(
                f"{self._wal} belongs to another file that was at {self.path} before. If you restored a backup, move "
                f"it away. If you moved the store with all its files, remove {self._mark.path} instead."
            )

    def _has_leftover_wal(self) -> bool:
        return self._wal.exists() and self._wal.stat().st_size > 0

    def _identify(self) -> None:
        """Read the identity, and assign a new one to a file that was restored or separated from its mark."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("UPDATE meta SET writes = writes")  # refuse a read-only file now
        marked = self._mark.read()  # read it before the file, which may be ahead while others write
        identity, writes = self._meta()
        self._number = self._file.stat().st_ino
        if marked is None or not marked.is_of(identity) or marked.writes > writes:
            old, identity = identity, uuid.uuid4().hex
            # Write the mark first. After a kill in between, the two still differ.
            self._mark.write_durably(identity, writes, self._number)
            self._connection.execute("UPDATE meta SET identity = ?", (identity,))
            self._connection.execute("COMMIT")
            log.warning(
                "The store %s was restored, or moved without its mark: changed its identity to %s from %s.",
                self.path,
                identity,
                old,
            )
        elif marked.inode != self._number:
            self._mark.write_durably(identity, writes, self._number)
        self._rollback()  # nothing uncommitted is needed
        self.identity, self._seen = identity, writes

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._file.as_uri()}?mode=rw",
            uri=True,
            timeout=self._wait_s,
            isolation_level=None,  # this module begins and ends the transactions
            check_same_thread=False,
        )
        try:
            schema.check_is_store(connection, self.path)
            for setting in SETTINGS:
                connection.execute(setting).fetchall()
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"{self.path} cannot use WAL mode there (got {mode}): use a local disk.")
        except BaseException:  # why: no other code has this connection, so close it after any failure
            connection.close()
            raise
        return connection

    # --------------------------------------------------------------------------------------------- using it

    def change(self, body: Callable[[sqlite3.Connection], tuple[T, int]]) -> T:
        """Run `body` in a write transaction. It returns its result and the estimated pages written; 0 rolls back."""
        connection = self._ready()
        committing = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            writes = self._check_contents()
            result, pages = body(connection)
            if not pages:
                connection.execute("ROLLBACK")
                return result
            writes += 1
            connection.execute("UPDATE meta SET writes = ?", (writes,))
            committing = True
            connection.execute("COMMIT")
        except SQLITE_ERRORS as error:
            raise self._failed(error, committing) from error
        except BaseException:  # why: even after an interrupt the next transaction must begin outside of this one
            self._rollback()
            raise
        self._check_in_place(committed=True)
        self._seen = writes
        try:
            self._mark.write(self.identity, writes, self._number)
        except OSError as error:  # the write stands, and the mark may lag
            log.warning("The mark of %s could not be written: %s", self.path, error)
        self._pages += pages
        if self._pages >= CHECKPOINT_PAGES:
            self._checkpoint()
        return result

    def query(self, statement: str, values: tuple[Any, ...] = ()) -> list[Row]:
        """Run one query. Only a single statement reads from one moment."""
        connection = self._ready()
        try:
            return connection.execute(statement, values).fetchall()
        except SQLITE_ERRORS as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the file. The last handle leaves it complete, without a `-wal` file."""
        self._connection.close()
        self._mark.close()

    def _ready(self) -> sqlite3.Connection:
        if self._must_reconnect:
            try:
                self._reconnect()
            except SQLITE_ERRORS as error:
                raise explain(error, self.path) from error
            except OSError as error:
                raise explain_os(error, self.path) from error
        self._check_in_place()
        return self._connection

    def _reconnect(self) -> None:
        """Open a new connection after an error.

        After a failed flush the system may show pages that are not on the disk, and never write them again. So the
        contents are copied into the main file and flushed again before anything else is written.
        """
        self._connection.close()
        if self._id(self.path) != self._ids[0]:
            self._check_in_place()
        self._connection = self._connect()
        self._ids = self._ids_now()
        flush_directory(self._file.parent)
        self._check_contents()
        if self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise StoreUnavailable(
                f"Other processes use {self.path}, so it cannot be flushed after an error; try again."
            )
        self._must_reconnect = False

    def _check_in_place(self, committed: bool = False) -> None:
        """Raise unless the path still names the file that is open, and its `-wal` and `-shm` files too."""
        if self._ids_now() == self._ids:
            return
        what = "it is unknown whether this write will be found" if committed else "nothing was written"
        why = (
            f"{self.path} or a file beside it was replaced, moved or removed while it was open; {what}. Stop, put the "
            f"files in place, and start again."
        )
        raise StoreTimeout(why) if committed else StoreError(why)

    def _ids_now(self) -> tuple[Id, ...]:
        return self._id(self.path), self._id(self._wal), self._id(self._shm)

    def _id(self, path: Path) -> Id:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_contents(self) -> int:
        """Raise unless these are still the contents that were opened. Return the number of commits."""
        identity, writes = self._meta()
        if identity != self.identity or writes < self._seen:
            raise StoreError(
                f"{self.path} was set back to a backup while it was open; nothing was written. Stop, and start again."
            )
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version != len(schema.MIGRATIONS):
            raise StoreError(
                f"A newer Pliant migrated {self.path} to version {version}; nothing was written. Start that one."
            )
        self._seen = writes
        return writes

    def _meta(self) -> tuple[str, int]:
        rows = self._connection.execute("SELECT identity, writes FROM meta").fetchall()
        if not rows:
            raise damaged(self.path, "its identity is missing")
        return rows[0][0], rows[0][1]

    def _checkpoint(self) -> None:
        self._pages = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        except sqlite3.Error as error:  # the write stands in the `-wal` file, and the next checkpoint copies it
            log.warning("%s", self._failed(error))

    def _failed(self, error: SqliteError, committing: bool = False) -> PliantError:
        self._rollback()
        self._must_reconnect = self._must_reconnect or not is_recoverable(error)
        return explain(error, self.path, committing)

    def _rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._must_reconnect = True
