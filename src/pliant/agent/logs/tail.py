"""Read workers' logs while they are written: whole or their last lines, then the lines that are added."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from pliant.agent.job_dir import JobDir
from pliant.agent.logs.capture import LineSplitter
from pliant.agent.logs.rotate import older

BLOCK = 1 << 16
RECENT_S = 600.0

_MEMBER = re.compile(r".+-\w+(?:\.\d+)+")  # the coordinator's own log, and copies of some lines, have other names


def place_of_logs(folder: JobDir) -> Path:
    """Return the folder of a job's logs on this machine; `pliant run --log-dir` may have set another one."""
    try:
        said = folder.logs_at.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return folder.logs
    return Path(said) if said else folder.logs


def logs_in(place: Path) -> dict[str, Path]:
    """Return the log of each member by name, in the order in which they were last written."""
    found: list[tuple[float, str, Path]] = []
    try:
        for entry in place.iterdir():
            if entry.suffix == ".log" and _MEMBER.fullmatch(entry.stem):
                found.append((entry.stat().st_mtime, entry.stem, entry))
    except OSError:
        pass  # none was made yet, or one vanished meanwhile: the next look shows the rest
    return {member: path for _, member, path in sorted(found)}


class Tail:
    """One worker's log. Call `begin` once, then `more` as often as you like, then `end`.

    A log that was rotated since the last look is recognised by its inode, which is not reused while the file is open.
    Logs that were not written for long are closed, since there may be many of them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: IO[bytes] | None = None
        self._number: tuple[int, int] | None = None  # of the file that was read last
        self._offset = 0
        self._found: list[bytes] = []
        self._lines = LineSplitter(self._found.append)

    def begin(self, count: int | None) -> Iterator[bytes]:
        """Return the last `count` lines; all if it is None."""
        with ExitStack() as opened:
            if (now := _open(self._path, opened)) is None:
                return
            before = _open(older(self._path), opened)
            if before is not None and _number(before) == _number(now):
                before = None  # it was moved between the two
            start, there = (0, 0) if count is None else _last(now, count)
            if before is not None and (count is None or there < count):
                yield from self._read(before, 0 if count is None else _last(before, count - there)[0])
            yield from self._read(now, start)
            self._keep(now)

    def more(self) -> Iterator[bytes]:
        """Return the lines added since the last look."""
        with ExitStack() as opened:
            if (now := _open(self._path, opened)) is None:
                return
            if _number(now) != self._number:
                yield from self._rest(_number(now), opened)
                self._offset = 0
            size = os.fstat(now.fileno()).st_size
            if size < self._offset:  # half a line was removed, because the disk was full
                self._offset = size
                self._lines = LineSplitter(self._found.append)
            yield from self._read(now, self._offset)
            self._keep(now)

    def end(self) -> Iterator[bytes]:
        """Return the last line if it lacks its newline. Call when nothing is added any more."""
        self._let_go()
        self._lines.end()
        yield from self._take_found()

    def _rest(self, now: tuple[int, int], opened: ExitStack) -> Iterator[bytes]:
        """Return the rest of the file that was read before, and of its successor if it was rotated twice."""
        if self._held is not None:
            yield from self._read(self._held, self._offset)
        before = _open(older(self._path), opened)
        if before is not None and self._number is not None and _number(before) not in (now, self._number):
            yield from self._read(before, 0)
        elif before is not None and self._held is None and _number(before) == self._number:
            yield from self._read(before, self._offset)

    def _keep(self, now: IO[bytes]) -> None:
        """Remember what was read, and hold it open if it is likely to be written to."""
        if self._number == _number(now) and self._held is not None:
            return
        self._let_go()
        self._number = _number(now)
        if time.time() - os.fstat(now.fileno()).st_mtime < RECENT_S:
            self._held = os.fdopen(os.dup(now.fileno()), "rb", buffering=0)

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    def _read(self, file: IO[bytes], start: int) -> Iterator[bytes]:
        file.seek(start)
        self._offset = start
        while data := file.read(BLOCK):
            self._offset += len(data)
            self._lines.feed(data)
            yield from self._take_found()

    def _take_found(self) -> list[bytes]:
        found = [*self._found]
        self._found.clear()
        return found


def _open(path: Path, opened: ExitStack) -> IO[bytes] | None:
    try:
        return opened.enter_context(path.open("rb", buffering=0))
    except OSError:
        return None  # not there yet, or not any more


def _number(file: IO[bytes]) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino


def _last(file: IO[bytes], count: int) -> tuple[int, int]:
    """Return the offset of the last lines, and their number if there are fewer."""
    end = file.seek(0, os.SEEK_END)
    if count == 0:
        return end, 0
    seen, at = 0, end
    while at > 0:
        size = min(BLOCK, at)
        at -= size
        file.seek(at)
        block = file.read(size)
        place = len(block)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            if at + place == end - 1:
                continue  # the end of the last line begins none
            seen += 1
            if seen == count:
                return at + place + 1, seen
    return 0, seen + 1 if end else 0
