"""Files of each format, read as other programs wrote them, whole and damaged."""

import gzip
import itertools
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest

from pliant.errors import BadInput, DamagedRecord
from pliant.records import csv_rows, open_records
from pliant.records.example import parse_example, serialize_example
from pliant.records.tfrecord import frame
from unit.records import written
from unit.records.written import Packing

RECORDS = [b"", b"a", b"bb" * 700, bytes(range(256)), b"last"]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def read_by_number(path: Path) -> list[bytes]:
    opened = open_records(path)
    return [opened[number] for number in range(len(opened))]


def test_a_tfrecord_file_is_read_by_number_and_in_sequence(tmp_path: Path) -> None:
    found = open_records(put(tmp_path / "a.tfrecord", written.tfrecord(RECORDS)))
    assert [found[number] for number in range(len(found))] == RECORDS
    assert list(found.read()) == RECORDS
    assert list(found.read(1, 3)) == RECORDS[1:3]
    assert list(found.read(2, 2)) == []
    assert found[-1] == b"last"


def test_our_framing_is_that_of_the_specification() -> None:
    assert b"".join(map(frame, RECORDS)) == written.tfrecord(RECORDS)


@pytest.mark.parametrize("at", [0, 3, 8, 12, 14, 16, 20, 28, 29, 35])
def test_a_flipped_bit_in_a_tfrecord_file_is_found_with_file_and_offset(tmp_path: Path, at: int) -> None:
    data = bytearray(written.tfrecord([b"0123", b"second"]))
    data[at] ^= 0x10
    path = put(tmp_path / "a.tfrecord", bytes(data))
    begin = 0 if at < 20 else 20
    with pytest.raises(DamagedRecord, match=rf"a\.tfrecord, offset {begin}: ") as found:
        list(open_records(path).read())
    assert (found.value.location, found.value.offset) == (str(path), begin)
    with pytest.raises(DamagedRecord, match=f"offset {begin}"):
        read_by_number(path)


@pytest.mark.parametrize("cut", [1, 5, 13, 17, 25])
def test_a_tfrecord_file_that_was_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    data = written.tfrecord([b"0123", b"second"])
    with pytest.raises(DamagedRecord, match="the file ends in"):
        open_records(put(tmp_path / "a.tfrecord", data[:-cut]))


def test_a_length_beyond_the_file_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 60)
    data = length + frame(length)[-4:] + b"x"
    with pytest.raises(DamagedRecord, match="ends in a record of 1152921504606846976 bytes"):
        open_records(put(tmp_path / "a.tfrecord", data))


def test_a_file_of_another_kind_is_no_tfrecord_file(tmp_path: Path) -> None:
    with pytest.raises(DamagedRecord, match="this is no TFRecord file, or damaged"):
        open_records(put(tmp_path / "a.tfrecord", b"name,age\nann,7\nbob,8\n"))


# Serialized by TensorFlow 2.21: {"x": floats 0.5 and -2, "n": integers 7 and -1, "s": bytes "ab" and ""}.
TENSORFLOW_EXAMPLE = bytes.fromhex(
    "0a380a140a016e120f1a0d0a0b07ffffffffffffffffff010a0d0a017312080a060a0261620a000a110a0178120c120a0a08"
    "0000003f000000c0"
)
TENSORFLOW_FILE = bytes.fromhex(
    "3a000000000000001295eae20a380a140a016e120f1a0d0a0b07ffffffffffffffffff010a0d0a017312080a060a0261620a"
    "000a110a0178120c120a0a080000003f000000c02c453d67000000000000000029039807d8ea82a2"
)
TENSORFLOW_GZIP = bytes.fromhex(
    "1f8b0800000000000003b3628000a1a9af1e715970897031e609f14bf17271b3ff8701462e5e2ec662210e2e362ea6c4242e"
    "062e412ec60a211e212e2e0ea0467b203ea0e36a9b0e000c04a38e4a000000"
)


