"""Folders of files: each file is a record, as for pictures or recordings in folders that are named by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pliant.records.base import RecordFile
from pliant.records.bytes_at import BytesAt, change_mark


class FileRecords(RecordFile):
    """The files of a folder. A record has the `path` in the folder, the name of the `folder` around it and `data`."""

    def __init__(self, location: str, paths: Sequence[str], open_file: Callable[[str], BytesAt]) -> None:
        self.location, self._paths, self._open = location, tuple(paths), open_file

    def __len__(self) -> int:
        return len(self._paths)

    def change_mark(self) -> str:
        if "://" in self.location:
            return ""  # a request for each file would take long
        return repr([(path, change_mark(f"{self.location}/{path}")) for path in self._paths])

    def read(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        for path in self._paths[start:stop]:
            source = self._open(path)
            folder = path.rpartition("/")[0].rpartition("/")[2]
            yield {"path": path, "folder": folder, "data": source.exactly(0, source.size, "the file")}
