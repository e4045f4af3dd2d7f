"""A world: the members and ranks of one generation, and how it is entered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId


class WorldKind(StrEnum):
    """The way a world is entered (rule 4).

    A planned world is entered by the switch alone. A recovery world seals every lower number and begins with a
    comparison of lineages. A rollback world is a recovery whose base is a checkpoint, or the beginning.
    """

    PLANNED = "planned"
    RECOVERY = "recovery"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class World:
    """The members and ranks of one generation, persisted before any member learns of it (rule 4).

    A member's rank is its index in `members`; `weights` and `addresses` are by rank, too. The world may not start below
    the lineage `base`. `rollback_generation` is the last rollback world: a member that was in no world since then holds
    nothing of the history. A world with `hold` is too small to train: its members enter it, commit the steps they
    applied, and wait for a recovery.
    """

    number: int
    kind: WorldKind
    members: tuple[MemberId, ...]
    weights: tuple[int, ...]
    base: Lineage
    hold: bool = False
    why: str = ""
    addresses: tuple[str, ...] = ()  # of members, for one another; empty if unknown
    rollback_generation: int = 0

    def rank_of(self, member: MemberId) -> int | None:
        return self.members.index(member) if member in self.members else None
