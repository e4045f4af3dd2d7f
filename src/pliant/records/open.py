"""Open the files of a data set by their format.

A source is a path, a pattern such as `data/train-*.csv`, a folder, an fsspec URL of any of these, or a list of them.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pliant import settings
from pliant.errors import BadInput
from pliant.file_systems import open_file_system
from pliant.records.base import COMPLETE_MARK, GrowingRecords, PlainRecords, RecordFile, Records
from pliant.records.bytes_at import compression_of, damaged_record, open_bytes
from pliant.records.csv_rows import CsvFile, CsvFormat
from pliant.records.example import Features, parse_example
from pliant.records.folder import FileRecords
from pliant.records.index import Index
from pliant.records.parquet import ParquetFile
from pliant.records.recordio import RecordIOFile
from pliant.records.tfrecord import TFRecordFile

FORMATS = ("tfrecord", "example", "recordio", "csv", "parquet", "files")
SUFFIXES = {
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".recordio": "recordio",
    ".rio": "recordio",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
}


def open_records(
    source: str | Path | Sequence[str | Path],
    format: str | None = None,  # noqa: A002 - the word that users look for
    *,
    transform: Callable[[Any], Any] | None = None,
    columns: Sequence[str] | None = None,
    delimiter: str | None = None,
    encoding: str = "utf-8",
    index_dir: str | Path | None = None,
    growing: bool = False,
) -> Records:
    """Open record files. Raises BadInput if there are none, and DamagedRecord where one cannot be read.

    `format` is one of `FORMATS`; None: by the ending of the files' names. Records of `tfrecord` and `recordio` are
    bytes, those of `example` the features of a tf.Example in a TFRecord file, those of `csv` and `parquet` rows as
    dictionaries, those of `files` whole files of a folder. `transform` is called with each record that is read.
    `columns` are the columns to read from Parquet, or the names of the columns of CSV files without a header row.
    `index_dir` keeps the positions of records; by default, a folder in Pliant's home. `growing`: the source is one
    folder to which files are added, until the file `_SUCCESS` is in it.
    """
    index = Index(Path(index_dir) if index_dir is not None else settings.read().home / "record-index")
    form = CsvFormat(delimiter or ",", columns=tuple(columns) if columns is not None else None, encoding=encoding)
    if growing:
        folder, chosen = _growing_folder(source, format), format
        return GrowingRecords(
            folder,
            lambda: _list_growing(folder),
            lambda location: _open_file(location, chosen or _format_of([location]), form, index, delimiter),
            transform,
        )
    sources = [source] if isinstance(source, str | Path) else list(source)
    locations = [location for each in sources for location in expand(str(each), whole_folders=format == "files")]
    if not locations:
        raise BadInput(f"no file matches {', '.join(map(str, sources))}")
    if format is None:
        format = _format_of(locations)  # noqa: A001 - as above
    if format not in FORMATS:
        raise BadInput(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    if format == "files":
        return _joined([_folder_of(location) for location in locations], transform)
    return _joined([_open_file(location, format, form, index, delimiter) for location in locations], transform)


def _growing_folder(source: str | Path | Sequence[str | Path], format: str | None) -> str:  # noqa: A002 - as above
    if not isinstance(source, str | Path) or glob.has_magic(str(source)) or format == "files":
        raise BadInput(
            f"growing data is one folder of record files, not a pattern, a list or the format files: {source}"
        )
    if format is not None and format not in FORMATS:
        raise BadInput(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
    if "://" not in str(source) and not Path(source).is_dir():
        raise BadInput(f"{source} is no folder. Create it before the job starts; it may be empty.")
    return str(source)


def _list_growing(folder: str) -> tuple[list[str], bool]:
    """Return the files of a folder, and whether it has its mark. Files that are written before the mark are seen."""
    if "://" in folder:
        file_system, path = open_file_system(folder)
        file_system.invalidate_cache()
        complete = file_system.exists(f"{path.rstrip('/')}/{COMPLETE_MARK}")
        file_system.invalidate_cache()
    else:
        complete = (Path(folder) / COMPLETE_MARK).exists()
    return expand(folder), complete


def _joined(files: Sequence[RecordFile], transform: Callable[[Any], Any] | None) -> Records:
    return PlainRecords(files) if transform is None else Records(files, transform)


class ExampleFile(TFRecordFile):
    """A TFRecord file of tf.Example messages. Records are their features."""

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for number, data in enumerate(super().read(start, stop), start):
            yield self._parsed(number, data)

    def get(self, number: int) -> Any:
        return self._parsed(number, super().get(number))

    def _parsed(self, number: int, data: bytes) -> Features:
        try:
            return parse_example(data)
        except ValueError as error:
            raise damaged_record(self.location, int(self._offsets[number]), str(error)) from error


def _open_file(
    location: str,
    format: str,  # noqa: A002 - as above
    form: CsvFormat,
    index: Index,
    delimiter: str | None,
) -> RecordFile:
    source = open_bytes(location)
    match format:
        case "tfrecord":
            return TFRecordFile(source, index)
        case "example":
            return ExampleFile(source, index)
        case "recordio":
            return RecordIOFile(source)
        case "csv":
            is_tabbed = delimiter is None and _plain_name(location).endswith(".tsv")
            return CsvFile(source, replace(form, delimiter="\t") if is_tabbed else form, index)
        case _:
            return ParquetFile(source, form.columns)


def expand(source: str, *, whole_folders: bool = False) -> list[str]:
    """Return the files of a path, pattern, folder or URL, in the order of their names.

    Hidden files, and names that begin with `_`, are left out: other programs write marks such as `_SUCCESS`.
    """
    if "://" in source:
        return _expand_url(source, whole_folders=whole_folders)
    if glob.has_magic(source) and not Path(source).exists():
        return sorted(glob.glob(source, recursive=True))  # noqa: PTH207 - a pattern may be absolute
    path = Path(source)
    if path.is_dir() and not whole_folders:
        return sorted(str(each) for each in path.iterdir() if each.is_file() and each.name[0] not in "._")
    if not path.exists():
        raise BadInput(f"{source} does not exist")
    return [source]


def _expand_url(source: str, *, whole_folders: bool) -> list[str]:
    file_system, path = open_file_system(source)
    if glob.has_magic(path):
        found = file_system.glob(path)
    elif not file_system.exists(path):
        raise BadInput(f"{source} does not exist")
    elif file_system.isdir(path) and not whole_folders:
        found = [each["name"] for each in file_system.ls(path, detail=True) if each["type"] == "file"]
    else:
        found = [path]
    return [
        str(file_system.unstrip_protocol(each))
        for each in sorted(found)
        if each == path or each.rpartition("/")[2][0] not in "._"
    ]


def _folder_of(location: str) -> FileRecords:
    if "://" in location:
        file_system, root = open_file_system(location)
        if not file_system.isdir(root):
            raise BadInput(f"{location} is no folder. Records of format files are the files of a folder.")
        prefix = root.rstrip("/") + "/"
        paths = [path.removeprefix(prefix) for path in file_system.find(root)]
    else:
        folder = Path(location)
        if not folder.is_dir():
            raise BadInput(f"{location} is no folder. Records of format files are the files of a folder.")
        paths = [each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()]
    shown = sorted(path for path in paths if not any(part.startswith(".") for part in path.split("/")))
    return FileRecords(location, shown, lambda path: open_bytes(f"{location.rstrip('/')}/{path}"))


def _format_of(locations: Sequence[str]) -> str:
    found = {_plain_name(location)[_plain_name(location).rfind(".") :].lower() for location in locations}
    formats = {SUFFIXES.get(suffix) for suffix in found}
    if len(formats) == 1 and (known := formats.pop()) is not None:
        return known
    endings = ", ".join(sorted(suffix or "none" for suffix in found))
    raise BadInput(f"the names of the files do not tell their format (endings: {endings}). Pass format=.")


def _plain_name(location: str) -> str:
    name = location.rpartition("/")[2]
    return name.removesuffix(compression_of(name))
