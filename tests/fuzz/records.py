"""Parsers of record files."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.parser import Parser
from pliant.errors import BadInput
from pliant.records.base import RecordFile
from pliant.records.bytes_at import DecompressedBytes, MemoryBytes
from pliant.records.csv_rows import CsvFile, CsvFormat
from pliant.records.example import parse_example, serialize_example
from pliant.records.index import Index
from pliant.records.parquet import ParquetFile
from pliant.records.recordio import RecordIOFile
from pliant.records.tfrecord import TFRecordFile, frame
from unit.records import written

READ_MAX = 5000  # records of one case


def everything(file: RecordFile) -> None:
    """Read in sequence, and the first and the last by number."""
    count = len(file)
    for _ in file.read(0, min(count, READ_MAX)):
        pass
    if count:
        file.get(0)
        file.get(count - 1)


def parquet_file() -> bytes:
    out = io.BytesIO()
    rows = {"id": list(range(40)), "text": [f"row {number}" for number in range(40)]}
    pq.write_table(pa.table(rows), out, row_group_size=16, compression="none")
    return out.getvalue()


EXAMPLE = serialize_example({"x": [0.5, -2.0], "n": [7, -1], "s": [b"ab", b""]})
CHUNKS = [[b"", b"first", b"x" * 90], [b"second"]]
CSV = b'name,said\nann,"one\ntwo ""three"""\n\nbob,x\n'

PARSERS = [
    Parser(
        "TFRecord file",
        lambda data: everything(TFRecordFile(MemoryBytes(data), Index())),
        lambda: [b"".join(map(frame, [b"", b"first", EXAMPLE]))],
        (BadInput,),
    ),
    Parser("record in TFRecord", lambda data: parse_example(data), lambda: [EXAMPLE], (ValueError,)),
    Parser(
        "RecordIO file of Go",
        lambda data: everything(RecordIOFile(MemoryBytes(data))),
        lambda: [written.go_recordio(CHUNKS, packing) for packing in ("none", "snappy", "gzip")],
        (BadInput,),
    ),
    Parser(
        "RecordIO file of Python",
        lambda data: everything(RecordIOFile(MemoryBytes(data))),
        lambda: [written.pyrecordio(CHUNKS, packing) for packing in ("none", "snappy", "gzip")],
        (BadInput,),
    ),
    Parser(
        "CSV file",
        lambda data: everything(CsvFile(MemoryBytes(data), CsvFormat(), Index())),
        lambda: [CSV],
        (BadInput,),
    ),
    Parser(
        "Parquet file", lambda data: everything(ParquetFile(MemoryBytes(data))), lambda: [parquet_file()], (BadInput,)
    ),
    *(
        Parser(
            f"{suffix} file",
            lambda data, suffix=suffix: DecompressedBytes(MemoryBytes(data), suffix).size,  # type: ignore[misc]
            lambda pack=pack: [pack(CSV * 20)],  # type: ignore[misc]
            (BadInput,),
        )
        for suffix, pack in written.PACKERS.items()
    ),
]
