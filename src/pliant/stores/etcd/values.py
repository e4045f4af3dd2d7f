"""The values of a store in etcd: records and events, compressed, and cut into chunks if they are large.

A value begins with a byte for its kind. The revision is part of the checksum, so that bytes at the wrong revision do
not match.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from pliant.errors import StoreError

__all__ = [
    "CHUNK_BYTES",
    "PackedValue",
    "chunks_of",
    "is_reference",
    "join_events",
    "pack",
    "revision_of",
    "split_events",
    "unpack",
]

CHUNK_BYTES = 512 << 10
LEVEL = 6
QUICK_LEVEL = 1
QUICK_BYTES = 64 << 10  # larger values are compressed quickly

_PLAIN, _PACKED, _REFERENCE = 0, 1, 2
_HEAD = struct.Struct("<BQI")  # the kind, the revision, and a checksum
_PARTS = struct.Struct("<I16s")  # the number of chunks, and the id in their keys
_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class PackedValue:
    """A value for one key, and the chunks that it refers to, with the ends of their keys."""

    value: bytes
    chunks: tuple[tuple[bytes, bytes], ...] = ()


def pack(revision: int, data: bytes) -> PackedValue:
    """Compress a value, and cut it into chunks if it is large."""
    packed = zlib.compress(data, LEVEL if len(data) <= QUICK_BYTES else QUICK_LEVEL)
    kind, body = (_PACKED, packed) if len(packed) < len(data) else (_PLAIN, data)
    whole = _HEAD.pack(kind, revision, zlib.crc32(body, revision & 0xFFFFFFFF)) + body
    if len(whole) <= CHUNK_BYTES:
        return PackedValue(whole)
    pieces = [whole[at : at + CHUNK_BYTES] for at in range(0, len(whole), CHUNK_BYTES)]
    chunk_id = secrets.token_hex(8).encode()
    body = _PARTS.pack(len(pieces), chunk_id)
    value = _HEAD.pack(_REFERENCE, revision, zlib.crc32(body, revision & 0xFFFFFFFF)) + body
    named = tuple([(b"%016d-%s/%06d" % (revision, chunk_id, place), piece) for place, piece in enumerate(pieces)])
    return PackedValue(value, named)


def is_reference(value: bytes) -> bool:
    return value[:1] == bytes([_REFERENCE])


def chunks_of(what: str, value: bytes) -> tuple[bytes, int]:
    """Return the beginning of the keys of the chunks that a value refers to, and their number."""
    revision, body = _opened(what, value)
    if len(body) != _PARTS.size:
        raise damaged(what, "it does not name its chunks")
    count, chunk_id = _PARTS.unpack(body)
    return b"%016d-%s/" % (revision, chunk_id), count


def revision_of(what: str, value: bytes) -> int:
    """Return the revision at which a value was written."""
    return _opened(what, value)[0]


def unpack(what: str, value: bytes, revision: int) -> bytes:
    """Return the contents of a value, whose chunks are joined. Raises StoreError if they are damaged."""
    found, body = _opened(what, value)
    if found != revision:
        raise damaged(what, f"it is of revision {found}")
    if value[0] == _PLAIN:
        return body
    try:
        return zlib.decompress(body)
    except zlib.error as error:
        raise damaged(what, str(error)) from error


def join_events(events: Sequence[bytes]) -> bytes:
    return b"".join([_COUNT.pack(len(events)), *[_COUNT.pack(len(data)) + data for data in events]])


def split_events(what: str, joined: bytes) -> list[bytes]:
    events, at = [], _COUNT.size
    try:
        (count,) = _COUNT.unpack_from(joined)
        for _ in range(count):
            (length,) = _COUNT.unpack_from(joined, at)
            at += _COUNT.size
            events.append(joined[at : at + length])
            at += length
    except struct.error as error:
        raise damaged(what, "it is too short") from error
    if at != len(joined):
        raise damaged(what, "its length is wrong")
    return events


def damaged(what: str, why: str) -> StoreError:
    return StoreError(
        f"{what} in etcd is not as it was written: {why}. Stop, keep a snapshot of etcd for analysis, and restore a "
        "backup."
    )


def _opened(what: str, value: bytes) -> tuple[int, bytes]:
    if len(value) < _HEAD.size:
        raise damaged(what, "it is too short")
    _, revision, checksum = _HEAD.unpack_from(value)
    body = value[_HEAD.size :]
    if zlib.crc32(body, revision & 0xFFFFFFFF) != checksum:
        raise damaged(what, "its checksum is wrong")
    return revision, body
