"""The mark: a small file beside the store that records its identity and its number of commits.

A restored backup has the identity of its original and lower revisions. Clients compare revisions within one identity,
so the backup must get another one, and nothing inside the file shows that. The mark does. It has the identity and the
number of commits, written after each commit became durable. So the file is never behind its mark, whenever the process
is killed or the power fails: the mark is not flushed with each commit and can only lag. A file that is behind its mark,
has the mark of another file, or has none, was restored, moved without its mark, or lost data on its disk. For the same
reason a kill during creation or opening never changes the identity: the mark is written first, and the file has no
commits before that.

The mark also records the inode of the file. SQLite would apply a `-wal` file that another file left behind to this one,
without notice.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pliant.errors import StoreUnavailable

__all__ = ["MarkContents", "StoreMark", "flush_directory"]

MODE = 0o600
LENGTH = 91  # bytes of every mark; a disk writes that much atomically


@dataclass(frozen=True, slots=True)
class MarkContents:
    """The contents of a mark. It has a digest of the identity, so that every mark has the same length."""

    digest: str
    writes: int
    inode: int

    def is_of(self, identity: str) -> bool:
        return self.digest == _digest(identity)


class StoreMark:
    """The open mark of a store. Open it before the store's file, and close it after."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
            os.fchmod(self._fd, MODE)  # regardless of the umask
        except FileExistsError:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def locked(self, wait_s: float) -> Iterator[None]:
        """Lock the store while opening it: one process at a time creates it, migrates it or changes its identity."""
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise StoreUnavailable(f"Another process is opening the store of {self.path}; try again.") from None
                threading.Event().wait(0.005)
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def read(self) -> MarkContents | None:
        """Return the contents; None if the mark is empty or invalid."""
        fields = os.pread(self._fd, LENGTH, 0).decode("ascii", "replace").split()
        if len(fields) != 5 or fields[0] != "pliant" or fields[4] != _checksum(" ".join(fields[:4])):
            return None
        return MarkContents(fields[1], int(fields[2]), int(fields[3]))

    def write_durably(self, identity: str, writes: int, number: int) -> None:
        """Write the mark and return once it is durable."""
        self.write(identity, writes, number)
        os.fsync(self._fd)
        flush_directory(self.path.parent)

    def write(self, identity: str, writes: int, number: int) -> None:
        """Write the mark after a commit, in place. The system decides when it reaches the disk."""
        body = f"pliant {_digest(identity)} {writes:020d} {number:020d}"
        os.pwrite(self._fd, f"{body} {_checksum(body)}\n".encode("ascii"), 0)

    def close(self) -> None:
        try:
            with contextlib.suppress(OSError):  # the mark may lag
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


def flush_directory(path: Path) -> None:
    """Make the names of new files in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii', 'replace')):08x}"