def test_a_file_that_tensorflow_wrote_is_read(tmp_path: Path) -> None:
    found = open_records(put(tmp_path / "a.tfrecord", TENSORFLOW_FILE), "example")
    assert len(found) == 2
    first, second = found.read()
    assert first["x"].tolist() == [0.5, -2.0]
    assert first["x"].dtype == np.float32
    assert first["n"].tolist() == [7, -1]
    assert first["n"].dtype == np.int64
    assert first["s"] == [b"ab", b""]
    assert second == {}
    assert list(open_records(tmp_path / "a.tfrecord").read()) == [TENSORFLOW_EXAMPLE, b""]
    assert open_records(put(tmp_path / "b.tfrecord.gz", TENSORFLOW_GZIP))[0] == TENSORFLOW_EXAMPLE
    assert serialize_example({"x": [0.5, -2.0], "n": [7, -1], "s": [b"ab", b""]}) == TENSORFLOW_EXAMPLE


def test_an_example_survives_its_way_through_bytes() -> None:
    features = {"x": [0.5, -2.0], "n": [7, -1], "s": [b"ab", b""]}
    assert serialize_example(features) == serialize_example({name: features[name] for name in sorted(features)})
    assert parse_example(serialize_example(features))["s"] == [b"ab", b""]
    assert parse_example(TENSORFLOW_EXAMPLE).keys() == features.keys()
    assert parse_example(serialize_example({"x": np.eye(2, dtype=np.float32)}))["x"].tolist() == [1, 0, 0, 1]


def test_a_feature_without_a_value_is_empty() -> None:
    with pytest.raises(ValueError, match=r"no tf\.Example"):
        parse_example(b"\xff")
    assert parse_example(bytes.fromhex("0a070a050a01781200"))["x"].tolist() == []


def test_a_record_that_is_no_example_is_named(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tfrecord", written.tfrecord([serialize_example({"x": [1]}), b"\xff\xff"]))
    found = open_records(path, "example")
    assert found[0]["x"].tolist() == [1]
    for read in (lambda: found[1], lambda: list(found.read())):
        with pytest.raises(DamagedRecord, match=r"this is no tf\.Example") as error:
            read()
        assert error.value.offset == len(written.tfrecord([serialize_example({"x": [1]})]))


@pytest.mark.parametrize("write", [written.go_recordio, written.pyrecordio])
@pytest.mark.parametrize("packing", ["none", "snappy", "gzip"])
def test_both_recordio_formats_are_read(
    tmp_path: Path, write: Callable[[list[list[bytes]], Packing], bytes], packing: Packing
) -> None:
    chunks = [RECORDS, [b"one"], RECORDS[:2]]
    found = open_records(put(tmp_path / "a.recordio", write(chunks, packing)))
    everything = [record for chunk in chunks for record in chunk]
    assert list(found.read()) == everything  # an empty record ends nothing
    assert [found[number] for number in range(len(found))] == everything
    assert list(found.read(4, 7)) == everything[4:7]


@pytest.mark.parametrize("write", [written.go_recordio, written.pyrecordio])
def test_a_damaged_chunk_is_named(tmp_path: Path, write: Callable[..., bytes]) -> None:
    first = write([[b"first"]], "none")
    data = bytearray(write([[b"first"], [b"second"]], "none"))
    data[-1] ^= 1
    with pytest.raises(DamagedRecord, match="checksum of the chunk is wrong") as found:
        list(open_records(put(tmp_path / "a.recordio", bytes(data))).read())
    assert found.value.offset == len(first)
    with pytest.raises(DamagedRecord, match="must begin with 0x01020304"):
        open_records(put(tmp_path / "b.recordio", b"x" * 40))
    with pytest.raises(DamagedRecord, match="the file ends in a chunk"):
        open_records(put(tmp_path / "c.recordio", bytes(data)[:-1]))
    with pytest.raises(DamagedRecord, match="the head of a chunk"):
        open_records(put(tmp_path / "d.recordio", first + b"\4\3\2\1"))


def _go(body: bytes, count: int, compressor: int = 0) -> bytes:
    return struct.pack("<5I", 0x01020304, zlib.crc32(body), compressor, len(body), count) + body


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (_go(b"\1\0\0\0a", 2), "too short for its 2 records"),
        (_go(b"\5\0\0\0abcd", 1), "ends in record 0 of 1"),
        (_go(b"\5\0\0\0abcdeab", 2), "ends before record 1 of 2"),
        (_go(b"\1\0\0\0ab", 1), "1 bytes follow the last record"),
        (_go(b"not gzip", 1, 2), "cannot be decompressed"),
        (_go(b"not snappy", 1, 1), "cannot be decompressed"),
        (_go(gzip.compress(b"\1\0\0\0a", mtime=0)[:-9], 1, 2), "cannot be decompressed"),
        (struct.pack("<5I", 0x01020304, 1, 77, 88, 0), "compressor of the chunk is unknown"),
    ],
)
def test_a_chunk_whose_content_does_not_fit_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    with pytest.raises(DamagedRecord, match=why):
        list(open_records(put(tmp_path / "a.recordio", data)).read())


