"""Control words: the integers each rank sends in every collective, and the decisions that follow from them.

One set of exact integers per rank is reduced together with the gradients, so all members of a world read identical
words (rule 6). Every decision here is a pure function of those words and of nothing else (rule 8). That makes all
members act at the same boundary without a vote.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from pliant.core.data.grid import Changes, Grid
from pliant.core.data.ledger import Lineage

_MASK = (1 << 64) - 1

CALM, LEAVING, OUT_OF_TIME = 0, 1, 2  # the urgency of a drain
GOING_ON, LEFT_LOOP, FINISH = 0, 1, 2  # whether user code goes on, left its loop, or asked to finish the job


class Purpose(StrEnum):
    """The purpose of a collective: compare lineages, reduce a step, or close a run or a world."""

    HELLO = "hello"
    STEP = "step"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Word:
    """One rank's control word.

    `lineage` is the state it enters with. `wired` is the highest generation it wired above this one, and `wired_needed`
    the number of members of this world that must have wired it. `wants_checkpoint` asks for a checkpoint, and
    `can_save` tells whether this rank can write a part. `slots`, `samples`, `slot_checksum` and `digest` are counted
    where a slot's gradient is added to the buffer. Only the comparison uses `kept` and `changes`, the batches of its
    history. `ending` is set by a rank whose user code computes nothing more, and `next_batch` by one whose user code
    wants another batch after this step.
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
    ending: int = GOING_ON
    slots: int = 0
    samples: int = 0
    slot_checksum: int = 0
    digest: int = 0
    kept: frozenset[int] = frozenset()
    next_batch: int = 0
    changes: Changes = ()


Words = tuple[Word, ...]  # by rank


@lru_cache(maxsize=65536)
def slot_checksum(slot: int) -> int:
    """Return a 64-bit checksum of a slot. In a sum of checksums, a slot counted twice or left out shows."""
    z = (slot + 1) * 0x9E3779B97F4A7C15 & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def step_checksum(grid: Grid, step: int) -> int:
    """Return the sum of the checksums of all slots of a step."""
    return _checksum_of_first(len(grid.filled(step)))


@lru_cache(maxsize=1024)
def _checksum_of_first(slots: int) -> int:
    return sum(map(slot_checksum, range(slots))) & _MASK


@lru_cache(maxsize=256)
def slots_checksum(slots: frozenset[int]) -> int:
    """Return the sum of the checksums of these slots.

    Pass the same set object again if possible: it caches its hash.
    """
    return sum(map(slot_checksum, slots)) & _MASK


def holders(words: Words) -> frozenset[int]:
    """Return the ranks that hold the state."""
    return frozenset(rank for rank, word in enumerate(words) if word.holds)


def ranks_that_cannot_save(words: Words) -> frozenset[int]:
    """Return the ranks without checkpoint storage."""
    return frozenset(rank for rank, word in enumerate(words) if not word.can_save)


def disagreement(words: Words, generation: int, purpose: Purpose, grid: Grid) -> str:
    """Return the reason why nothing may be applied after this collective; empty if there is none (rule 6).

    Words are compared one by one. Sums would not do: steps 5, 6 and 7 add up to three times 6.
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
        # A hello compares histories. All holders of the winning history must still hold the same state.
        if not word.holds or (hello and word.lineage != best):
            continue
        if first is None:
            first = word
        elif (word.step, word.lineage) != (first.step, first.lineage):
            return f"rank {rank} is at step {word.step} of another history than the ranks before it"
        elif word.state != first.state:
            return f"rank {rank} holds another state than the ranks before it"
    if purpose is not Purpose.STEP or is_ending(words):
        return ""
    if first is None:
        return "no member holds the state"
    return _wrong_total(words, first.step, grid)


def agreed_batch(words: Words) -> int:
    """Return the batch that most holders want after this step, the first of them if it is a tie; 0 for no change."""
    if not any(word.next_batch for word in words if word.holds):
        return 0
    return Counter(word.next_batch for word in words if word.holds).most_common(1)[0][0]


def ranks_with_another_batch(words: Words) -> frozenset[int]:
    """Return the holders whose user code wants another batch than most: it did not decide from reduced values."""
    batch = agreed_batch(words)
    return frozenset([rank for rank, word in enumerate(words) if word.holds and word.next_batch != batch])


def diverged(words: Words) -> bool:
    """Return whether members with the winning history hold different states: user code or a machine misbehaved."""
    return len(set(_states_of_winner(words).values())) > 1


def minority(words: Words) -> frozenset[int]:
    """Return the ranks whose state differs from the one that more than half of the winning history's holders have.

    Without such a majority the result is empty: of two states either one may be the right one.
    """
    states = _states_of_winner(words)
    [(most, count)] = Counter(states.values()).most_common(1) or [(0, 0)]
    if 2 * count <= len(states):
        return frozenset()
    return frozenset(rank for rank, state in states.items() if state != most)


def _states_of_winner(words: Words) -> dict[int, int]:
    """Return the state hashes of the holders of the winning history, by rank."""
    best = winner(words)
    return {rank: word.state for rank, word in enumerate(words) if word.holds and word.lineage == best}


def _wrong_total(words: Words, step: int, grid: Grid) -> str:
    samples = sum(word.samples for word in words)
    if samples != grid.size(step):
        return f"{samples} samples were counted in step {step}, which has {grid.size(step)}"
    slots = sum(word.slots for word in words)
    checksum = sum(word.slot_checksum for word in words) & _MASK
    if slots != len(grid.filled(step)) or checksum != step_checksum(grid, step):
        return f"a slot of step {step} was counted twice or left out"
    return ""


def generation_to_enter(words: Words) -> int:
    """Return the generation to enter at this boundary, 0 to stay (rule 8).

    It is the highest generation that all members of both worlds have wired, at least one of them a holder. Each word
    carries the number of members needed, so a member that never saw that generation can tell, too, that this one is
    over.
    """
    by_generation: dict[int, list[Word]] = {}
    for word in words:
        if word.wired > word.generation:
            by_generation.setdefault(word.wired, []).append(word)
    for number in sorted(by_generation, reverse=True):
        agreeing = by_generation[number]
        if len(agreeing) >= agreeing[0].wired_needed and any(word.holds for word in agreeing):
            return number
    return 0


def all_out_of_time(words: Words) -> bool:
    """Return whether every holder must leave now; then the world closes and leaves a checkpoint behind (rule 16)."""
    holding = [word for word in words if word.holds]
    return bool(holding) and all(word.drain_urgency >= OUT_OF_TIME for word in holding)


def is_ending(words: Words) -> bool:
    """Return whether user code of a holder computes nothing more. Then the step in progress is not applied."""
    return any(word.ending for word in words if word.holds)


def ends_job(words: Words) -> bool:
    """Return whether the job ends with the last applied step: one holder finishes it, or all left their loops."""
    endings = [word.ending for word in words if word.holds]
    return FINISH in endings or (bool(endings) and all(endings))


def winner(words: Words) -> Lineage | None:
    """Return the most advanced lineage among the holders, by generation and then step (rules 2, 12)."""
    best: Lineage | None = None
    for word in words:
        if word.holds and (best is None or word.lineage.newer_than(best)):
            best = word.lineage
    return best


def agreed(words: Words) -> Lineage | None:
    """Return the lineage that all holders entered with, which this collective commits (rule 1); None if they differ."""
    entered = {word.lineage for word in words if word.holds}
    return entered.pop() if len(entered) == 1 else None
