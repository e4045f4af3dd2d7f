"""Files as other programs write them, made here from their specifications."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Literal

import cramjam
import google_crc32c

PACKERS = {".gz": partial(gzip.compress, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}
Packing = Literal["none", "snappy", "gzip"]


def tfrecord(records: Sequence[bytes]) -> bytes:
    """A TFRecord file, written without Pliant's own code."""
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, _masked(length), record, _masked(record)]
    return b"".join(parts)


def _masked(data: bytes) -> bytes:
    crc = int(google_crc32c.value(data))
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % (1 << 32))


def go_recordio(chunks: Sequence[Sequence[bytes]], packing: Packing = "snappy") -> bytes:
    """A file of Go's recordio: magic, CRC-32, compressor, size, count."""
    return b"".join(_go_chunk(chunk, packing) for chunk in chunks)


def _go_chunk(records: Sequence[bytes], packing: Packing) -> bytes:
    plain = _lengths_and_data(records)
    body = {
        "none": lambda: plain,
        "snappy": lambda: bytes(cramjam.snappy.compress(plain)),
        "gzip": lambda: gzip.compress(plain, mtime=0),
    }[packing]()
    compressor = ("none", "snappy", "gzip").index(packing)
    return struct.pack("<5I", 0x01020304, zlib.crc32(body), compressor, len(body), len(records)) + body


def pyrecordio(chunks: Sequence[Sequence[bytes]], packing: Packing = "snappy") -> bytes:
    """A file of pyrecordio: magic, count, CRC-32C, compressor, size."""
    return b"".join(_python_chunk(chunk, packing) for chunk in chunks)


def _python_chunk(records: Sequence[bytes], packing: Packing) -> bytes:
    plain = _lengths_and_data(records)
    body = {
        "none": lambda: plain,
        "snappy": lambda: bytes(cramjam.snappy.compress_raw(plain)),
        "gzip": lambda: gzip.compress(plain, mtime=0),
    }[packing]()
    compressor = ("none", "snappy", "gzip").index(packing) + 1
    crc = int(google_crc32c.value(body))
    return struct.pack("<5I", 0x01020304, len(records), crc, compressor, len(body)) + body


def _lengths_and_data(records: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(record)) + record for record in records)
