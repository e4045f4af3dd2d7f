"""A notice, the watcher that looks for one, and the exception for a look that failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

WHY_MAX = 300


@dataclass(frozen=True, slots=True)
class Notice:
    """This machine is going to be taken away. `grace_s` is None if the time is unknown."""

    grace_s: float | None
    why: str


class Trouble(Exception):
    """The reason why a look failed. The owner of the watcher tries again."""


class Watcher(Protocol):
    """A source of notices. Its owner calls `look` repeatedly, always from one thread."""

    @property
    def name(self) -> str:
        """The name under which the operator selected it."""

    @property
    def pause_s(self) -> float:
        """Seconds between two looks; few if a look itself waits."""

    def look(self, remark: Callable[[str], None]) -> Notice | None:
        """Return the notice, if there is one by now. `remark` gets messages for people that are no notice."""


_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?")


def written_notice(text: str, otherwise: str) -> Notice:
    """Parse an operator's notice: a number on the first line is the seconds left, the rest is the reason."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    grace_s = None
    if lines and _SECONDS.fullmatch(lines[0]):
        grace_s = float(lines.pop(0))
    return Notice(grace_s, "; ".join(lines)[:WHY_MAX] or otherwise)
