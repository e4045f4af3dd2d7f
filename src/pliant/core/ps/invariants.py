"""Invariants of parameter servers, checked by the coordinator, the simulator and tests.

Each returns the empty string, or a sentence that names the violation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pliant.core.ps.model import BUCKETS, NONE, BucketLayout, ServerTable

T = TypeVar("T")


def _first_buckets(rows: Iterable[T]) -> dict[T, int]:
    """Return each different row with the first bucket that has it: what holds for one bucket holds for its equals."""
    first: dict[T, int] = {}
    for bucket, row in enumerate(rows):
        first.setdefault(row, bucket)
    return first


def layout_violation(layout: BucketLayout) -> str:
    """Check a layout by itself."""
    rows = (layout.primary, layout.backup, layout.incoming)
    if any(len(row) != BUCKETS for row in rows):
        return f"servers: layout {layout.number} does not have {BUCKETS} buckets"
    if any(min(row) < NONE or max(row) >= len(layout.servers) for row in rows):
        return f"servers: layout {layout.number} names a server that it does not have"
    staying = {*layout.ids} - layout.leaving
    for (primary, backup, incoming), bucket in _first_buckets(zip(*rows, strict=True)).items():
        there = [at for at in (primary, backup, incoming) if at != NONE]
        if len({*there}) < len(there):
            return f"servers: bucket {bucket} has two copies on one server in layout {layout.number}"
        if primary == NONE and (there or staying):
            return f"servers: bucket {bucket} has no primary in layout {layout.number}"
    return ""


def table_change_violation(before: ServerTable, after: ServerTable) -> str:
    """Check one change: layouts go up, and of the filled copies that are left two stay.

    A backup that leaves may go if its primary stays and has reported.
    """
    old, new = before.layout, after.layout
    if new.number <= old.number:
        return "" if new == old else f"servers: layout {new.number} follows layout {old.number}"
    alive = {*new.ids}
    for (was, now), bucket in _first_buckets(zip(old.all_copies(), new.all_copies(), strict=True)).items():
        filled = was.incoming if was.primary in before.copied else None
        good = {was.primary, was.backup, filled} & alive
        if good and now.primary not in good:
            return f"servers: the primary of bucket {bucket} in layout {new.number} has no filled copy of it"
        if now.backup is not None and now.backup not in good:
            return f"servers: the backup of bucket {bucket} in layout {new.number} has no filled copy of it"
        may_go = was.backup in old.leaving and was.primary in before.copied and now.primary == was.primary
        if len(good) > 1 and now.backup is None and not may_go:
            return f"servers: layout {new.number} keeps one of {len(good)} copies of bucket {bucket}"
    return ""
