"""Remove old events and deleted jobs from a SQLite file. Call these functions in a write transaction."""

from __future__ import annotations

import sqlite3

from pliant.stores.base import Conflict, Segment

__all__ = ["SEGMENTS", "delete", "trim"]

SEGMENTS = """
SELECT s.first, s.last, s.name FROM jobs j JOIN segments s ON s.job = j.id WHERE j.name = ? ORDER BY s.first
"""
_FIND = """
SELECT j.id, j.base, j.record_revision,
    (SELECT max(last) FROM segments WHERE job = j.id), (SELECT max(revision) FROM events WHERE job = j.id)
FROM jobs j WHERE j.name = ?
"""
_ROWS_A_PAGE = 8  # events of the usual size, to estimate the pages that change


def trim(connection: sqlite3.Connection, job: str, segment: Segment) -> tuple[bool, int]:
    """Replace events by a segment. Return whether that was done, and the estimated pages written."""
    found = connection.execute(_FIND, (job,)).fetchone()
    if found is None:
        return False, 0
    key, base, record_revision, trimmed, revision = found
    if segment.first != (trimmed or base) + 1 or segment.last > min(record_revision, revision - 1):
        return False, 0
    connection.execute("INSERT INTO segments VALUES (?, ?, ?, ?)", (key, segment.first, segment.last, segment.name))
    removed = connection.execute("DELETE FROM events WHERE job = ? AND revision <= ?", (key, segment.last)).rowcount
    return True, 2 + removed // _ROWS_A_PAGE


def delete(connection: sqlite3.Connection, job: str, expected: int) -> tuple[Conflict | None, int]:
    """Delete a job. Return the conflict, if any, and the estimated pages written."""
    key, _, _, _, revision = connection.execute(_FIND, (job,)).fetchone() or (None, 0, 0, None, 0)
    if revision != expected:
        return Conflict(revision), 0
    removed = connection.execute("DELETE FROM events WHERE job = ?", (key,)).rowcount
    connection.execute("DELETE FROM segments WHERE job = ?", (key,))
    connection.execute("DELETE FROM jobs WHERE id = ?", (key,))
    connection.execute("UPDATE meta SET floor = max(floor, ?)", (revision,))
    return None, 4 + removed // _ROWS_A_PAGE
