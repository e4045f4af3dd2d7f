"""Seconds that a member's training thread stood still, by step: what only the member itself can measure.

They travel with the report of the steps they belong to, so each is heard once: with the line that makes its step
durable, whoever reports it and however often it is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pliant.core.data.ledger import LedgerLine

PAUSES_MAX = 64  # of one report: most steps have none
SECONDS_MAX = 86_400.0
CHECKPOINTING = "checkpointing"
SWITCHING = "switching"
KINDS = frozenset({CHECKPOINTING, SWITCHING})


@dataclass(frozen=True, slots=True)
class Pause:
    """In that step the training thread stood still so long, for a checkpoint or for a switch."""

    step: int
    kind: str
    seconds: float


def accept_pauses(spent: Iterable[Pause], lines: Iterable[LedgerLine]) -> tuple[Pause, ...]:
    """What is written down of that beside the lines that became durable. What makes no sense is left out: it is a
    matter of statistics, and no reason to refuse a report."""
    steps = {line.lineage.step for line in lines}
    kept = (each for each in spent if each.step in steps and each.kind in KINDS and valid_seconds(each.seconds))
    return tuple(kept)[:PAUSES_MAX]


def valid_seconds(seconds: float) -> float:
    """A time that somebody said; 0 if it cannot be one."""
    return seconds if 0.0 <= seconds <= SECONDS_MAX else 0.0
