"""The store's file: opened, recognised, kept an eye on, and committed to.

**What is checked when.** On opening: that the file is ours and of a version we know, that its `-wal` file is its
own, that it is not behind its mark. Not that all of its pages are sound: that takes as long as reading all of it,
and would keep a coordinator from coming back, while a damaged page is met by whoever needs it (`PRAGMA
quick_check` is there for a person with time). In every transaction: that identity and version are still those, and
that the number of commits has not gone down. Before and after every commit: that the path still names the file we
have open. A commit into a file that was renamed or removed would be lost with it.

**Checkpoints.** Ours alone, under the write lock: `RESTART` waits for it as long as a write would, and only then
goes on without. SQLite's own run beside other writers, and up to 3.51.2 there is a race between a second checkpoint
and a commit that starts the `-wal` file again, which damages the file.

**Never open the main file but through SQLite.** Its locks belong to the process: they are all gone once any
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
from pliant.stores.sqlite.errors import damaged, explain, explain_os, is_harmless
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
    "PRAGMA fullfsync = ON",  # where fsync alone stops at the disk's own memory
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA mmap_size = 0",  # a read error is then an error and not a signal
    "PRAGMA cell_size_check = ON",  # look at a page before trusting its lengths
    "PRAGMA trusted_schema = OFF",  # nothing in the file makes us call a function
)


class StoreFile:
    """One connection to one file. `identity` is for a file that does not exist yet; not thread-safe."""

    def __init__(self, path: Path, identity: str | None, wait_s: float) -> None:
        self.path = path.absolute()
        self._wait_s = wait_s
        self._file = self.path.resolve()  # what SQLite opens, and beside which it keeps its other files
        self._wal = self._file.with_name(f"{self._file.name}-wal")
        self._shm = self._file.with_name(f"{self._file.name}-shm")  # the locks are on this one
        self._pages = 0  # written since the last checkpoint, about
        self._doubt = False  # an error made this connection one not to be used again
        try:
            self._mark = StoreMark(self._file.with_name(f"{self._file.name}.mark"))
        except OSError as error:
            raise explain_os(error, self.path) from error
        try:
            with self._mark.locked(wait_s):
                self._open(identity)
        except sqlite3.Error as error:
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
            self._make(identity or uuid.uuid4().hex)
        self._connection = self._connect()
        try:
            schema.migrate(self._connection)
            self._recognise()
            self._ids = self._ids_now()
            flush_directory(self._file.parent)  # SQLite does it too for a new `-wal` file, and ignores failures
        except BaseException:  # why: whatever it was, nobody else has this connection
            self._connection.close()
            raise

    def _make(self, identity: str) -> None:
        """Make the store under another name and give it its own when it is whole: there is never half of one."""
        before = self._mark.read()
        if before is not None and before.writes:
            log.warning("The store %s had %d commits and is gone: a new, empty one is made.", self.path, before.writes)
        draft = self._file.with_name(f".{self._file.name}.{uuid.uuid4().hex}.new")
        try:
            schema.create(draft, identity)
            self._mark.write_durably(identity, 0, draft.stat().st_ino)
            draft.rename(self._file)
        finally:
            draft.unlink(missing_ok=True)

    def _check_no_wal(self) -> None:
        if self._wal_left():
            raise StoreError(
                f"{self.path} is gone, and {self._wal} is left of it; nothing was made. Put the file back. If it is "
                f"lost or you want an empty store, move {self._wal} away as well."
            )

    def _check_wal(self) -> None:
        marked = self._mark.read()
        if self._wal_left() and marked is not None and marked.inode != self._file.stat().st_ino:
            raise StoreError(
                f"{self._wal} belongs to another file that was at {self.path} before. If you restored a backup, move "
                f"it away. If you moved the store with all its files, remove {self._mark.path} instead."
            )

    def _wal_left(self) -> bool:
        return self._wal.exists() and self._wal.stat().st_size > 0

    def _recognise(self) -> None:
        """Learn the identity, and give a new one to what was restored or was parted from its mark."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("UPDATE meta SET writes = writes")  # a file that can only be read is refused now
        marked = self._mark.read()  # before the file, which is ahead of it if others were writing
        identity, writes = self._meta()
        self._number = self._file.stat().st_ino
        if marked is None or not marked.is_of(identity) or marked.writes > writes:
            old, identity = identity, uuid.uuid4().hex
            # The mark first: should we be killed in between, the two disagree still.
            self._mark.write_durably(identity, writes, self._number)
            self._connection.execute("UPDATE meta SET identity = ?", (identity,))
            self._connection.execute("COMMIT")
            log.warning(
                "The store %s was restored, or moved without its mark: its identity is %s now and was %s.",
                self.path,
                identity,
                old,
            )
        elif marked.inode != self._number:
            self._mark.write_durably(identity, writes, self._number)
        self._undo()  # of what is not committed there is nothing to keep
        self.identity, self._seen = identity, writes

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self._file.as_uri()}?mode=rw",
            uri=True,
            timeout=self._wait_s,
            isolation_level=None,  # transactions begin and end where we say so
            check_same_thread=False,
        )
        try:
            schema.check_is_store(connection, self.path)
            for setting in SETTINGS:
                connection.execute(setting).fetchall()
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
            if mode != "wal":
                raise StoreError(f"{self.path} cannot be in WAL mode there ({mode}): use a local disk.")
        except BaseException:  # why: whatever it was, nobody else has this connection
            connection.close()
            raise
        return connection

    # --------------------------------------------------------------------------------------------- using it

    def change(self, body: Callable[[sqlite3.Connection], tuple[T, int]]) -> T:
        """Call to write. `body` answers with its result and about how many pages it wrote; 0: there is nothing."""
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
        except sqlite3.Error as error:
            raise self._failed(error, committing) from error
        except BaseException:  # why: also if interrupted, the next transaction must begin outside of this one
            self._undo()
            raise
        self._check_in_place(committed=True)
        self._seen = writes
        try:
            self._mark.write(self.identity, writes, self._number)
        except OSError as error:  # the write stands, and a mark may lag
            log.warning("The mark of %s could not be written: %s", self.path, error)
        self._pages += pages
        if self._pages >= CHECKPOINT_PAGES:
            self._checkpoint()
        return result

    def query(self, statement: str, values: tuple[Any, ...] = ()) -> list[Row]:
        """Call to read. One statement sees one moment, so what belongs together is asked together."""
        connection = self._ready()
        try:
            return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Call at the end. The last one to close a file leaves it whole, without a `-wal` file."""
        self._connection.close()
        self._mark.close()

    def _ready(self) -> sqlite3.Connection:
        if self._doubt:
            try:
                self._reconnect()
            except sqlite3.Error as error:
                raise explain(error, self.path) from error
            except OSError as error:
                raise explain_os(error, self.path) from error
        self._check_in_place()
        return self._connection

    def _reconnect(self) -> None:
        """After a failed flush the system may show pages that are not on the disk, and never write them again.

        What can be read now is copied into the main file and flushed anew; only then is it built upon.
        """
        self._connection.close()
        if self._id(self.path) != self._ids[0]:
            self._check_in_place()
        self._connection = self._connect()
        self._ids = self._ids_now()
        flush_directory(self._file.parent)
        self._check_contents()
        if self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            raise StoreUnavailable(f"{self.path} is in use by others and cannot be flushed after an error; try again.")
        self._doubt = False

    def _check_in_place(self, committed: bool = False) -> None:
        """Raise unless the path still names the file that is open, and its `-wal` and `-shm` files too."""
        if self._ids_now() == self._ids:
            return
        what = "it is not known whether this write will be found" if committed else "nothing was written"
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
        """Whether these are still the contents that were opened. Answers the number of commits so far."""
        identity, writes = self._meta()
        if identity != self.identity or writes < self._seen:
            raise StoreError(
                f"{self.path} was set back to a backup while it was open; nothing was written. Stop, and start again."
            )
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version != len(schema.MIGRATIONS):
            raise StoreError(
                f"{self.path} was moved on to version {version} by a newer Pliant; nothing was written. Start that one."
            )
        self._seen = writes
        return writes

    def _meta(self) -> tuple[str, int]:
        rows = self._connection.execute("SELECT identity, writes FROM meta").fetchall()
        if not rows:
            raise damaged(self.path, "it has lost its identity")
        return rows[0][0], rows[0][1]

    def _checkpoint(self) -> None:
        self._pages = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        except sqlite3.Error as error:  # the write stands, in the `-wal` file; the next checkpoint copies it
            log.warning("%s", self._failed(error))

    def _failed(self, error: sqlite3.Error, committing: bool = False) -> PliantError:
        self._undo()
        self._doubt = self._doubt or not is_harmless(error)
        return explain(error, self.path, committing)

    def _undo(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._doubt = True
