"""Seconds that a member's training thread stood still, by step, as only the member itself can measure.

A pause travels with the report of its step. So it is counted once, with the ledger line that makes the step durable,
however many members report that step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pliant.core.data.ledger import LedgerLine

PAUSES_MAX = 64  # of one report; most steps have none
SECONDS_MAX = 86_400.0
CHECKPOINTING = "checkpointing"
SWITCHING = "switching"
KINDS = frozenset({CHECKPOINTING, SWITCHING})


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds in which the training thread stood still during a step, for a checkpoint or for a switch."""

    step: int
    kind: str
    seconds: float


def accept_pauses(pauses: Iterable[Pause], lines: Iterable[LedgerLine]) -> tuple[Pause, ...]:
    """Return the pauses to record beside the lines that became durable.

    Invalid ones are dropped: they are statistics, and no reason to refuse a report.
    """
    steps = {line.lineage.step for line in lines}
    kept = (each for each in pauses if each.step in steps and each.kind in KINDS and valid_seconds(each.seconds))
    return tuple(kept)[:PAUSES_MAX]


def valid_seconds(seconds: float) -> float:
    """Return the reported time; 0 if it is out of range."""
    return seconds if 0.0 <= seconds <= SECONDS_MAX else 0.0
