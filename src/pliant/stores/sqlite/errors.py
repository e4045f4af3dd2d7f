"""Translate errors of SQLite and the system into errors of the store contract."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from pliant.errors import BadInput, PliantError, StoreError, StoreTimeout, StoreUnavailable

__all__ = ["SQLITE_ERRORS", "SqliteError", "damaged", "disk_full", "explain", "explain_os", "is_recoverable"]

# These fail before the last page of a commit is complete in the `-wal` file, so the commit cannot reappear.
_BEFORE_FLUSH = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


SqliteError = sqlite3.Error | UnicodeDecodeError
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""All errors of a damaged file. Python decodes names and messages of SQLite, which contain the damaged bytes."""


def is_recoverable(error: SqliteError) -> bool:
    """Return whether the connection can still be used after a rollback."""
    return _primary(error) in {*_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG}


def explain(error: SqliteError, path: Path, committing: bool = False) -> PliantError:
    """Translate an error of SQLite. `committing`: it came from a commit, whose outcome may be unknown."""
    code, primary = _code(error), _primary(error)
    detail = f"SQLite: {error}"
    if isinstance(error, UnicodeDecodeError):
        return damaged(path, detail)
    if primary in _BUSY:
        return StoreUnavailable(f"Another process has locked {path}; nothing was written. Try again. ({detail})")
    if primary == sqlite3.SQLITE_FULL:
        return disk_full(path)
    if primary == sqlite3.SQLITE_TOOBIG:
        return BadInput(f"A value is too large for {path}; nothing was written. ({detail})")
    if committing and not (primary == sqlite3.SQLITE_READONLY or code in _BEFORE_FLUSH):
        return StoreTimeout(
            f"The disk of {path} failed during a commit, and it is unknown whether this was written. Read before "
            f"writing again, and check the disk. ({detail})"
        )
    if primary == sqlite3.SQLITE_NOTADB:
        return StoreError(
            f"{path} is not a store: it is not a SQLite file. Use another path, or move the file. ({detail})"
        )
    if primary == sqlite3.SQLITE_CORRUPT:
        return damaged(path, detail)
    if primary == sqlite3.SQLITE_READONLY:
        return StoreError(
            f"{path} is read-only; nothing was written. Give this user write access to the file and its directory, or "
            f"mount the disk for writing. ({detail})"
        )
    if primary in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return StoreError(
            f"{path} cannot be opened. Give this user read and write access to it and the files beside it. ({detail})"
        )
    if primary == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"The disk of {path} could not be read or written; nothing was written. Check the disk, quotas, and limits "
            f"on file sizes. ({detail}, {getattr(error, 'sqlite_errorname', '?')})"
        )
    return StoreError(f"{path} failed; nothing was written. ({detail})")


def explain_os(error: OSError, path: Path) -> StoreError:
    """Translate an error of the system about the store's files or their directory."""
    directory = path.parent
    detail = f"{error.strerror}"
    if error.errno in _DISK_FULL:
        return disk_full(path)
    if isinstance(error, FileNotFoundError):
        return StoreError(f"The directory {directory} does not exist. Create it first. ({detail})")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StoreError(
            f"{directory} cannot be used for the store {path.name}. Give this user the right to create and write "
            f"files there. ({detail})"
        )
    return StoreError(f"{path} cannot be used as a store. ({detail})")


def damaged(path: Path, what: str) -> StoreError:
    """Describe a file whose contents differ from what was written."""
    return StoreError(
        f"{path} is damaged; nothing was written. Stop, keep the file for analysis, check the disk, and restore a "
        f"backup. ({what})"
    )


def disk_full(path: Path) -> StoreError:
    return StoreError(
        f"The disk of {path} is full; nothing was written. Free some space: no acknowledged write is lost, and the "
        f"store recovers by itself."
    )


def _code(error: SqliteError) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # missing on errors that Python itself raises


def _primary(error: SqliteError) -> int:
    return _code(error) & 0xFF
