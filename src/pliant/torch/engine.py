"""PyTorch's part in a member's life: the engine of the training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pliant.torch.data.seeds import seed_all
from pliant.torch.reduce.base import Reducer
from pliant.torch.reduce.buckets import ReducedGradient
from pliant.torch.state.buffers import Buffers
from pliant.torch.state.optimizers import Optimizers
from pliant.torch.state.training_state import TrainingState, gradient_from, gradient_state, moving_buffers
from pliant.train.state.flat import State
from pliant.train.state.transfer import ReceivedState


@dataclass(frozen=True, slots=True)
class TorchEngine:
    """A model and its optimizers. `step_optimizers` steps them, after the checks of deterministic training."""

    state: TrainingState
    reducer: Reducer
    step_optimizers: Callable[[], None]
    optimizers: Optimizers
    device: torch.device

    @property
    def buffers(self) -> Buffers:
        return self.state.buffers

    def seed(self, key: int) -> None:
        seed_all(key)

    def can_step(self, step: int) -> bool:
        if self.reducer.is_surely_finite:
            return True
        # Buffers change with the step, and no kernel reads a guard for them.
        return self.optimizers.can_step(step, may_wait=not self.buffers.numel)

    def settle(self) -> None:
        self.optimizers.settle()

    def part_square(self) -> float:
        return self.reducer.gradient_square() / self.optimizers.loss_scale**2

    def whole_square(self, _reduced: ReducedGradient) -> float:
        return self.part_square()

    def apply(self, reduced: ReducedGradient, *, skip: bool) -> None:
        self.buffers.apply(reduced.buffers, reduced.weight, skip=skip)
        if not skip:
            self.step_optimizers()

    def follow(self, received: ReceivedState) -> None:
        self.buffers.learn(moving_buffers(received))

    def gradient_state(self, reduced: ReducedGradient) -> State:
        return gradient_state(reduced)

    def gradient_from(self, received: ReceivedState) -> ReducedGradient:
        return gradient_from(received, self.device)
