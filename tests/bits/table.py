"""The rows of the table, and whether the promise was kept in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from bits.pieces import Piece, Row
from chaos.campaign import counts
from chaos.faults import KINDS

SHOWN = ("weights", "buffers", "optimizer", "metrics")
DIGITS = 12  # of a hash are printed
MANY = 50  # schedules are enough for faults of every kind
HEAD = "".join(
    f"{title:{width}}"
    for title, width in (("model", 13), ("cut", 17), ("trained by", 22), *((name, DIGITS + 2) for name in SHOWN))
)


class Table:
    """Rows as they come. Rows of the same lesson and the same cut must have the same hashes."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._first: dict[tuple[str, str, bool], Row] = {}  # the lone worker's

    def add(self, row: Row) -> str:
        """The row as it is printed."""
        self.rows.append(row)
        piece = row.piece
        if piece.kind == "alone":
            self._first[_group(piece)] = row
        hashes = "".join(f"{row.hashes.get(name, '-')[:DIGITS]:{DIGITS + 2}}" for name in SHOWN)
        return f"{piece.lesson:13}{piece.shape:17}{piece.who:22}{hashes}{self._remark(row)}"

    def _remark(self, row: Row) -> str:
        struck = f"{len(row.struck)} faults: {', '.join(fault.kind for fault in row.struck)}; " if row.faults else ""
        if row.broken:
            return f"{struck}BROKEN, {row.seconds:.0f} s"
        first = self._first.get(_group(row.piece))
        if first is None or first is row:
            return f"{row.seconds:.0f} s"
        other = "OTHER BITS" if row.piece.task.deterministic else "other bits, as it may be"
        return f"{struck}{'the same' if row.hashes == first.hashes else other}, {row.seconds:.0f} s"

    def differ(self, row: Row) -> list[str]:
        """Return what of it has other bits than the lone worker's."""
        first = self._first.get(_group(row.piece))
        if first is None:
            return ["nothing to compare it with"]
        return [name for name in first.hashes if row.hashes.get(name) != first.hashes[name]]

    def judged(self) -> dict[str, Any]:
        """Return what is broken, and the counts."""
        broken = [f"{row.piece}: {each}" for row in self.rows for each in row.broken]
        same = [row for row in self.rows if row.piece.task.deterministic]
        for row in same:
            if not row.broken and (names := self.differ(row)):
                broken.append(f"{row.piece}: other bits than alone: {', '.join(names)}")
        plain: dict[str, int] = {}
        for lesson in dict.fromkeys(row.piece.lesson for row in self.rows if not row.piece.task.deterministic):
            found = [row for row in self.rows if row.piece.lesson == lesson and not row.piece.task.deterministic]
            plain[lesson] = len({row.hashes.get("weights") for row in found})
            if len(found) > 1 and plain[lesson] < 2:
                broken.append(f"{lesson}: with deterministic=False it is the same as well: nothing is shown by this")
        schedules = [row for row in self.rows if row.piece.kind == "schedule"]
        faults = [fault for row in schedules for fault in row.faults]
        found_faults = counts(faults, sum(len(row.piece.faults) for row in schedules))
        if len(schedules) >= MANY and (missing := [kind for kind in KINDS if not found_faults["kinds"].get(kind)]):
            broken.append(f"no fault had an effect of the kind {', '.join(missing)}")
        return {
            "ok": not broken,
            "broken": broken,
            "trainings": len(self.rows),
            "same_bits": sum(not self.differ(row) for row in same),
            "of": len(same),
            "different_without": plain,
            "schedules": sum(bool(row.struck) for row in schedules),
            **{name: found_faults[name] for name in ("faults", "kinds", "kills_by_place", "during_another_change")},
        }

    def summary(self) -> Iterable[str]:
        """One line for each lesson and cut, with the whole hash of the weights."""
        yield f"{'model':13}{'cut':17}{'trainings':>11}  SHA-256 of the weights"
        groups = Counter(_group(row.piece) for row in self.rows if not self.differ(row))
        for (lesson, shape, deterministic), count in groups.items():
            if deterministic:
                weights = self._first[lesson, shape, deterministic].hashes["weights"]
                yield f"{lesson:13}{shape:17}{count:>11}  {weights}"


def _group(piece: Piece) -> tuple[str, str, bool]:
    return piece.lesson, piece.shape, piece.task.deterministic
