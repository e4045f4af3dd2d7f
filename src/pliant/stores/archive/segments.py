"""Segments: runs of a job's events, each compressed in one file that never changes.

**Names.** `STORE/JOB/FIRST-LAST-HASH.segment`: the identity of the store that wrote it, the job, the revisions of its
first and last event, and the start of the SHA-256 of the file. So no file is ever overwritten by another content, two
stores may share an archive, and a damaged or exchanged file is recognised without the store.

**Content.** A line with the format, then a zlib stream: for each event its length as four bytes (little-endian) and its
bytes.

**Removing.** A store removes only segments of its own identity. A store that was restored from a backup has another
identity, so it removes nothing that the original may still need.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

from pliant.errors import BadInput, StoreError
from pliant.stores.base import Segment

__all__ = ["Archive", "ArchiveFiles", "pack", "unpack"]

FORMAT = b"pliant segment 1\n"
LEVEL = 6
CONTENT_MAX = 1 << 28  # bytes of events in a segment, far above what is ever written

_LENGTH = struct.Struct("<I")
_FILE = re.compile(r"(\d{16})-(\d{16})-[0-9a-f]{32}\.segment")
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # never hidden, never outside the archive


class ArchiveFiles(Protocol):
    """Files by path, with `/` between folder and file. Every failure raises OSError."""

    @property
    def location(self) -> str:
        """The folder or URL, for messages."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Write a file. When this returns it is durable; before that it is not there, or it is whole."""
        ...

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file if it is there, and its folder if it is empty then."""
        ...


class Archive:
    """The archive of one store. Threads may share it: it holds nothing but its files."""

    def __init__(self, files: ArchiveFiles, identity: str) -> None:
        self._files = files
        self._identity = _checked(identity, "identity of a store")

    @property
    def location(self) -> str:
        return self._files.location

    def write(self, job: str, first: int, events: Sequence[bytes]) -> Segment:
        """Write the events from revision `first` on into a segment, durably."""
        content = pack(events)
        last = first + len(events) - 1
        file = f"{first:016d}-{last:016d}-{sha256(content).hexdigest()[:32]}.segment"
        name = f"{self._folder(job)}/{file}"
        try:
            self._files.write(name, content)
        except OSError as error:
            raise StoreError(f"{self.location} cannot be written: {error.strerror or error}.") from error
        return Segment(first, last, name)

    def read(self, segment: Segment) -> tuple[bytes, ...]:
        """Return the events of a segment. Raise StoreError if the file is missing or not as it was written."""
        try:
            content = self._files.read(segment.name)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.location} has no {segment.name}. Put the archive back that belongs to this store, or name it "
                "with --archive."
            ) from error
        except OSError as error:
            raise StoreError(f"{self.location} cannot be read: {error.strerror or error}.") from error
        events = unpack(content) if sha256(content).hexdigest()[:32] in segment.name else None
        if events is None or len(events) != segment.last - segment.first + 1:
            raise StoreError(f"{segment.name} in {self.location} is not as it was written. Restore it from a backup.")
        return events

    def jobs(self) -> list[str]:
        """Return the names of the jobs that have segments of this store here."""
        return self._names(self._identity)

    def newest(self, job: str) -> int:
        """Return the highest revision in the segments of a job here; 0 if there are none."""
        forms = [_FILE.fullmatch(name) for name in self._names(self._folder(job))]
        return max([int(form[2]) for form in forms if form], default=0)

    def remove(self, job: str, through: int) -> int:
        """Remove the segments of a deleted job, those up to revision `through`. Return how many there were."""
        folder = self._folder(job)
        removed = 0
        for name in self._names(folder):
            form = _FILE.fullmatch(name)
            if form and int(form[2]) <= through:
                try:
                    self._files.remove(f"{folder}/{name}")
                except OSError as error:
                    raise StoreError(f"{self.location} cannot be changed: {error.strerror or error}.") from error
                removed += 1
        return removed

    def _folder(self, job: str) -> str:
        return f"{self._identity}/{_checked(job, 'name of a job')}"

    def _names(self, folder: str) -> list[str]:
        try:
            return self._files.names(folder)
        except OSError as error:
            raise StoreError(f"{self.location} cannot be read: {error.strerror or error}.") from error


def pack(events: Sequence[bytes]) -> bytes:
    """Return the content of a segment's file."""
    whole = b"".join([part for data in events for part in (_LENGTH.pack(len(data)), data)])
    return FORMAT + zlib.compress(whole, LEVEL)


def unpack(content: bytes) -> tuple[bytes, ...] | None:
    """Return the events of a segment's file; None if it is none."""
    if not content.startswith(FORMAT):
        return None
    stream = zlib.decompressobj()
    try:
        whole = stream.decompress(memoryview(content)[len(FORMAT) :], CONTENT_MAX)
    except zlib.error:
        return None
    if not stream.eof or stream.unused_data:
        return None
    events, at = [], 0
    while at < len(whole):
        if len(whole) - at < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(whole, at)
        at += _LENGTH.size + length
        if at > len(whole):
            return None
        events.append(whole[at - length : at])
    return tuple(events)


def _checked(name: str, what: str) -> str:
    if not _FOLDER.fullmatch(name):
        raise BadInput(f"{name!r} cannot be the name of a folder in an archive, as the {what} must be.")
    return name
