"""The log that the data set of `training.py` writes, and its reader. Free of torch, because the harness is."""

import struct
from collections.abc import Iterator
from pathlib import Path

RECORD = struct.Struct("<Id")  # a sample, and when it was read


def read_log(path: Path) -> Iterator[tuple[int, float]]:
    """A process's reads in order. The last record of a process that was killed is whole: it is one write."""
    yield from RECORD.iter_unpack(path.read_bytes())
