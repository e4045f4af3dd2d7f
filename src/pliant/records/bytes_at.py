"""Bytes of a file at any position: local files, fsspec URLs, compressed files and bytes in memory.

Every reader takes bytes by position, so that it can be used from several threads, and from data workers after a fork.
A compressed file has no positions: it is decompressed into an unnamed temporary file when it is first read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import tempfile
import threading
import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pliant.errors import BadInput, DamagedRecord
from pliant.file_systems import open_file_system

CHUNK = 1 << 20
OPEN_FILES_MAX = 128
COMPRESSIONS: dict[str, Callable[[Any], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
BAD_COMPRESSION = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


def damaged_record(location: str, offset: int, why: str) -> DamagedRecord:
    """Return the error for a record that begins at `offset` of that file."""
    return DamagedRecord(f"{location}, offset {offset}: {why}", location, offset)


class BytesAt(ABC):
    """The bytes of one file. `identity` changes when the file does; it is empty if that cannot be seen."""

    location: str
    size: int
    identity: str = ""

    @abstractmethod
    def read_at(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset` on; fewer at the end of the file."""

    def exactly(self, offset: int, count: int, what: str) -> bytes:
        """Return exactly that many bytes. Raises DamagedRecord if the file ends before."""
        if count > self.size - offset:
            raise self.damaged(offset, f"the file ends in {what}: {count} bytes wanted, {self.size - offset} left")
        data = self.read_at(offset, count)
        if len(data) != count:
            raise self.damaged(offset, f"the file became shorter while it was read, in {what}")
        return data

    def damaged(self, offset: int, why: str) -> DamagedRecord:
        """Return the error for a record that begins at `offset`."""
        return damaged_record(self.location, offset, why)


class MemoryBytes(BytesAt):
    """Bytes in memory."""

    def __init__(self, data: bytes, location: str = "memory") -> None:
        self.location, self.size, self._data = location, len(data), data

    def read_at(self, offset: int, count: int) -> bytes:
        return self._data[offset : offset + count]


class LocalBytes(BytesAt):
    """A local file. A data set may have many, so only the last ones used are kept open."""

    def __init__(self, path: Path) -> None:
        self.location = str(path)
        found = path.stat()
        self.size, self.identity = found.st_size, f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
        _OPEN_FILES.get(self.location)

    def read_at(self, offset: int, count: int) -> bytes:
        file = _OPEN_FILES.get(self.location)  # held, so that it is not closed meanwhile
        return _pread(file.number, offset, count)


class _Descriptor:
    """An open file, closed when its last user drops it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _OpenFiles:
    """The files used last. A reader in another thread may still use one that is dropped here."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, _Descriptor] = OrderedDict()
        self.unlock()

    def unlock(self) -> None:
        """Begin with a new lock, in a forked process: another thread may have held the old one."""
        self._lock = threading.Lock()

    def get(self, path: str) -> _Descriptor:
        with self._lock:
            file = self._files.pop(path, None) or _Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self._files[path] = file
            if len(self._files) > OPEN_FILES_MAX:
                self._files.popitem(last=False)
            return file


_OPEN_FILES = _OpenFiles()
os.register_at_fork(after_in_child=_OPEN_FILES.unlock)


class RemoteBytes(BytesAt):
    """A file of fsspec's. Each process opens it for itself: connections do not survive a fork."""

    def __init__(self, file_system: Any, path: str, location: str) -> None:
        self.location, self._fs, self._path = location, file_system, path
        info = self._fs.info(path)
        self.size = int(info["size"])
        self.identity = _remote_mark(info)
        self._lock = threading.Lock()
        self._opened: tuple[int, Any] | None = None

    def read_at(self, offset: int, count: int) -> bytes:
        if self._opened is None or self._opened[0] != os.getpid():
            self._lock = threading.Lock()
            self._opened = (os.getpid(), self._fs.open(self._path, "rb"))
        with self._lock:
            file = self._opened[1]
            file.seek(offset)
            return bytes(file.read(count))


def _remote_mark(info: Mapping[str, Any]) -> str:
    marks = [str(info.get(name, "")) for name in ("ETag", "etag", "mtime", "LastModified", "last_modified")]
    return f"{info['size']} {' '.join(marks)}" if any(marks) else ""


