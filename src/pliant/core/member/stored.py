"""What a member's machine hears of checkpoints, and what it orders: signals first, then actions.

As in `signals`, which has the rest and is where others find these, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.ledger import Lineage
from pliant.core.model import Checkpoint, MemberId


@dataclass(frozen=True, slots=True)
class Written:
    """This member's part of a checkpoint is complete, and under its name."""

    checkpoint: Checkpoint  # with the pieces of this part alone
    part: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class NotWritten:
    """This member's part of a checkpoint will never be complete. `apart`: others' parts are not where this one is."""

    name: str
    why: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Begin to write this member's part of the state as it is at this boundary. Answer: `NotWritten` if that fails."""

    lineage: Lineage
    name: str
    part: int
    count: int
    waits: bool = False  # for the part that is still being written: nothing is trained meanwhile


@dataclass(frozen=True, slots=True)
class Save:
    """What was begun under that name is wanted: its step is committed. Answer: `Written` or `NotWritten`."""

    name: str


@dataclass(frozen=True, slots=True)
class Tidy:
    """The newest checkpoint is another one: put its manifest beside its files, and remove what nobody can need."""

    newest: Checkpoint
    members: tuple[MemberId, ...]  # of the world that it was published in
    kept: tuple[str, ...]
    origin: int  # as `saving.is_garbage` wants them
    floor: int
    generation: int


@dataclass(frozen=True, slots=True)
class Discard:
    """That checkpoint will never be whole: write no more of it, and remove what is there."""

    name: str
