"""Sources of records: paths, patterns, folders, URLs; the index that is kept; use from live training."""

import gzip
import os
from multiprocessing.pool import ThreadPool
from pathlib import Path

import fsspec
import pytest

from pliant.errors import BadInput, DamagedRecord
from pliant.records import bytes_at, open_records
from pliant.records import index as index_module
from pliant.records import tfrecord as tfrecord_module
from pliant.records.base import GrowingRecords
from pliant.records.index import Index
from unit.records import written


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLIANT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three files of 3 records, with a mark of another program beside them."""
    folder = tmp_path / "data"
    folder.mkdir()
    for at in range(3):
        (folder / f"part-{at}.tfrecord").write_bytes(written.tfrecord([b"%d %d" % (at, each) for each in range(3)]))
    (folder / "_SUCCESS").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"x")
    return folder


EVERYTHING = [b"%d %d" % (at, each) for at in range(3) for each in range(3)]


def test_a_folder_a_pattern_and_a_list_name_the_same_records(data: Path) -> None:
    files = sorted(data.glob("part-*"))
    for source in (data, f"{data}/part-*.tfrecord", files, [str(each) for each in files]):
        found = open_records(source)
        assert list(found.read()) == EVERYTHING
        assert found[5] == b"1 2"
        assert found.locate(5) == (str(files[1]), 2)
        assert found.locations == tuple(map(str, files))
    assert list(open_records(data).read(2, 7)) == EVERYTHING[2:7]


def test_a_number_outside_is_refused(data: Path) -> None:
    found = open_records(data)
    assert found[-9] == b"0 0"
    for number in (9, -10):
        with pytest.raises(IndexError, match="there are 9 records"):
            found[number]
    with pytest.raises(IndexError, match="records 0 to 9; got 3 to 10"):
        list(found.read(3, 10))


def test_records_are_transformed_where_they_are_read(data: Path) -> None:
    found = open_records(data, transform=bytes.decode)
    assert found[0] == "0 0"
    assert list(found.read(8)) == ["2 2"]
    assert not hasattr(found, "__getitems__"), "each record gets random numbers of its own"


def test_several_records_are_read_in_the_order_of_the_files(data: Path) -> None:
    found = open_records(data)
    assert found.__getitems__([7, 0, 7, 3]) == [EVERYTHING[number] for number in (7, 0, 7, 3)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("source", "options", "why"),
    [
        ("missing.csv", {}, "missing.csv does not exist"),
        ("*.nothing", {}, r"no file matches .*\*\.nothing"),
        ("data/_SUCCESS", {}, "do not tell their format"),
        ("data", {"format": "json"}, "format must be one of tfrecord, example"),
        ("data/_SUCCESS", {"format": "files"}, "is no folder"),
        ("memory://nothing/there", {}, "does not exist"),
        ("nonsense://a/b.csv", {}, "nonsense://a/b.csv cannot be used"),
    ],
)
def test_a_source_that_cannot_be_opened_is_refused(data: Path, source: str, options: dict[str, str], why: str) -> None:
    place = source if "://" in source else str(data.parent / source)
    with pytest.raises(BadInput, match=why):
        open_records(place, **options)  # type: ignore[arg-type]


def test_files_of_different_kinds_need_a_format(data: Path) -> None:
    (data / "x.csv").write_bytes(b"a\n")
    with pytest.raises(BadInput, match=r"endings: \.csv, \.tfrecord"):
        open_records(data)


def test_a_file_without_permission_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.csv").write_bytes(b"a\n")
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(BadInput, match=r"cannot open .*a\.csv: Permission denied"):
        open_records(tmp_path / "a.csv")


def test_urls_of_fsspec_are_read(data: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in data.glob("*"):
        memory.pipe_file(f"/records/{path.name}", path.read_bytes())
    memory.pipe_file("/records/packed/a.csv.gz", gzip.compress(b"x\n1\n"))
    try:
        for source in ("memory://records", "memory://records/part-*.tfrecord"):
            found = open_records(source)
            assert list(found.read()) == EVERYTHING
            assert found[5] == b"1 2"
        assert open_records("memory://records/part-1.tfrecord")[1] == b"1 1"
        assert list(open_records("memory://records/packed/a.csv.gz").read()) == [{"x": "1"}]
        files = open_records("memory://records/packed", "files")
        assert files[0]["data"] == b"x\n1\n"
        with pytest.raises(BadInput, match="is no folder"):
            open_records("memory://records/_SUCCESS", "files")
    finally:
        memory.rm("/records", recursive=True)


def test_a_url_needs_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(BadInput, match=r"needs fsspec, .* pip install 'pliant\[fsspec\]'"):
        open_records("memory://a/b.csv")


def test_a_format_names_the_extra_that_it_needs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    (data / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match=r"needs the package pyarrow: pip install 'pliant\[records\]'"):
        open_records(data / "a.parquet")


def test_a_folder_of_files_has_one_record_for_each(tmp_path: Path) -> None:
    for name in ("cats/1.png", "cats/2.png", "dogs/1.png", ".git/x"):
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(name.encode())
    found = open_records(tmp_path / "f", "files")
    assert [(each["path"], each["folder"]) for each in found.read()] == [
        ("cats/1.png", "cats"),
        ("cats/2.png", "cats"),
        ("dogs/1.png", "dogs"),
    ]
    assert found[2]["data"] == b"dogs/1.png"


def test_the_positions_of_a_large_file_are_kept_until_it_changes(
    data: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "KEEP_FROM", 2)
    scans: list[str] = []
    scan = tfrecord_module.scan_positions

    def counted(source: bytes_at.BytesAt) -> object:
        scans.append(source.location)
        return scan(source)

    monkeypatch.setattr(tfrecord_module, "scan_positions", counted)
    path = data / "part-0.tfrecord"
    for _ in range(2):
        assert list(open_records(path).read()) == EVERYTHING[:3]
    assert len(scans) == 1
    (kept,) = (home / "record-index").iterdir()
    content = kept.read_bytes()
    for damage in (content[:-1], content[:-8], b"", content[:-1] + bytes([content[-1] ^ 1])):
        kept.write_bytes(damage)
        assert list(open_records(path).read()) == EVERYTHING[:3]
    assert len(scans) == 5
    path.write_bytes(written.tfrecord([b"new"]) * 4)
    assert list(open_records(path).read()) == [b"new"] * 4
    assert len(scans) == 6


def test_a_folder_that_cannot_be_written_keeps_no_index(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    found = open_records(data, index_dir=tmp_path / "file" / "below")
    assert len(found) == 9


def test_a_compressed_file_with_a_kept_index_is_not_decompressed_to_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(gzip.compress(written.tfrecord([b"a", b"b"])))
    assert len(open_records(path)) == 2
    monkeypatch.setattr(bytes_at, "COMPRESSIONS", {".gz": None})
    assert len(open_records(path)) == 2


def test_a_file_that_shrinks_while_it_is_open_is_reported(data: Path) -> None:
    path = data / "part-0.tfrecord"
    found = open_records(path)
    os.truncate(path, 30)
    with pytest.raises(DamagedRecord, match="became shorter"):
        found[2]


def test_more_files_than_may_be_open_are_read_by_many_threads(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_at, "OPEN_FILES_MAX", 2)
    found = open_records(data)
    numbers = [number * 7 % 9 for number in range(500)]
    with ThreadPool(4) as pool:
        assert pool.map(found.__getitem__, numbers) == [EVERYTHING[number] for number in numbers]


def test_records_are_read_in_a_forked_process(data: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/forked/a.tfrecord", written.tfrecord([b"a", b"b"]))
    both = [open_records(data), open_records("memory://forked/a.tfrecord")]
    assert both[1][0] == b"a"
    child = os.fork()
    if child == 0:
        os._exit(0 if both[0][4] == b"1 1" and both[1][1] == b"b" else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_bytes_in_memory_have_no_index_to_keep(tmp_path: Path) -> None:
    source = bytes_at.MemoryBytes(written.tfrecord([b"x"]))
    assert len(tfrecord_module.TFRecordFile(source, Index(tmp_path))) == 1
    assert list(tmp_path.glob("record-index")) == []


def test_a_folder_that_grows_has_its_new_records_after_the_others(data: Path) -> None:
    (data / "_SUCCESS").unlink()
    found = open_records(data, growing=True)
    assert isinstance(found, GrowingRecords)
    assert (list(found.read()), found.complete) == (EVERYTHING, False)
    (data / "part-3.tfrecord").write_bytes(written.tfrecord([b"3 0"]))
    found.grow()
    assert (list(found.read()), found.complete) == ([*EVERYTHING, b"3 0"], False)
    (data / "_SUCCESS").touch()
    found.grow()
    assert (len(found), found.complete) == (10, True)
    (data / "part-4.tfrecord").write_bytes(written.tfrecord([b"4 0"]))
    with pytest.raises(BadInput, match=r"part-4.tfrecord was added after _SUCCESS"):
        found.grow()


def test_a_folder_that_grows_may_be_empty_and_be_a_url() -> None:
    files = fsspec.filesystem("memory")
    files.makedirs("/growing", exist_ok=True)
    found = open_records("memory://growing", growing=True, transform=len)
    assert isinstance(found, GrowingRecords)
    assert (len(found), found.complete) == (0, False)
    files.pipe("/growing/part-0.tfrecord", written.tfrecord([b"abc"]))
    files.pipe("/growing/_SUCCESS", b"")
    found.grow()
    assert (found[0], found.complete) == (3, True)


@pytest.mark.parametrize("name", ["a.tfrecord", None])
def test_a_file_that_comes_before_others_or_is_removed_is_an_error(data: Path, name: str | None) -> None:
    found = open_records(data, growing=True)
    assert isinstance(found, GrowingRecords)
    if name is None:
        (data / "part-2.tfrecord").unlink()
    else:
        (data / "_SUCCESS").unlink()
        (data / name).write_bytes(written.tfrecord([b"x"]))
        found.complete = False
    with pytest.raises(BadInput, match="Add files under names that sort after all others"):
        found.grow()


@pytest.mark.parametrize(
    ("source", "format_", "says"),
    [
        ("part-*", None, "one folder"),
        ("", "files", "one folder"),
        ("", "text", "format must"),
        ("no", None, "no folder"),
    ],
)
def test_growing_data_that_cannot_be_opened_is_refused(data: Path, source: str, format_: str | None, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        open_records(data / source, format_, growing=True)
