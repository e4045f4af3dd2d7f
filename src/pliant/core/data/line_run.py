"""A run of ledger lines that grows at its end and shrinks at its start, with frozen values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from pliant.core.data.ledger import LedgerLine

__all__ = ["LineRun"]


class LineRun(Sequence[LedgerLine]):
    """An immutable sequence of lines. It equals a tuple of the same lines.

    While the coordinator is away, a member keeps the line of every step. So a line is added in constant time: runs
    share one list, and each run is a window of it. A run that is not at the end of the list copies its lines when it
    grows, and a run that leaves more than half of the list behind copies the rest.
    """

    __slots__ = ("_lines", "_start", "_stop")

    def __init__(self, lines: Iterable[LedgerLine] = ()) -> None:
        self._lines = list(lines)
        self._start, self._stop = 0, len(self._lines)

    def added(self, line: LedgerLine) -> LineRun:
        """Return this run with one more line."""
        shared = self if self._stop == len(self._lines) else LineRun(self)
        shared._lines.append(line)
        return shared._window(shared._start, shared._stop + 1)

    def without_first(self, count: int) -> LineRun:
        """Return this run without its first `count` lines."""
        start = min(self._start + count, self._stop)
        if start > len(self._lines) // 2:
            return LineRun(self._lines[start : self._stop])
        return self._window(start, self._stop)

    def _window(self, start: int, stop: int) -> LineRun:
        run = object.__new__(LineRun)
        run._lines, run._start, run._stop = self._lines, start, stop
        return run

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> LedgerLine: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LedgerLine, ...]: ...
    def __getitem__(self, index: int | slice) -> LedgerLine | tuple[LedgerLine, ...]:
        where = range(self._start, self._stop)[index]
        if isinstance(where, int):
            return self._lines[where]
        return tuple([self._lines[at] for at in where])

    def __iter__(self) -> Iterator[LedgerLine]:
        return iter(self._lines[self._start : self._stop])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LineRun | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # no run is a key, and a hash would read every line

    def __repr__(self) -> str:
        return f"LineRun({list(self)!r})"
