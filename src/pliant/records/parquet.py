"""Parquet files, through pyarrow. Rows are dictionaries by the names of the columns.

A row group is the smallest unit that can be read, so the last ones are kept in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from pliant.errors import BadInput
from pliant.records.base import RecordFile
from pliant.records.bytes_at import BytesAt, Seekable
from pliant.records.packages import needs_package

KEPT = 2  # row groups, for each file
ROWS = 1024  # converted to Python objects at once


class ParquetFile(RecordFile):
    """A Parquet file. `columns` names the columns to read; None: all of them."""

    def __init__(self, source: BytesAt, columns: Sequence[str] | None = None) -> None:
        self.location, self._source = source.location, source
        with needs_package("pyarrow"):
            import pyarrow
            import pyarrow.parquet
        self._bad = (pyarrow.ArrowException, OSError, ValueError)
        try:
            self._reads = FirstRead(source)
            self._file = pyarrow.parquet.ParquetFile(self._reads)
            sizes = [self._file.metadata.row_group(at).num_rows for at in range(self._file.num_row_groups)]
        except self._bad as error:
            raise source.damaged(0, f"this is no Parquet file, or damaged: {error}") from error
        if any(size < 0 for size in sizes):
            raise source.damaged(0, "a row group has a negative number of rows")
        names = self._file.schema_arrow.names
        if columns is not None and (missing := [name for name in columns if name not in names]):
            raise BadInput(f"{source.location} has no column {', '.join(missing)}; it has {', '.join(names)}")
        self._columns = None if columns is None else list(columns)
        self._starts: tuple[int, ...] = (0, *accumulate(sizes))
        self._groups: OrderedDict[int, Any] = OrderedDict()
        self._offsets: dict[int, int] = {}  # of the row groups that were read, in the file

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        while start < stop:
            at = bisect_right(self._starts, start) - 1
            end = min(stop, self._starts[at + 1], start + ROWS)
            yield from self._rows(at, start - self._starts[at], end - start)
            start = end

    def _rows(self, group: int, begin: int, count: int) -> list[dict[str, Any]]:
        try:
            rows: list[dict[str, Any]] = self._group(group).slice(begin, count).to_pylist()
        except self._bad as error:
            raise self._source.damaged(self._offsets[group], f"row group {group} cannot be read: {error}") from error
        if len(rows) != count:
            raise self._source.damaged(self._offsets[group], f"row group {group} is shorter than its head says")
        return rows

    def _group(self, number: int) -> Any:
        if number in self._groups:
            self._groups.move_to_end(number)
        else:
            self._reads.forget()
            try:
                self._groups[number] = self._file.read_row_group(number, columns=self._columns)
            finally:
                self._offsets[number] = self._reads.offset
            if len(self._groups) > KEPT:
                self._groups.popitem(last=False)
        return self._groups[number]


class FirstRead(Seekable):
    """A file that keeps the offset of the first read since `forget`: there a damaged row group begins.

    pyarrow's metadata of a column have it too, but asking for damaged ones ends the process.
    """

    _first: int | None = None

    @property
    def offset(self) -> int:
        return self._first or 0

    def forget(self) -> None:
        self._first = None

    def readinto(self, buffer: Any) -> int:
        if self._first is None:
            self._first = self.tell()
        return super().readinto(buffer)
