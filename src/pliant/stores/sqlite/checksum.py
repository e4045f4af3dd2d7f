"""Checksums of events and records, because SQLite has none for its pages."""

from __future__ import annotations

import zlib

__all__ = ["checksum"]


def checksum(revision: int, data: bytes) -> int:
    """Return a checksum of the bytes and of their revision, so that bytes at the wrong revision do not match."""
    return zlib.crc32(data, revision & 0xFFFFFFFF)
