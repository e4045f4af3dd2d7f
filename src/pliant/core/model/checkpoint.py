"""Values that describe checkpoints to the coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.data.ledger import Lineage


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a checkpoint, with the size and the hash that a reader checks."""

    file: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A manifest: the files that hold one state, under an immutable name (rule 17)."""

    lineage: Lineage
    name: str
    state: int  # hash of the whole state; the files contain it, too
    pieces: tuple[Piece, ...] = ()
    storage_id: str = ""  # identifies the storage it lies in; empty: unknown


@dataclass(frozen=True, slots=True)
class UnfinishedCheckpoint:
    """A checkpoint that members are writing. `pieces` holds the files of each part that is written, by part number."""

    lineage: Lineage
    name: str
    state: int
    count: int
    pieces: tuple[tuple[int, tuple[Piece, ...]], ...] = ()
    failed: bool = False  # a part will never be written
    storage_id: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """Checkpoint intervals of a live job, and the number of checkpoints to keep.

    0 steps or 0 seconds: that interval is off.
    """

    steps: int = 0
    seconds: float = 0.0
    keep: int = 2


NEVER_WHOLE = -1
"""In place of a part number: some part of that checkpoint will never be written."""

NO_POLICY = CheckpointPolicy()
"""Save only at the end, when the protocol needs a checkpoint, and on request."""
