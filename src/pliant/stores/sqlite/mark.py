"""The mark: a small file beside the store that remembers which store it was and how far it had got.

A restored backup has the identity of the store it was taken from, and lower revisions. Clients compare
revisions within one identity, so it must get another, and nothing inside the file can say so. The mark can: it
has the identity and the number of commits, written here after each commit had become durable. So of the two
the file is never behind the mark, whenever the process is killed or the power fails: the mark itself is not
flushed with each commit, and may only lag. A file that is behind its mark, or another one's, or has none, was
restored, moved apart from it, or lost by its disk. This is also why a kill at any moment of making or opening a
store invents no new identity: the mark is made first, and the file is empty of commits until the mark is there.

The mark also remembers the file's number on its disk (`st_ino`): a `-wal` file left behind by another file would
be played onto this one, page over page, and SQLite does not notice.
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
LENGTH = 91  # of every mark: well within what a disk writes all of or nothing


@dataclass(frozen=True, slots=True)
class MarkContents:
    """What a mark says. `digest` stands for the identity, so that every mark has the same length."""

    digest: str
    writes: int
    inode: int

    def is_of(self, identity: str) -> bool:
        return self.digest == _digest(identity)


class StoreMark:
    """Open it before the store's file is looked at, and close it after."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
            os.fchmod(self._fd, MODE)  # whatever the umask says
        except FileExistsError:
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    @contextmanager
    def locked(self, wait_s: float) -> Iterator[None]:
        """Hold while opening: one opener at a time makes the store, moves it on or gives it a new identity."""
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
        """None if there is no mark, or none that can be read."""
        fields = os.pread(self._fd, LENGTH, 0).decode("ascii", "replace").split()
        if len(fields) != 5 or fields[0] != "pliant" or fields[4] != _checksum(" ".join(fields[:4])):
            return None
        return MarkContents(fields[1], int(fields[2]), int(fields[3]))

    def write_durably(self, identity: str, writes: int, number: int) -> None:
        """Call before anything rests on this mark: returns once it is durable."""
        self.write(identity, writes, number)
        os.fsync(self._fd)
        flush_directory(self.path.parent)

    def write(self, identity: str, writes: int, number: int) -> None:
        """Call after each commit. One small write in place; when it gets to the disk is up to the system."""
        body = f"pliant {_digest(identity)} {writes:020d} {number:020d}"
        os.pwrite(self._fd, f"{body} {_checksum(body)}\n".encode("ascii"), 0)

    def close(self) -> None:
        try:
            with contextlib.suppress(OSError):  # a mark may lag
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


def flush_directory(path: Path) -> None:
    """Call after making a file: its name is not durable before."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _digest(identity: str) -> str:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _checksum(body: str) -> str:
    return f"{zlib.crc32(body.encode('ascii', 'replace')):08x}"
