"""Events of doubt: members that should have the same bits have not.

They are events like those in `pliant.core.messages`, which counts them among its own. What follows from a doubt is
decided in `pliant.core.judging`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model import Disputed, MemberId


@dataclass(frozen=True, slots=True)
class StatesDiffered:
    """Members of a generation hold different states of one history, after that step.

    `back` says that nobody's state can be trusted: the last one that was agreed on is what to go on from.
    """

    at: float
    generation: int
    step: int
    suspects: tuple[MemberId, ...]
    back: bool
    why: str


@dataclass(frozen=True, slots=True)
class SlotDisputed:
    """Two members got other gradients for one slot; nothing of that step was applied."""

    at: float
    disputed: Disputed
