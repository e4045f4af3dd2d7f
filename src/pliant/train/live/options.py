"""The options of `job.train` about determinism and verification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.core.member.signals import Shares
from pliant.errors import BadInput
from pliant.train.reduce.spot_checks import SpotCheck, is_checked, spot_checks

SNAPSHOT_EVERY = 20  # steps, with verify=1: the most that are computed again when two members differ


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """The options of `job.train` about determinism and verification, and their consequences."""

    seed: int
    deterministic: bool
    other_bits: bool
    verify: int
    verify_slots: float

    def __post_init__(self) -> None:
        if self.verify < 0:
            raise BadInput(
                f"verify must be 0 (never) or the number of steps between two comparisons of the members' states, "
                f"got {self.verify}."
            )
        if not 0.0 <= self.verify_slots <= 1.0:
            raise BadInput(
                f"verify_slots must be the fraction of slots to compute twice, from 0 to 1, got {self.verify_slots}."
            )
        if self.verify_slots and not self.deterministic:
            raise BadInput("verify_slots compares gradients bit by bit. Pass deterministic=True as well.")

    @property
    def terms(self) -> tuple[tuple[str, str], ...]:
        """The terms that members must share, as name and value."""
        return (("deterministic", str(self.deterministic)), ("verify_slots", f"{self.verify_slots:g}"))

    @property
    def snapshot_every(self) -> int:
        """The steps between two checkpoints to return to when members differ; 0 for none."""
        return SNAPSHOT_EVERY if self.verify == 1 else self.verify

    def is_checked(self, step: int, slot: int) -> bool:
        """Return whether a second member computes a slot of a step."""
        return is_checked(self.seed, self.verify_slots, step, slot)

    def checks(self, step: int, generation: int, shares: Shares) -> Sequence[SpotCheck]:
        """Return the spot checks of a step in a generation."""
        return spot_checks(self.seed, self.verify_slots, step, generation, shares) if self.verify_slots else ()
