"""The file with the prices of a slot: a line for each change, with the time and the price for an hour."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pliant.core.allocate.model import Prices

_PRICE = re.compile(r"\d{1,12}(\.\d{1,12})?")


def parse_prices(text: str) -> Prices:
    """Read the file at a path, or return no prices for `none`."""
    if text == "none":
        return ()
    try:
        lines = Path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise click.BadParameter(f"{text} cannot be read: {error}.") from None
    found: dict[float, float] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == 1 and line.replace(" ", "") == "time,price"):
            continue
        at, price = _read_line(text, number, line)
        if at in found:
            raise click.BadParameter(f"{text}, line {number}: a second price for the same time: {line.strip()!r}.")
        found[at] = price
    if not found:
        raise click.BadParameter(f"{text} has no prices. Write lines such as 2026-11-18T12:00:00Z,0.25, or pass none.")
    return tuple(sorted(found.items()))


def _read_line(path: str, number: int, line: str) -> tuple[float, float]:
    """Return the time and the price of a line; a comma or spaces are between them."""
    parts = re.split(r"\s*,\s*|\s+", line.strip())
    try:
        at = datetime.fromisoformat(parts[0])
    except ValueError:
        at = None
    if at is None or len(parts) != 2 or not _PRICE.fullmatch(parts[1]):
        example = "such as 2026-11-18T12:00:00Z,0.25"
        raise click.BadParameter(f"{path}, line {number}: {line.strip()!r} is not TIME,PRICE, {example}.")
    if at.tzinfo is None:
        raise click.BadParameter(f"{path}, line {number}: {parts[0]} has no time zone: add Z for UTC, or +01:00.")
    return at.timestamp(), float(parts[1])
