"""Positions of the records in files that have no index of their own.

A scan of a large file takes long, so its positions are kept in a folder of the user, under a hash of the location. A
kept index is used only while the file has the same size and time of change. A damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from pliant.records.bytes_at import BytesAt, compression_of

KEEP_FROM = 10_000  # records; a smaller file that is not compressed is scanned as quickly as its index is found
POSITION = array("q").itemsize

Scan = Callable[[BytesAt], Iterator[int]]


class Index:
    """A folder of kept indexes. None: no index is kept."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def positions(self, source: BytesAt, kind: str, scan: Scan) -> Sequence[int]:
        """Return the positions that `scan` yields for this file. `kind` names the format and its options."""
        if self._folder is None or not source.identity:
            return array("q", scan(source))
        head = json.dumps({"location": source.location, "identity": source.identity, "kind": kind, "is": sys.byteorder})
        path = self._folder / hashlib.sha256(f"{kind} {source.location}".encode()).hexdigest()[:32]
        if (known := _read(path, head.encode())) is not None:
            return known
        found = array("q", scan(source))
        if len(found) >= KEEP_FROM or compression_of(source.location):
            _write(path, head.encode(), found)
        return found


def _read(path: Path, head: bytes) -> array[int] | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    found, _, rest = data.partition(b"\n")
    digest, body = rest[:32], rest[32:]
    if found != head or hashlib.sha256(body).digest() != digest or len(body) % POSITION:
        return None
    positions = array("q")
    positions.frombytes(body)
    return positions


def _write(path: Path, head: bytes, positions: array[int]) -> None:
    """Write an index under its final name at once. Without space or permission there is none, and scans go on."""
    body = positions.tobytes()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(head + b"\n" + hashlib.sha256(body).digest() + body)
                file.flush()
                Path(file.name).rename(path)
            except OSError:
                Path(file.name).unlink(missing_ok=True)
                raise
