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
    """Nothing could be learned this time, and why. The watcher is asked again."""


class Watcher(Protocol):
    """A source of notices. Its owner calls `look` repeatedly, always from one thread."""

    @property
    def name(self) -> str:
        """As the operator called it."""

    @property
    def pause_s(self) -> float:
        """Between two looks; short if a look waits by itself."""

    def look(self, remark: Callable[[str], None]) -> Notice | None:
        """A notice if there is one by now. `remark` is for what people should know, though it is none."""


_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?")


def written_notice(text: str, otherwise: str) -> Notice:
    """Parse an operator's notice: a number on the first line is the seconds left, the rest is the reason."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    lines = [line for line in lines if line]
    grace_s = None
    if lines and _SECONDS.fullmatch(lines[0]):
        grace_s = float(lines.pop(0))
    return Notice(grace_s, "; ".join(lines)[:WHY_MAX] or otherwise)
