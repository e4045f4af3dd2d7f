"""CSV files with an index. A quoted field may hold a line break, so rows are found with a real parser.

Rows are dictionaries by the names of the columns; values are text. Blank lines are skipped.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from pliant.errors import BadInput
from pliant.records.base import RecordFile
from pliant.records.bytes_at import CHUNK, BytesAt
from pliant.records.index import Index

ROW_MAX = 16 << 20  # bytes; a larger row is a quote that was never closed
UTF8_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """The format of CSV files. `columns` names the columns of files without a header row."""

    delimiter: str = ","
    quotechar: str = '"'
    columns: tuple[str, ...] | None = None
    encoding: str = "utf-8"

    def check(self) -> None:
        """Raise BadInput if the format cannot be read."""
        for name, value in (("delimiter", self.delimiter), ("quotechar", self.quotechar)):
            if len(value) != 1 or value in "\r\n":
                raise BadInput(f"{name} must be one character, got {value!r}")
        try:
            plain = "a,\n".encode(self.encoding) == b"a,\n"
        except LookupError as error:
            raise BadInput(f"encoding {self.encoding!r} is unknown") from error
        if not plain:
            raise BadInput(f"encoding must have line breaks of one byte, as UTF-8 has; got {self.encoding!r}")
        if self.columns is not None and len({*self.columns}) != len(self.columns):
            raise BadInput("columns must have different names")


class CsvFile(RecordFile):
    """A CSV file."""

    def __init__(self, source: BytesAt, form: CsvFormat, index: Index) -> None:
        form.check()
        self.location, self._source, self._form = source.location, source, form
        begin = len(UTF8_BOM) if source.read_at(0, len(UTF8_BOM)) == UTF8_BOM else 0
        names = form.columns
        if names is None:
            header = next(parse_rows(source, form, begin), None)
            if header is None:
                raise BadInput(f"{source.location} has no header row. Pass columns= for files without one.")
            names, begin = tuple(header[1]), header[2]
        if len({*names}) != len(names):
            raise source.damaged(0, f"two columns have the same name: {', '.join(names)}")
        self._names = names
        kind = f"csv {form} {begin}"
        self._offsets = index.positions(source, kind, lambda _: (at for at, _, _ in parse_rows(source, form, begin)))

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, start: int, stop: int) -> Iterator[dict[str, str]]:
        if start >= stop:
            return
        rows = parse_rows(self._source, self._form, int(self._offsets[start]))
        for _, (at, row, _) in zip(range(start, stop), rows, strict=False):
            if len(row) != len(self._names):
                raise self._source.damaged(at, f"the row has {len(row)} fields, and there are {len(self._names)} names")
            yield dict(zip(self._names, row, strict=True))


def parse_rows(source: BytesAt, form: CsvFormat, offset: int) -> Iterator[tuple[int, list[str], int]]:
    """Yield each row that is not blank, with the positions of its beginning and of its end."""
    lines = _Lines(source, form.encoding, offset)
    reader = csv.reader(lines, delimiter=form.delimiter, quotechar=form.quotechar, strict=True)
    while True:
        lines.row_at = lines.at
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise source.damaged(lines.row_at, f"the row cannot be parsed: {error}") from error
        if row:
            yield lines.row_at, row, lines.at


class _Lines:
    """The lines of a file, decoded, with the position of the next."""

    def __init__(self, source: BytesAt, encoding: str, offset: int) -> None:
        self._source, self._encoding = source, encoding
        self.at = self.row_at = offset
        self._piece, self._piece_at = b"", offset

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._next_line()
        if not line:
            raise StopIteration
        begin = self.at
        self.at += len(line)
        if self.at - self.row_at > ROW_MAX:
            raise self._source.damaged(self.row_at, f"the row has more than {ROW_MAX} bytes: a quote is not closed?")
        try:
            return line.decode(self._encoding)
        except UnicodeError as error:
            raise self._source.damaged(begin, f"the line is not {self._encoding}: {error}") from error

    def _next_line(self) -> bytes:
        begin = self.at - self._piece_at
        end = self._piece.find(b"\n", begin)
        while end < 0:
            known = len(self._piece)
            more = self._source.read_at(self._piece_at + known, CHUNK)
            self._piece = self._piece[begin:] + more
            self._piece_at, known, begin = self.at, known - begin, 0
            if not more or len(self._piece) > ROW_MAX + CHUNK:
                return self._piece[: ROW_MAX + 1]
            end = self._piece.find(b"\n", known)
        return self._piece[begin : end + 1]
