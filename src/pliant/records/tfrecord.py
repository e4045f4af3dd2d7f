"""TFRecord files: TensorFlow's framing of records, with checksums.

A record is its length (8 bytes), a masked CRC-32C of the length (4 bytes), the data, and a masked CRC-32C of the data,
all little-endian. The format has no index: the file is scanned once, and the positions are kept (see index.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pliant.records.base import RecordFile
from pliant.records.bytes_at import BytesAt, Scanner
from pliant.records.crc32c import crc32c
from pliant.records.index import Index

HEAD = struct.Struct("<QI")
CHECK = struct.Struct("<I")
FRAME = HEAD.size + CHECK.size


def masked(value: int) -> int:
    """Return the form in which a file stores a CRC-32C."""
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes) -> bytes:
    """Return the bytes of one record in a file."""
    length = len(record).to_bytes(8, "little")
    return length + CHECK.pack(masked(crc32c(length))) + record + CHECK.pack(masked(crc32c(record)))


class TFRecordFile(RecordFile):
    """A TFRecord file. Records are bytes."""

    def __init__(self, source: BytesAt, index: Index) -> None:
        self.location, self._source = source.location, source
        self._offsets = index.positions(source, "tfrecord", scan_positions)

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, start: int, stop: int) -> Iterator[bytes]:
        if start < stop:
            scanner = Scanner(self._source, int(self._offsets[start]))
            for _ in range(start, stop):
                yield _next_record(scanner)

    def get(self, number: int) -> bytes:
        at = int(self._offsets[number])
        following = int(self._offsets[number + 1]) if number + 1 < len(self._offsets) else self._source.size
        data = self._source.exactly(at, following - at, "a record")
        length = _checked_length(self._source, at, data[: HEAD.size])
        if length + FRAME != len(data):
            raise self._source.damaged(at, f"the record has {length} bytes, and {len(data) - FRAME} are there")
        return _checked_data(self._source, at, data[HEAD.size : -CHECK.size], data[-CHECK.size :])


def scan_positions(source: BytesAt) -> Iterator[int]:
    """Yield the position of each record, checking the lengths but not the data."""
    scanner = Scanner(source)
    while not scanner.at_end:
        at = scanner.at
        length = _checked_length(source, at, scanner.take(HEAD.size, "the length of a record"))
        if length > source.size - scanner.at:
            raise source.damaged(at, f"the file ends in a record of {length} bytes")
        scanner.skip(length + CHECK.size, "a record")
        yield at


def _next_record(scanner: Scanner) -> bytes:
    at, source = scanner.at, scanner.source
    length = _checked_length(source, at, scanner.take(HEAD.size, "the length of a record"))
    if length > source.size - scanner.at:
        raise source.damaged(at, f"the file ends in a record of {length} bytes")
    data = scanner.take(length + CHECK.size, "a record")
    return _checked_data(source, at, data[: -CHECK.size], data[-CHECK.size :])


def _checked_length(source: BytesAt, at: int, head: bytes) -> int:
    length, check = HEAD.unpack(head)
    if masked(crc32c(head[:8])) != check:
        raise source.damaged(at, "the checksum of the record's length is wrong: this is no TFRecord file, or damaged")
    return int(length)


def _checked_data(source: BytesAt, at: int, data: bytes, check: bytes) -> bytes:
    if masked(crc32c(data)) != CHECK.unpack(check)[0]:
        raise source.damaged(at, "the checksum of the record's data is wrong")
    return data
