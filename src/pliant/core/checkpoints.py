"""What is said of checkpoints, and what happens to them.

Commands first, then events, as in `messages`, which has the rest and is where others find these, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.model import Checkpoint, MemberId


@dataclass(frozen=True, slots=True)
class Publish:
    """A member's part of a checkpoint is written. With the last part its manifest becomes the newest (rule 17)."""

    member: MemberId
    generation: int
    checkpoint: Checkpoint  # with the pieces of this part alone
    part: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class NotWritten:
    """A member's part of a checkpoint will never come: its disk is full, say.

    `apart`: all parts were written, and they are not all in that member's place. It looks like another one's.
    """

    member: MemberId
    generation: int
    name: str
    why: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The member that was to bring the newest checkpoint back cannot: it is damaged, or out of its reach."""

    member: MemberId
    generation: int
    name: str
    why: str
    damaged: bool


@dataclass(frozen=True, slots=True)
class AskCheckpoint:
    """A checkpoint is wanted, by a person or because it is time."""

    why: str


@dataclass(frozen=True, slots=True)
class CheckpointPublished:
    at: float
    generation: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class PartWritten:
    """One member's part of a checkpoint is there, and others are not yet."""

    at: float
    generation: int
    member: MemberId
    checkpoint: Checkpoint
    part: int
    count: int


@dataclass(frozen=True, slots=True)
class CheckpointAsked:
    at: float
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """`apart`: because members have no common place. From then on one of them writes all of it."""

    at: float
    generation: int
    name: str
    member: MemberId
    why: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointUnreadable:
    """If it is damaged, nobody goes back to it; if that member cannot reach it, another one may."""

    at: float
    generation: int
    name: str
    member: MemberId
    why: str
    damaged: bool
