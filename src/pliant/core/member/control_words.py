"""Control words: what each rank says in every collective, and what follows from hearing everybody.

One set of exact integers per rank, reduced together with the gradients, so all members of a world read identical
words (rule 6). Every decision here is a pure function of those words and of nothing a member knows besides (rule 8):
that is what makes all of them act at the same boundary without a vote.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import Lineage

_MASK = (1 << 64) - 1

CALM, LEAVING, OUT_OF_TIME = 0, 1, 2  # how urgently a member drains


class Purpose(StrEnum):
    """What a collective is for: comparing lineages, reducing a step, or closing a run or a world."""

    HELLO = "hello"
    STEP = "step"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Word:
    """One rank's control word.

    `lineage` is the state it enters with; `wired` the highest generation it wired above this one, and `wired_needed`
    how many members of this world must say so; `wants_checkpoint` says that a checkpoint is wanted, `can_save` that it
    could write a part of one; `slots`, `samples`, `slot_checksum` and `digest` are counted where a slot's gradient is
    added to the buffer. `kept` is used by the comparison alone.
    """

    purpose: Purpose
    generation: int
    step: int
    lineage: Lineage
    holds: bool
    state: int = 0
    wired: int = 0
    wired_needed: int = 0
    drain_urgency: int = CALM
    failed: bool = False
    wants_checkpoint: bool = False
    can_save: bool = True
    slots: int = 0
    samples: int = 0
    slot_checksum: int = 0
    digest: int = 0
    kept: frozenset[int] = frozenset()


Words = tuple[Word, ...]  # by rank


@lru_cache(maxsize=65536)
def slot_checksum(slot: int) -> int:
    """A 64-bit mark of a slot. Marks are added up, so a slot counted twice or left out shows in the total."""
    z = (slot + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def step_checksum(grid: Grid, step: int) -> int:
    """What the marks of a whole step add up to."""
    return _checksum_of_first(len(grid.filled(step)))


@lru_cache(maxsize=1024)
def _checksum_of_first(slots: int) -> int:
    return sum(map(slot_checksum, range(slots))) & _MASK


@lru_cache(maxsize=256)
def slots_checksum(slots: frozenset[int]) -> int:
    """What the marks of these slots add up to. Pass the same set again where you can: its hash is kept in it."""
    return sum(map(slot_checksum, slots)) & _MASK


def holders(words: Words) -> frozenset[int]:
    """The ranks that hold the state."""
    return frozenset(rank for rank, word in enumerate(words) if word.holds)


def ranks_that_cannot_save(words: Words) -> frozenset[int]:
    """The ranks that have no place to write checkpoints to."""
    return frozenset(rank for rank, word in enumerate(words) if not word.can_save)


def disagreement(words: Words, generation: int, purpose: Purpose, grid: Grid) -> str:
    """Why nothing may be applied after this collective; empty when all is well (rule 6).

    Equality is checked word by word: sums would not do, since steps 5, 6 and 7 add up to three times 6.
    """
    hello = purpose is Purpose.HELLO
    best = winner(words) if hello else None
    first: Word | None = None
    for rank, word in enumerate(words):
        if (word.generation, word.purpose) != (generation, purpose):
            return (
                f"rank {rank} is in a {word.purpose.value} of {word.generation}, not a {purpose.value} of {generation}"
            )
        if word.failed:
            return f"rank {rank} failed"
        # Comparing histories is what a hello is for; but all who hold the one that wins must hold the same state.
        if not word.holds or (hello and word.lineage != best):
            continue
        if first is None:
            first = word
        elif (word.step, word.lineage) != (first.step, first.lineage):
            return f"rank {rank} is at step {word.step} of another history than the ranks before it"
        elif word.state != first.state:
            return f"rank {rank} holds another state than the ranks before it"
    if purpose is not Purpose.STEP:
        return ""
    if first is None:
        return "nobody holds the state"
    return _wrong_total(words, first.step, grid)


def diverged(words: Words) -> bool:
    """Whether members with the history that wins hold different states: user code or a machine did something else."""
    return len(set(_states_of_winner(words).values())) > 1


def minority(words: Words) -> frozenset[int]:
    """The ranks whose state is not the one that more than half of those with the winning history hold.

    Nobody, where there is no such majority: of two states nothing says which is the right one.
    """
    states = _states_of_winner(words)
    [(most, count)] = Counter(states.values()).most_common(1) or [(0, 0)]
    if 2 * count <= len(states):
        return frozenset()
    return frozenset(rank for rank, state in states.items() if state != most)


def _states_of_winner(words: Words) -> dict[int, int]:
    """The states of those who hold the history that wins, by rank."""
    best = winner(words)
    return {rank: word.state for rank, word in enumerate(words) if word.holds and word.lineage == best}


def _wrong_total(words: Words, step: int, grid: Grid) -> str:
    samples = sum(word.samples for word in words)
    if samples != grid.size(step):
        return f"{samples} samples were counted in step {step}, which has {grid.size(step)}"
    slots = sum(word.slots for word in words)
    marks = sum(word.slot_checksum for word in words) & _MASK
    if slots != len(grid.filled(step)) or marks != step_checksum(grid, step):
        return f"a slot of step {step} was counted twice or left out"
    return ""


def generation_to_enter(words: Words) -> int:
    """The generation to enter at this boundary, 0 to stay (rule 8).

    The highest x that every member of both worlds says, one of them holding the state. How many must say it comes with
    the words, so a member that never heard of x can tell as well that this generation is over.
    """
    said: dict[int, list[Word]] = {}
    for word in words:
        if word.wired > word.generation:
            said.setdefault(word.wired, []).append(word)
    for number in sorted(said, reverse=True):
        voices = said[number]
        if len(voices) >= voices[0].wired_needed and any(word.holds for word in voices):
            return number
    return 0


def all_out_of_time(words: Words) -> bool:
    """Whether every holder must go now: then the world closes and leaves a checkpoint behind (rule 16)."""
    holding = [word for word in words if word.holds]
    return bool(holding) and all(word.drain_urgency >= OUT_OF_TIME for word in holding)


def winner(words: Words) -> Lineage | None:
    """The most advanced lineage among the holders, by generation and then step (rules 2, 12)."""
    best: Lineage | None = None
    for word in words:
        if word.holds and (best is None or word.lineage.newer_than(best)):
            best = word.lineage
    return best


def agreed(words: Words) -> Lineage | None:
    """The lineage all holders entered with, which this collective therefore commits (rule 1); None: they differ."""
    entered = {word.lineage for word in words if word.holds}
    return entered.pop() if len(entered) == 1 else None
