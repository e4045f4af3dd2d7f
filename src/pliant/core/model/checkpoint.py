"""What a checkpoint is to the coordinator: values only, part of `model`, where others find these, too."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.data.ledger import Lineage


@dataclass(frozen=True, slots=True)
class Piece:
    """One file of a checkpoint, under its name: whoever reads it knows whether it is whole."""

    file: str
    nbytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A manifest: which state lies under which immutable name (rule 17), and in which files."""

    lineage: Lineage
    name: str
    state: int  # hash of the whole state, to be found again in the file
    pieces: tuple[Piece, ...] = ()
    storage_id: str = ""  # what tells the place it lies in from others; empty: nobody knows


@dataclass(frozen=True, slots=True)
class UnfinishedCheckpoint:
    """A checkpoint that members are writing, each its part of it, and the pieces that are there already, by part."""

    lineage: Lineage
    name: str
    state: int
    count: int
    pieces: tuple[tuple[int, tuple[Piece, ...]], ...] = ()
    failed: bool = False  # somebody's part will never come
    storage_id: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a live job's state is saved: every so many steps, every so many seconds (0: not by that), and how many
    checkpoints are kept."""

    steps: int = 0
    seconds: float = 0.0
    keep: int = 2


NEVER_WHOLE = -1
"""In place of a part: of that checkpoint some part will never come."""

NO_POLICY = CheckpointPolicy()
"""Only when the protocol itself needs one, at the end, and when somebody asks."""
