"""What SQLite and the system say, as the errors of the contract: one sentence on what is, one on what to do."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from pliant.errors import BadInput, PliantError, StoreError, StoreTimeout, StoreUnavailable

__all__ = ["damaged", "explain", "explain_os", "is_harmless", "no_room"]

# These fail before the last page of a commit is in the `-wal` file whole, so the commit cannot come back.
_BEFORE_THE_FLUSH = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMOPEN}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_harmless(error: sqlite3.Error) -> bool:
    """Call after an error: True if the connection can be used as before, once it is rolled back."""
    return _primary(error) in {*_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_TOOBIG}


def explain(error: sqlite3.Error, path: Path, committing: bool = False) -> PliantError:
    """Call with any error of SQLite. `committing`: it came from the commit itself, whose outcome may be open."""
    code, primary = _code(error), _primary(error)
    said = f"SQLite says: {error}"
    if primary in _BUSY:
        return StoreUnavailable(f"Another process keeps {path} locked; nothing was written. Try again. ({said})")
    if primary == sqlite3.SQLITE_FULL:
        return no_room(path)
    if primary == sqlite3.SQLITE_TOOBIG:
        return BadInput(f"A value is too large for {path}; nothing was written. ({said})")
    if committing and not (primary == sqlite3.SQLITE_READONLY or code in _BEFORE_THE_FLUSH):
        return StoreTimeout(
            f"The disk of {path} failed during a commit: it is not known whether this was written. Read before "
            f"writing again, and look at the disk. ({said})"
        )
    if primary == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not a store: it is no SQLite file. Name another path, or move it away. ({said})")
    if primary == sqlite3.SQLITE_CORRUPT:
        return damaged(path, said)
    if primary == sqlite3.SQLITE_READONLY:
        return StoreError(
            f"{path} can be read but not written, and nothing was. Give this user the right to write the file and "
            f"its directory, or mount the disk for writing. ({said})"
        )
    if primary in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return StoreError(
            f"{path} cannot be opened. Give this user the right to read and write it and the files beside it. ({said})"
        )
    if primary == sqlite3.SQLITE_IOERR:
        return StoreError(
            f"The disk of {path} could not be read or written; nothing was written. Look at the disk, and whether a "
            f"quota or a limit on the size of files is reached. ({said}, {getattr(error, 'sqlite_errorname', '?')})"
        )
    return StoreError(f"{path} did not do what was asked of it; nothing was written. ({said})")


def explain_os(error: OSError, path: Path) -> StoreError:
    """Call with what the system said about the store's files or their directory."""
    directory = path.parent
    said = f"The system says: {error.strerror}"
    if error.errno in _NO_ROOM:
        return no_room(path)
    if isinstance(error, FileNotFoundError):
        return StoreError(f"There is no directory {directory} to keep a store in. Make it first. ({said})")
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return StoreError(
            f"{directory} cannot be used for the store {path.name}. Give this user the right to make and write "
            f"files there. ({said})"
        )
    return StoreError(f"{path} cannot be used as a store. ({said})")


def damaged(path: Path, what: str) -> StoreError:
    """Call where the file's contents cannot be what was written."""
    return StoreError(
        f"{path} is damaged; nothing was written. Stop, keep the file for whoever looks into it, look at the disk, "
        f"and restore a backup. ({what})"
    )


def no_room(path: Path) -> StoreError:
    return StoreError(
        f"There is no room left for {path}; nothing was written. Make room: all that was acknowledged is there, and "
        f"the store goes on by itself."
    )


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # not there if Python itself complained


def _primary(error: sqlite3.Error) -> int:
    return _code(error) & 0xFF
