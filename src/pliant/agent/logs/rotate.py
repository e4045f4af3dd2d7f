"""Logs of bounded size that hold whole lines and survive a full disk.

Not `RotatingFileHandler`: lines are bytes from several streams, a full disk must not stop a worker, and in a shared
folder another user may have put a link in the place of a file.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

FILE_MAX = 64 << 20  # a log that would grow beyond this becomes NAME.log.1, and a new one is begun
RETRY_S = 10.0  # shortest time between two tries to write a log that failed
LOOK_S = 1.0  # how often to check that the open file still has its name


_REASONS = {errno.ELOOP: "it is a symbolic link", errno.ENXIO: "it is a pipe that no process reads"}


class LogFile:
    """A file of whole lines and bounded size. If it cannot be written, that is reported once and retried later.

    `lock`: the same for all that write one file. `now` is the clock that the pauses are measured by.
    """

    def __init__(
        self,
        path: Path,
        complain: Callable[[str], None],
        *,
        limit: int = FILE_MAX,
        lock: threading.Lock | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._complain = complain
        self._limit = limit
        self._lock = lock or threading.Lock()
        self._now = now
        self._handle: int | None = None
        self._looked_at = now()
        self._missing: int | None = None  # bytes, since it was given up; None: it is written
        self._ended = False
        try:
            self._open()
        except OSError as error:
            self._give_up(error)

    def line(self, line: bytes) -> None:
        """Write a line. If that fails, report it once and drop lines until a retry succeeds."""
        if self._ended:
            return
        data = line + b"\n"
        with self._lock:
            try:
                if self._missing is not None:
                    if self._now() - self._looked_at < RETRY_S:
                        self._missing += len(data)
                        return
                    self._resume(self._missing, data)
                else:
                    self._write(data)
            except OSError as error:
                self._give_up(error)
                self._missing = (self._missing or 0) + len(data)

    def end(self) -> None:
        """Close the file. May be called twice."""
        self._ended = True
        self._close()

    def _open(self) -> None:
        """Open the file. In a shared folder, other users may have put a link, a pipe or a file of theirs in its place.

        A link could lead to a file of the user's, a pipe could block, and the owner of a file can read it.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOCTTY | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(self._path, flags, 0o600)
        if wrong := _why_unsafe(os.fstat(handle)):
            os.close(handle)
            raise OSError(errno.EPERM, wrong)
        self._handle = handle

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with suppress(OSError):  # some file systems report a full disk only now; the next write meets it, too
                os.close(handle)

    def _write(self, data: bytes) -> None:
        if self._now() - self._looked_at >= LOOK_S:
            self._looked_at = self._now()
            self._follow_name()
        assert self._handle is not None  # else it is given up
        found = os.fstat(self._handle)
        if stat.S_ISREG(found.st_mode) and found.st_size and found.st_size + len(data) > self._limit:
            self._rotate()
            found = os.fstat(self._handle)
        written = 0
        try:
            while written < len(data):
                written += os.write(self._handle, data[written:])
        except OSError:
            if written and stat.S_ISREG(found.st_mode):
                with suppress(OSError):  # half a line is better than losing the lines before it
                    os.ftruncate(self._handle, found.st_size)
            raise

    def _follow_name(self) -> bool:
        """Reopen the file if another process moved, removed or rotated it; return whether that was so."""
        assert self._handle is not None
        ours = os.fstat(self._handle)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        if there is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return False
        self._close()
        self._open()
        return True

    def _rotate(self) -> None:
        if self._follow_name():
            return  # another writer of it has done so
        self._path.replace(older(self._path))
        self._close()
        self._open()

    def _resume(self, missing: int, data: bytes) -> None:
        """Write again, or raise the error that still prevents it."""
        self._looked_at = self._now()
        with suppress(OSError):  # opening it raises the reason
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._open()
        self._write(b"[pliant: %d bytes are missing here]\n%s" % (missing, data))
        self._missing = None
        self._complain(f"{self._path} can be written again and goes on; {missing} bytes are missing in it.")

    def _give_up(self, error: OSError) -> None:
        self._close()
        self._looked_at = self._now()
        if self._missing is None:
            self._missing = 0
            why = _REASONS.get(error.errno or 0, error.strerror)
            self._complain(
                f"{self._path} cannot be written: {why}. What follows is not in it; "
                f"it is tried again every {RETRY_S:g} s."
            )


def _why_unsafe(found: os.stat_result) -> str:
    """Return why a file may be a trap of another user; empty if it is not."""
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to another user (uid {found.st_uid})"
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        return "it is a hard link to another file"
    return ""


def older(path: Path) -> Path:
    """Return the path that a log is moved to when it is too large."""
    return path.with_name(f"{path.name}.1")


def remove_oldest(folder: Path, kept: int, running: Collection[str]) -> None:
    """Remove the logs in a job's own folder that were written longest ago, until `kept` workers' logs are left.

    Logs of `running` workers stay. A file that cannot be removed stays as well.
    """
    with suppress(OSError):
        ended = [path for path in folder.glob("*.log") if path.stem not in running]
        ended.sort(key=lambda path: path.stat().st_mtime)
        for path in ended[: max(0, len(ended) + len(running) - kept)]:
            older(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
