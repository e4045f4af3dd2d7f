"""Printing: tables for people, JSON for programs. Control characters never reach the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

DIGESTS = frozenset({"digest"})  # keys of 64-bit numbers

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    import msgspec

    click.echo(msgspec.json.encode(_exact(msgspec.to_builtins(value))).decode())


def _exact(value: object) -> object:
    """Return the value with 64-bit digests as strings: programs that read numbers as doubles lose their last digits."""
    if isinstance(value, dict):
        return {
            key: str(each) if key in DIGESTS and isinstance(each, int) else _exact(each) for key, each in value.items()
        }
    return [_exact(each) for each in value] if isinstance(value, list) else value


def clean(text: str) -> str:
    """Return the text on one line, with unprintable characters as escapes."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def local_time(at: float) -> str:
    """Format a timestamp in local time."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"unknown time (invalid timestamp {at:g})"


def short_time(at: float) -> str:
    """Format a timestamp in local time for the past tense: `10:03` today, with the date on other days."""
    text = local_time(at)
    today = local_time(time.time()).partition(" ")[0]
    return text.removeprefix(f"{today} ")[:-3] if text[:1].isdigit() else text


def count(number: int, thing: str) -> str:
    """Return a number of things: `1 worker`, `2 workers`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def format_size(nbytes: float) -> str:
    """Format a number of bytes."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def format_age(seconds: float) -> str:
    """Format an age; never negative, in case a clock is behind."""
    for unit, each in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * each:
            return f"{seconds / each:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def time_until(deadline: float, now: float) -> str:
    """Return how far away a deadline is: `in 2 h 10 min`, or `3 min ago`."""
    from pliant.core.allocate.reasons import duration

    return f"in {duration(deadline - now)}" if now < deadline else f"{duration(now - deadline)} ago"


def describe_deadline(deadline: float, now: float, ended_at: float | None) -> str:
    """Return the deadline of a job, and how far it is from the end of the job, or from now if it runs."""
    from pliant.core.allocate.reasons import duration

    if ended_at is None:
        return f"{short_time(deadline)}, {time_until(deadline, now)}"
    distance = f"{duration(abs(deadline - ended_at))} {'early' if ended_at <= deadline else 'late'}"
    return f"{short_time(deadline)}; it ended {distance}"


def short_path(path: Path) -> str:
    """Return a path with ~ for the home folder."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # outside the home folder, or there is none
        return str(path)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: drawn on a terminal, plain columns otherwise. Cells are never truncated."""
    cleaned = [[clean(cell) for cell in row] for row in rows]
    titles = [head.upper() for head in heads]
    if sys.stdout.isatty():
        _draw(titles, cleaned)
        return
    lines = [titles, *cleaned]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _draw(heads: Sequence[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
