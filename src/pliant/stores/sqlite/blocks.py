"""Blocks: old events of a job, compressed together.

A step that is committed adds an event of about 240 bytes, for as long as the job trains. Most of these bytes repeat
the event before. So events that a record covers, and that are not among the newest, are moved into blocks in the same
transaction as a write. The store returns them as before, and nothing is lost.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from pliant.stores.sqlite.errors import damaged

__all__ = ["BLOCK_EVENTS", "KEPT_EVENTS", "checksum", "fold", "unfold"]

BLOCK_EVENTS = 512
BLOCK_BYTES = 1 << 20  # of events before compression; one event alone may be longer
BLOCKS_AT_ONCE = 4  # with one write, which waits for them: an old store is compressed little by little
KEPT_EVENTS = 512  # newest events that stay as they are, for quick reads
LEVEL = 6

_LENGTH = struct.Struct("<I")

_OLDEST = "SELECT min(revision) FROM events WHERE job = ?"
_NEXT = "SELECT revision, checksum, data FROM events WHERE job = ? AND revision >= ? ORDER BY revision LIMIT ?"
_INSERT = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM events WHERE job = ? AND revision <= ?"


def checksum(revision: int, data: bytes) -> int:
    """Return a checksum of the bytes and of their revision, so that bytes at the wrong revision do not match."""
    return zlib.crc32(data, revision & 0xFFFFFFFF)


def fold(connection: sqlite3.Connection, path: Path, job: int, record_revision: int) -> int:
    """Move old events of a job into blocks. Call it in a write transaction that stores a record of this revision.

    Returns the number of bytes in the new blocks.
    """
    written = 0
    (oldest,) = connection.execute(_OLDEST, (job,)).fetchone()
    for _ in range(BLOCKS_AT_ONCE):
        if record_revision - oldest < KEPT_EVENTS + BLOCK_EVENTS:
            break
        events: list[bytes] = []
        nbytes = 0
        for revision, found, data in connection.execute(_NEXT, (job, oldest, BLOCK_EVENTS)):
            nbytes += len(data)
            if events and nbytes > BLOCK_BYTES:
                break
            if revision != oldest + len(events) or checksum(revision, data) != found:
                raise damaged(path, f"an event is not as it was written at revision {revision}")
            events.append(data)
        packed = zlib.compress(b"".join(_LENGTH.pack(len(data)) + data for data in events), LEVEL)
        last = oldest + len(events) - 1
        connection.execute(_INSERT, (job, oldest, last, checksum(last, packed), packed))
        connection.execute(_DELETE, (job, last))
        written += len(packed)
        oldest = last + 1
    return written


def unfold(path: Path, first: int, last: int, found: int, packed: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the revision, checksum and data of each event of a block."""
    what = f"the block of revisions {first} to {last} is not as it was written"
    if checksum(last, packed) != found:
        raise damaged(path, what)
    whole, at = zlib.decompress(packed), 0
    for revision in range(first, last + 1):
        (length,) = _LENGTH.unpack_from(whole, at)
        data = whole[at + _LENGTH.size : at + _LENGTH.size + length]
        at += _LENGTH.size + length
        yield revision, checksum(revision, data), data
