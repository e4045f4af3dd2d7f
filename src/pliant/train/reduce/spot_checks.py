"""Spot checks: a second member computes some slots of a step, and both gradients must be equal.

The slots and the second member follow from the seed, the step and the shares, so every member derives them without a
message. The second member changes with the generation. After a dispute and the recovery that follows, other members
check the same one, and a member in dispute with two others is the wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pliant.core.data.ledger import mix
from pliant.core.member.signals import Shares


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """A slot that its owner and a second rank compute."""

    slot: int
    owner: int
    second: int


@lru_cache(maxsize=256)
def spot_checks(seed: int, fraction: float, step: int, generation: int, shares: Shares) -> tuple[SpotCheck, ...]:
    """Return the checks of a step, by slot: about this fraction of its slots. Empty if fewer than two ranks compute."""
    ranks = [rank for rank, share in enumerate(shares) if share]
    if not fraction or len(ranks) < 2:
        return ()
    found = [
        SpotCheck(slot, rank, _second(ranks, at, generation))
        for at, rank in enumerate(ranks)
        for slot in shares[rank]
        if is_checked(seed, fraction, step, slot)
    ]
    return tuple(sorted(found, key=lambda check: check.slot))


def is_checked(seed: int, fraction: float, step: int, slot: int) -> bool:
    """Return whether a slot is selected. Its owner does not matter, so a slot stays selected across a recovery."""
    return mix(mix(mix(seed & (1 << 64) - 1) ^ step) ^ slot) < fraction * 2**64


def _second(ranks: Sequence[int], at: int, generation: int) -> int:
    return ranks[(at + 1 + generation % (len(ranks) - 1)) % len(ranks)]
