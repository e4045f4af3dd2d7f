"""CRC-32C, the checksum of TFRecord and of pyrecordio."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from pliant.records.packages import needs_package


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of the bytes."""
    return _function()(data)


@cache
def _function() -> Callable[[bytes], int]:
    with needs_package("google-crc32c"):
        import google_crc32c
    function: Callable[[bytes], int] = google_crc32c.value
    return function
