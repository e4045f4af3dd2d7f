"""How answers are printed: tables for people, JSON for programs, and nothing that could steer a terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def print_json(value: object) -> None:
    """One value on one line."""
    import msgspec

    click.echo(msgspec.json.encode(value).decode())


def clean(text: str) -> str:
    """Others' words on one line: what is no printable character is shown as an escape, and does nothing."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def local_time(at: float) -> str:
    """A moment, by the clock on the wall of whoever reads it."""
    try:
        return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return "in another age"  # whatever others wrote must not keep the rest from being shown


def short(path: Path) -> str:
    """A path as people write it."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except (ValueError, RuntimeError):  # elsewhere, or nobody's home is known
        return str(path)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns; drawn on a terminal, aligned and never shortened elsewhere."""
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
