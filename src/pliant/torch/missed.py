"""A step that this member has yet to make its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pliant.core.data.ledger import LedgerLine
from pliant.core.member import signals as s
from pliant.torch.reduce.buckets import Reduced


@dataclass(frozen=True, slots=True)
class Missed:
    """A step that others reduced and this member has yet to apply, in a body of the user's loop of its own."""

    line: LedgerLine
    reduced: Reduced
    then: Callable[[int], s.Signal]  # what the machine waits for at the boundary after it