def change_mark(location: str) -> str:
    """Return text that changes with a file, and that a copy with its time of change shares; empty if it has none.

    Times are in whole seconds, as tar and rsync keep them.
    """
    if "://" not in location:
        found = Path(location).stat()
        return f"{found.st_size} {int(found.st_mtime)}"
    file_system, path = open_file_system(location)
    return _remote_mark(file_system.info(path))


class DecompressedBytes(BytesAt):
    """A compressed file, decompressed into a temporary file when its bytes or its size are first needed.

    Offsets in messages are those of the decompressed bytes.
    """

    def __init__(self, source: BytesAt, suffix: str) -> None:
        self.location, self._source, self._suffix = source.location, source, suffix
        self.identity = source.identity and f"{source.identity} {suffix}"
        self._file: _Descriptor | None = None

    @property
    def size(self) -> int:  # type: ignore[override]
        return os.fstat(self._decompressed().number).st_size

    def read_at(self, offset: int, count: int) -> bytes:
        return _pread(self._decompressed().number, offset, count)

    def _decompressed(self) -> _Descriptor:
        if self._file is None:
            raw = io.BufferedReader(Seekable(self._source), CHUNK)
            with tempfile.TemporaryFile(prefix="pliant-records-") as file:
                try:
                    with COMPRESSIONS[self._suffix](raw) as plain:
                        shutil.copyfileobj(plain, file, CHUNK)
                except BAD_COMPRESSION as error:
                    raise self._source.damaged(raw.tell(), f"it cannot be decompressed: {error}") from error
                file.flush()
                self._file = _Descriptor(os.dup(file.fileno()))
        return self._file


class Seekable(io.RawIOBase):
    """A read-only file with a position of its own."""

    def __init__(self, source: BytesAt) -> None:
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError(f"position {base + offset} is before the beginning of the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._source.read_at(self._at, len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def _pread(descriptor: int, offset: int, count: int) -> bytes:
    parts = []
    while count and (part := os.pread(descriptor, min(count, 1 << 30), offset)):
        parts.append(part)
        offset, count = offset + len(part), count - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class Scanner:
    """Reads a file from a position on, in large pieces."""

    def __init__(self, source: BytesAt, offset: int = 0) -> None:
        self.source, self.at = source, offset
        self._piece, self._piece_at = b"", offset

    def take(self, count: int, what: str) -> bytes:
        """Return the next `count` bytes. Raises DamagedRecord if the file ends before."""
        begin = self.at - self._piece_at
        if begin + count > len(self._piece):
            self._fill(count, what)
            begin = 0
        self.at += count
        return self._piece[begin : begin + count]

    def skip(self, count: int, what: str) -> None:
        """Go past the next `count` bytes without reading them."""
        if count > self.source.size - self.at:
            raise self.source.damaged(self.at, f"the file ends in {what}")
        self.at += count

    @property
    def at_end(self) -> bool:
        return self.at >= self.source.size

    def _fill(self, count: int, what: str) -> None:
        wanted = min(max(count, CHUNK), self.source.size - self.at)
        self._piece = self.source.exactly(self.at, max(wanted, count), what)
        self._piece_at = self.at


def open_bytes(location: str) -> BytesAt:
    """Open a local path or an fsspec URL, decompressed if its name ends as a compressed file's does."""
    source = _open_plain(location)
    suffix = compression_of(location)
    return DecompressedBytes(source, suffix) if suffix else source


def _open_plain(location: str) -> BytesAt:
    if "://" not in location:
        try:
            return LocalBytes(Path(location))
        except OSError as error:
            raise BadInput(f"cannot open {location}: {error.strerror}") from error
    file_system, path = open_file_system(location)
    try:
        return RemoteBytes(file_system, path, location)
    except FileNotFoundError as error:
        raise BadInput(f"cannot open {location}: there is no such file") from error


def compression_of(location: str) -> str:
    """Return the suffix of a compressed file; empty if it is not compressed."""
    return next((suffix for suffix in COMPRESSIONS if location.endswith(suffix)), "")