def test_a_csv_file_is_read_with_quotes_line_breaks_and_blank_lines(tmp_path: Path) -> None:
    text = 'name,said\r\nann,"one\ntwo, ""three"""\n\nbob,\xe4\xf6\ncid,end'
    found = open_records(put(tmp_path / "a.csv", b"\xef\xbb\xbf" + text.encode()))
    rows = [
        {"name": "ann", "said": 'one\ntwo, "three"'},
        {"name": "bob", "said": "\xe4\xf6"},
        {"name": "cid", "said": "end"},
    ]
    assert list(found.read()) == rows
    assert [found[number] for number in (2, 0, 1)] == [rows[2], rows[0], rows[1]]
    latin = open_records(put(tmp_path / "b.csv", text.encode("latin-1")), encoding="latin-1")
    assert list(latin.read()) == rows


def test_csv_files_without_a_header_and_with_tabs_are_read(tmp_path: Path) -> None:
    tabs = put(tmp_path / "a.tsv", b"x\ty\n1\t2\n")
    assert list(open_records(tabs).read()) == [{"x": "1", "y": "2"}]
    bare = put(tmp_path / "b.csv", b"1;2\n3;4\n")
    assert open_records(bare, columns=("x", "y"), delimiter=";")[1] == {"x": "3", "y": "4"}


def test_long_lines_and_rows_over_many_pieces_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "CHUNK", 7)
    rows = [{"x": "a" * size, "y": f"line\n{size}"} for size in (0, 1, 6, 7, 8, 30)]
    body = "x,y\n" + "".join(f'{row["x"]},"{row["y"]}"\n' for row in rows)
    found = open_records(put(tmp_path / "a.csv", body.encode()))
    assert list(found.read()) == rows
    assert [found[number] for number in range(len(rows))] == rows


@pytest.mark.parametrize(
    ("data", "why", "offset"),
    [
        (b"a,b\n1,2\n3\n", "1 fields, and there are 2 names", 8),
        (b"a,b\n1,2\n3,4,5\n", "3 fields", 8),
        (b'a,b\n1,2\n3,"4\n', "cannot be parsed", 8),
        (b"a,b\n1,\xff\n", "not utf-8", 4),
        (b"a,a\n1,2\n", "two columns have the same name", 0),
    ],
)
def test_a_damaged_row_is_named(tmp_path: Path, data: bytes, why: str, offset: int) -> None:
    with pytest.raises(DamagedRecord, match=why) as found:
        list(open_records(put(tmp_path / "a.csv", data)).read())
    assert found.value.offset == offset


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "ROW_MAX", 100)
    with pytest.raises(DamagedRecord, match="more than 100 bytes"):
        open_records(put(tmp_path / "a.csv", b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 50))
    with pytest.raises(DamagedRecord, match="more than 100 bytes"):
        open_records(put(tmp_path / "b.csv", b"a\n" + b"x" * 500))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"delimiter": ",,"}, "delimiter must be one character"),
        ({"encoding": "utf-16"}, "line breaks of one byte"),
        ({"encoding": "nonsense"}, "unknown"),
        ({"columns": ("a", "a")}, "different names"),
    ],
)
def test_a_csv_format_that_cannot_work_is_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        open_records(put(tmp_path / "a.csv", b"a,b\n1,2\n"), **options)


