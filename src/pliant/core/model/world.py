"""A world: the members and ranks of one generation, and how it is entered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pliant.core.data.ledger import Lineage
from pliant.core.model.names import MemberId


class WorldKind(StrEnum):
    """How a world is entered (rule 4).

    A planned world is entered by the switch alone. A recovery world seals every lower number and begins with a
    comparison of lineages. A rollback world is a recovery whose base is a checkpoint (or the very beginning).
    """

    PLANNED = "planned"
    RECOVERY = "recovery"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class World:
    """The members and ranks of one generation, as persisted before anybody is told (rule 4).

    A member's rank is its index in `members`; `weights` and `addresses` are by rank, too. `base` is the lineage below
    which the world may not start; `floor` is the last rollback world, and who was in none since then holds nothing of
    the history. A world that holds is too small to train: its members enter it, commit what they applied, and wait
    for a recovery.
    """

    number: int
    kind: WorldKind
    members: tuple[MemberId, ...]
    weights: tuple[int, ...]
    base: Lineage
    hold: bool = False
    why: str = ""
    addresses: tuple[str, ...] = ()  # where members reach one another; none in worlds of before there were addresses
    rollback_generation: int = 0

    def rank_of(self, member: MemberId) -> int | None:
        return self.members.index(member) if member in self.members else None
