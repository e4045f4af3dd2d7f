"""Pair averaging: which partner a member averages with, which models a saved mean may have, and when one is saved.

The effect of a processed shard lives in the model of its member alone until a saved mean has it. So the shard is done
with that save, and begins again with another member if its own is gone before. A mean is of models that were averaged
with the mean before it. So each mean has the effect of all shards that any earlier one had, and new members begin with
the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.core.data.ledger import mix
from pliant.core.model.names import MemberId
from pliant.core.tasks.model import ModelPeers

FIRST_PAUSE_S = 0.2  # between two attempts to save while the saving member has nothing else to do


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """The facts about the copy of a model that its member published.

    `version` counts the copies of the member. `base` is the number of the newest saved mean that the model was averaged
    with. The model has the effect of all records of `attempts`, which its member holds until they are saved.
    """

    version: int
    base: int
    attempts: tuple[int, ...]


def partner_of(peers: ModelPeers, me: MemberId, seed: int, step: int) -> MemberId | None:
    """Return the partner of a member's own step, uniformly among the others; None if it is alone."""
    others = [member for member in peers.members if member != me]
    if not others:
        return None
    place = sum(member < me for member in others)
    return others[mix(mix(mix(seed) ^ mix(place)) ^ step) % len(others)]


def saves(peers: ModelPeers, me: MemberId) -> bool:
    """Return whether this member saves the means. Two that believe so do no harm: one save of a number is accepted."""
    return peers.members[:1] == (me,)


def savable(peers: ModelPeers, copies: Sequence[CopyFacts]) -> tuple[list[int], tuple[int, ...]]:
    """Return which copies the next mean is of, and the attempts that it completes. Without attempts it is not saved."""
    chosen = [at for at, copy in enumerate(copies) if copy.base == peers.saves]
    return chosen, tuple(sorted({attempt for at in chosen for attempt in copies[at].attempts}))


class SavePace:
    """The pace of the member that saves: every `every_s`, and soon while its own training waits for a shard."""

    def __init__(self, every_s: float, now: float) -> None:
        self._every_s = every_s
        self._tried_at, self._pause_s = now, FIRST_PAUSE_S

    def due_in_s(self, now: float, *, waits: bool) -> float:
        """Return how long to wait before the next attempt."""
        return max(self._tried_at + (self._pause_s if waits else self._every_s) - now, 0.0)

    def tried(self, now: float, *, saved: bool) -> None:
        """Note an attempt. After one that found nothing to save, the next one waits longer."""
        self._tried_at = now
        self._pause_s = FIRST_PAUSE_S if saved else min(2 * self._pause_s, self._every_s)
