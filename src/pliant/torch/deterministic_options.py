"""How exactly a job is trained: with the same bits whatever the membership does, and with members that are checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from pliant.core.data.grid import Grid
from pliant.core.member.signals import Shares
from pliant.core.model.fingerprint import Fingerprint
from pliant.errors import BadInput
from pliant.torch.determinism import Pinned, bits
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.deterministic import TreeReducer
from pliant.torch.reduce.floating import SummedReducer
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.optimizers import Optimizers
from pliant.train.reduce.metrics import StepMetrics
from pliant.train.reduce.spot_checks import SpotCheck, is_checked, spot_checks

SNAPSHOT_EVERY = 20  # steps, with verify=1: where two members differ, this many are computed again at most


@dataclass(frozen=True, slots=True)
class Exactness:
    """What the user asked for in `job.train`, and what follows from it."""

    seed: int
    deterministic: bool
    other_bits: bool
    verify: int
    verify_slots: float

    def __post_init__(self) -> None:
        if self.verify < 0:
            raise BadInput(
                f"verify says every how many steps members compare their states, 0 for never; not {self.verify}."
            )
        if not 0.0 <= self.verify_slots <= 1.0:
            raise BadInput(
                f"verify_slots is the fraction of slots that is computed twice, from 0 to 1; not {self.verify_slots}."
            )
        if self.verify_slots and not self.deterministic:
            raise BadInput("verify_slots compares gradients to the bit, which needs deterministic=True: pass it, too.")

    @property
    def also(self) -> tuple[tuple[str, str], ...]:
        """What members must have in common."""
        return (("deterministic", str(self.deterministic)), ("verify_slots", f"{self.verify_slots:g}"))

    @property
    def snapshot_every(self) -> int:
        """How often the state is kept on disk, to go back to where members last agreed; 0: never."""
        return SNAPSHOT_EVERY if self.verify == 1 else self.verify

    def pin(self, optimizers: Optimizers, device: torch.device, *, compiled: bool) -> Pinned | None:
        """What must stay as it is while training goes on, if anything must."""
        return Pinned(optimizers.all, device, compiled=compiled) if self.deterministic else None

    def bits(self, device: torch.device) -> Fingerprint:
        """What this member's bits depend on; nothing, if any will do."""
        return bits(device) if self.deterministic and not self.other_bits else ()

    def reducer(
        self, model: nn.Module, buffers: Buffers, logged: StepMetrics, device: torch.device, grid: Grid
    ) -> Reducer:
        if not self.deterministic:
            return SummedReducer(model, buffers, logged, device)
        return TreeReducer(model, buffers, logged, device, grid, self._is_checked)

    def _is_checked(self, step: int, slot: int) -> bool:
        return is_checked(self.seed, self.verify_slots, step, slot)

    def checks(self, step: int, generation: int, shares: Shares) -> Sequence[SpotCheck]:
        """The spot checks of a step in a generation."""
        return spot_checks(self.seed, self.verify_slots, step, generation, shares) if self.verify_slots else ()