def test_a_csv_file_without_rows_has_no_header(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no header row"):
        open_records(put(tmp_path / "a.csv", b"\n\n"))
    assert len(open_records(put(tmp_path / "b.csv", b"a,b\n"))) == 0


def test_files_that_arrow_wrote_are_read(tmp_path: Path) -> None:
    rows = [
        {"id": number, "text": None if number % 7 == 0 else f"row {number}", "v": number / 4} for number in range(50)
    ]
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9)
    found = open_records(tmp_path / "a.parquet")
    assert list(found.read()) == rows
    assert [found[number] for number in (49, 0, 8, 9, 44)] == [rows[number] for number in (49, 0, 8, 9, 44)]
    assert list(found.read(7, 20)) == rows[7:20]
    assert open_records(tmp_path / "a.parquet", columns=["v"])[4] == {"v": 1.0}
    arrow_csv.write_csv(table.select(["id", "v"]), tmp_path / "a.csv")
    assert open_records(tmp_path / "a.csv")[5] == {"id": "5", "v": "1.25"}


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedRecord, match="no Parquet file, or damaged"):
        open_records(put(tmp_path / "a.parquet", b"PAR1 and more PAR1"))
    pq.write_table(pa.table({"x": list(range(1000))}), tmp_path / "b.parquet", compression="gzip", use_dictionary=False)
    data = bytearray((tmp_path / "b.parquet").read_bytes())
    data[100:140] = bytes(40)
    with pytest.raises(DamagedRecord, match="row group 0 cannot be read"):
        list(open_records(put(tmp_path / "b.parquet", bytes(data))).read())
    pq.write_table(pa.table({"x": [1]}), tmp_path / "c.parquet")
    with pytest.raises(BadInput, match="has no column y; it has x"):
        open_records(tmp_path / "c.parquet", columns=["y"])


def test_a_flipped_bit_of_a_parquet_schema_never_ends_the_process(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": list(range(40)), "text": ["row"] * 40}), tmp_path / "a.parquet", compression="none")
    whole = (tmp_path / "a.parquet").read_bytes()
    schema = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for at, bit in itertools.product(range(schema, schema + 40), range(8)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        with suppress(BadInput):
            list(open_records(put(tmp_path / "b.parquet", bytes(flipped))).read())


@pytest.mark.parametrize(("suffix", "pack"), list(written.PACKERS.items()))
def test_compressed_files_are_read_by_number(tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]) -> None:
    put(tmp_path / f"a.tfrecord{suffix}", pack(written.tfrecord(RECORDS)))
    put(tmp_path / f"b.csv{suffix}", pack(b"x\n1\n2\n"))
    found = open_records(tmp_path / f"a.tfrecord{suffix}")
    assert [found[number] for number in (4, 0, 2)] == [RECORDS[number] for number in (4, 0, 2)]
    assert list(open_records(tmp_path / f"b.csv{suffix}").read()) == [{"x": "1"}, {"x": "2"}]
    put(tmp_path / f"c.csv{suffix}", pack(b"x\n" * 1000)[:-10])
    with pytest.raises(DamagedRecord, match="cannot be decompressed"):
        open_records(tmp_path / f"c.csv{suffix}")
