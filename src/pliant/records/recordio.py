"""RecordIO files: chunks of records, in the two formats that ElasticDL's users have.

Both begin a chunk with the same magic number and have four more words of 4 bytes, little-endian:

    Go's recordio     CRC-32 (IEEE), compressor 0 to 2, size, count     Snappy in frames
    pyrecordio        count, CRC-32C, compressor 1 to 3, size           Snappy in one block

The third word after the magic number tells them apart. In Go's format it is the size of a chunk, which is never 1 to 3
bytes: the length of one record takes 4. A record is its length in 4 bytes, and its data.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from pliant.records.base import RecordFile
from pliant.records.bytes_at import BytesAt
from pliant.records.crc32c import crc32c
from pliant.records.packages import needs_package

MAGIC = 0x01020304
HEAD = struct.Struct("<5I")
LENGTH = struct.Struct("<I")
CHUNK_MAX = 1 << 30  # bytes after decompression; a larger chunk is damage

Compressor = Literal["none", "snappy frames", "snappy block", "gzip"]
GO_COMPRESSORS: tuple[Compressor, ...] = ("none", "snappy frames", "gzip")
PYTHON_COMPRESSORS: tuple[Compressor, ...] = ("none", "snappy block", "gzip")


@dataclass(frozen=True, slots=True)
class ChunkHead:
    """The head of a chunk at `at`, in either format."""

    at: int
    count: int
    size: int
    checksum: int
    compressor: Compressor
    castagnoli: bool  # the checksum is a CRC-32C


class RecordIOFile(RecordFile):
    """A RecordIO file of either format. Records are bytes."""

    def __init__(self, source: BytesAt) -> None:
        self.location, self._source = source.location, source
        self._chunks = list(scan_chunks(source))
        self._starts = (0, *accumulate(chunk.count for chunk in self._chunks))
        self._cached: tuple[int, list[bytes]] | None = None

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        while start < stop:
            at = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[at + 1])
            yield from self._records_of(at)[start - self._starts[at] : end - self._starts[at]]
            start = end

    def _records_of(self, chunk: int) -> list[bytes]:
        cached = self._cached
        if cached is None or cached[0] != chunk:
            cached = self._cached = (chunk, read_chunk(self._source, self._chunks[chunk]))
        return cached[1]


def scan_chunks(source: BytesAt) -> Iterator[ChunkHead]:
    """Yield the head of each chunk."""
    at = 0
    while at < source.size:
        head = _parsed(source, at, source.exactly(at, HEAD.size, "the head of a chunk"))
        if head.size > source.size - at - HEAD.size:
            raise source.damaged(at, f"the file ends in a chunk of {head.size} bytes")
        yield head
        at += HEAD.size + head.size


def _parsed(source: BytesAt, at: int, data: bytes) -> ChunkHead:
    magic, first, second, third, fourth = HEAD.unpack(data)
    if magic != MAGIC:
        raise source.damaged(at, f"a chunk must begin with {MAGIC:#010x}, and this one begins with {magic:#010x}")
    if 1 <= third <= len(PYTHON_COMPRESSORS):
        return ChunkHead(at, first, fourth, second, PYTHON_COMPRESSORS[third - 1], castagnoli=True)
    if second < len(GO_COMPRESSORS):
        return ChunkHead(at, fourth, third, first, GO_COMPRESSORS[second], castagnoli=False)
    raise source.damaged(at, f"the compressor of the chunk is unknown: {second} or {third}")


def read_chunk(source: BytesAt, head: ChunkHead) -> list[bytes]:
    """Return the records of a chunk, checked."""
    packed = source.exactly(head.at + HEAD.size, head.size, "a chunk")
    found = crc32c(packed) if head.castagnoli else zlib.crc32(packed)
    if found != head.checksum:
        raise source.damaged(head.at, "the checksum of the chunk is wrong")
    data = _decompressed(source, head, packed)
    if head.count * LENGTH.size > len(data):
        raise source.damaged(head.at, f"the chunk is too short for its {head.count} records")
    records, at = [], 0
    for number in range(head.count):
        if at + LENGTH.size > len(data):
            raise source.damaged(head.at, f"the chunk ends before record {number} of {head.count}")
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if length > len(data) - at:
            raise source.damaged(head.at, f"the chunk ends in record {number} of {head.count}")
        records.append(data[at : at + length])
        at += length
    if at != len(data):
        raise source.damaged(head.at, f"{len(data) - at} bytes follow the last record of the chunk")
    return records


def _decompressed(source: BytesAt, head: ChunkHead, packed: bytes) -> bytes:
    match head.compressor:
        case "none":
            return packed
        case "gzip":
            data, error = _gunzip(packed)
        case "snappy block" | "snappy frames":
            data, error = _unsnappy(packed, frames=head.compressor == "snappy frames")
    if error or len(data) > CHUNK_MAX:
        why = error or f"it has more than {CHUNK_MAX} bytes"
        raise source.damaged(head.at, f"the chunk cannot be decompressed: {why}")
    return data


def _gunzip(packed: bytes) -> tuple[bytes, str]:
    try:
        return gzip.GzipFile(fileobj=io.BytesIO(packed)).read(CHUNK_MAX + 1), ""
    except (OSError, EOFError, zlib.error) as error:
        return b"", str(error)


def _unsnappy(packed: bytes, *, frames: bool) -> tuple[bytes, str]:
    with needs_package("cramjam"):
        import cramjam
    try:
        if frames:
            return bytes(cramjam.snappy.decompress(packed)), ""
        if cramjam.snappy.decompress_raw_len(packed) > CHUNK_MAX:
            return b"", f"it has more than {CHUNK_MAX} bytes"
        return bytes(cramjam.snappy.decompress_raw(packed)), ""
    except cramjam.DecompressionError as error:
        return b"", str(error)
