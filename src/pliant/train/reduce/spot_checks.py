"""Spot checks: some slots of a step are computed by a second member, and both must have got the same gradient.

Which slots, and by whom, follows from the seed, the step and the shares, so that every member knows it without a word.
The second member moves on with the generation: after a dispute and the recovery that follows, others check the same
member, and whoever is in dispute with two of them is the one that is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pliant.core.data.ledger import mix
from pliant.core.member.signals import Shares


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """A slot that its owner and another rank compute."""

    slot: int
    owner: int
    second: int


@lru_cache(maxsize=256)
def spot_checks(seed: int, fraction: float, step: int, generation: int, shares: Shares) -> tuple[SpotCheck, ...]:
    """The checks of a step, by slot: about this fraction of its slots. None where there is nobody to check."""
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
    """Whether a slot is drawn, whoever owns it: one that was computed before a recovery stays drawn after it."""
    return mix(mix(mix(seed & (1 << 64) - 1) ^ step) ^ slot) < fraction * 2**64


def _second(ranks: Sequence[int], at: int, generation: int) -> int:
    return ranks[(at + 1 + generation % (len(ranks) - 1)) % len(ranks)]
