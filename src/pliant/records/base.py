"""The interface of all readers: records by number, and ranges of them in sequence.

`Records` joins the files of a data set. Each format has a `RecordFile`, which reads one file and knows its own records
by number. The records of all files have one numbering, in the order of the files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from pliant.errors import BadInput
from pliant.records.bytes_at import change_mark

COMPLETE_MARK = "_SUCCESS"  # the file that Spark and Hadoop write beside their output


class RecordFile(ABC):
    """One file of records, of one format."""

    location: str

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records."""

    @abstractmethod
    def read(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the records `start` to `stop`, in sequence. Raises DamagedRecord at the first that cannot be read."""

    def change_mark(self) -> str:
        """Return text that changes with the file; empty if that cannot be seen."""
        return change_mark(self.location)

    def get(self, number: int) -> Any:
        """Return one record."""
        return next(self.read(number, number + 1))


class Records:
    """Records of one or more files: a data set with a length and an index.

    `transform`, if given, is called with every record that is read.
    """

    def __init__(self, files: Sequence[RecordFile], transform: Callable[[Any], Any] | None = None) -> None:
        self._files = tuple(files)
        self._starts = (0, *accumulate(len(file) for file in self._files))
        self._transform = transform

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, number: int) -> Any:
        record = self._raw(number)
        return record if self._transform is None else self._transform(record)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Any]:
        """Yield the records `start` to `stop` in sequence, which is quicker than one by one."""
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"there are records 0 to {len(self)}; got {start} to {stop}")
        while start < stop:
            at = self._file_of(start)
            end = min(stop, self._starts[at + 1])
            for record in self._files[at].read(start - self._starts[at], end - self._starts[at]):
                yield record if self._transform is None else self._transform(record)
            start = end

    def locate(self, number: int) -> tuple[str, int]:
        """Return the file of a record, and its number in that file."""
        number = self._checked(number)
        at = self._file_of(number)
        return self._files[at].location, number - self._starts[at]

    @property
    def locations(self) -> tuple[str, ...]:
        """The paths or URLs of the files, in the order of their records."""
        return tuple(file.location for file in self._files)

    def change_mark(self) -> str:
        """Return text that changes with the names and the content of the files; empty if that cannot be seen."""
        marks = [(file.location.rpartition("/")[2], file.change_mark()) for file in self._files]
        return repr(marks) if all(mark for _, mark in marks) else ""

    def _raw(self, number: int) -> Any:
        number = self._checked(number)
        at = self._file_of(number)
        return self._files[at].get(number - self._starts[at])

    def _file_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1

    def _checked(self, number: int) -> int:
        at = number + len(self) if number < 0 else number
        if not 0 <= at < len(self):
            raise IndexError(f"there are {len(self)} records; got number {number}")
        return at


class PlainRecords(Records):
    """Records without a transform. Several are read at once, in the order in which they lie in the files.

    With a transform each record is read by itself, because live training seeds random numbers for each of them.
    """

    def __init__(self, files: Sequence[RecordFile]) -> None:
        super().__init__(files)

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        found = {number: self._raw(number) for number in sorted({*numbers})}
        return [found[number] for number in numbers]


class GrowingRecords(Records):
    """The records of files that are there so far. `grow` looks for more; `complete` is True once there will be none.

    Records keep their numbers, so a new file must have a name after all others. `list_files` returns the locations of
    all files in the order of their names, and whether the folder has its mark.
    """

    def __init__(
        self,
        folder: str,
        list_files: Callable[[], tuple[Sequence[str], bool]],
        open_file: Callable[[str], RecordFile],
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__((), transform)
        self._folder, self._list_files, self._open_file = folder, list_files, open_file
        self.complete = False
        self.grow()

    def grow(self) -> None:
        """Take in files that were added. Other threads may read meanwhile.

        Raises BadInput if the records that are known would get other numbers.
        """
        found, complete = self._list_files()
        known = self.locations
        if self.complete and len(found) > len(known):
            raise BadInput(f"{found[-1]} was added after {COMPLETE_MARK}. Start a job of its own for it.")
        for before, now in zip(known, (*found, *[""] * len(known)), strict=False):
            if before != now:
                raise BadInput(
                    f"{self._folder} had the file {before}, and now {now or 'no file'} comes in its place. Add files "
                    "under names that sort after all others, and remove none before the job has ended."
                )
        files = (*self._files, *(self._open_file(each) for each in found[len(known) :]))
        self._files = files  # first, since a reader looks up the file by its start
        self._starts = (0, *accumulate(len(file) for file in files))
        self.complete = complete
