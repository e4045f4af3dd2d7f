"""The elastic schedule: how many workers a job wants from which step on.

A schedule is a tuple of (step, size) entries with rising steps. An entry takes effect once, when its step becomes
durable for the first time. A rollback below the step and a resize by a person therefore stay in force until the next
entry.
"""

from __future__ import annotations

Schedule = tuple[tuple[int, int], ...]

ENTRIES_MAX = 1000


def scheduled_size(schedule: Schedule, step: int) -> int | None:
    """Return the size of the last entry up to `step`; None before the first entry."""
    return next((size for start, size in reversed(schedule) if start <= step), None)


def passed_entry(schedule: Schedule, before: int, after: int) -> tuple[int, int] | None:
    """Return the entry that takes effect when the history grows from step `before` to `after`: the last one passed."""
    return next(((start, size) for start, size in reversed(schedule) if before < start <= after), None)


def next_entry(schedule: Schedule, step: int) -> tuple[int, int] | None:
    """Return the first entry after `step`."""
    return next(((start, size) for start, size in schedule if start > step), None)


def bad_schedule(schedule: Schedule, low: int, high: int) -> str:
    """Return what is wrong with the schedule of a job of `low` to `high` workers, or the empty string."""
    if len(schedule) > ENTRIES_MAX:
        return f"a schedule can have up to {ENTRIES_MAX} entries; got {len(schedule)}"
    before = -1
    for start, size in schedule:
        if start < 0:
            return f"the steps of a schedule are counted from 0; got {start}:{size}"
        if start <= before:
            return f"the steps of a schedule must rise; got {start}:{size} after step {before}"
        if not low <= size <= high:
            return (
                f"the schedule asks for {size} workers from step {start} on, outside {low} to {high}: "
                f"change {start}:{size}, or --workers"
            )
        before = start
    return ""


def describe_schedule(schedule: Schedule) -> str:
    """Return the schedule as `pliant run --schedule` takes it; empty without entries."""
    return ",".join(f"{start}:{size}" for start, size in schedule)
