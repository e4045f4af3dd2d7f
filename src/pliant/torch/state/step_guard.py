"""Launch an optimizer step on a GPU before it is known there whether the gradient is finite.

A CPU that waits for the answer first leaves the GPU idle. Fused optimizers read a number on the GPU, `found_inf`, and
change nothing where it is not zero. So the step is launched at once, and the answer is read at the next boundary, while
the GPU works on the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

GUARDED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # not subclasses, whose step may do more


def is_asynchronous(device: torch.device) -> bool:
    """Return whether a CPU can launch work on this device and go on."""
    return device.type == "cuda"


def can_guard(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer's next step reads `found_inf` and leaves no trace where it is set.

    The first step of SGD with momentum would leave memory without content.
    """
    if type(optimizer) not in GUARDED:
        return False
    return all(group.get("fused") and _has_momentum(optimizer, group) for group in optimizer.param_groups)


def _has_momentum(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    if not group.get("momentum"):
        return True
    stepped = (param for param in group["params"] if param.grad is not None)
    return all(optimizer.state[param].get("momentum_buffer") is not None for param in stepped)


class StepGuard:
    """The number that lets a step pass, on the GPU and on its way to the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._found = torch.zeros((), device=device)  # 1 if the gradient is not finite
        self._unscaled = torch.ones((), device=device)
        self._copy = torch.zeros((), pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._checked: tuple[int, Tensor] | None = None  # the step, and the largest number of each gradient

    def check(self, step: int, largest: Tensor) -> None:
        """Set the guard of the step, from the largest absolute value of each gradient. Returns at once."""
        self._found.zero_()
        # torch's own check for GradScaler: one kernel.
        torch._amp_foreach_non_finite_check_and_unscale_([largest], self._found, self._unscaled)
        self._copy.copy_(self._found, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._checked = step, largest

    @contextmanager
    def over(self, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[None]:
        """Guard the steps of these optimizers within the block, if a step was checked."""
        guarded: Sequence[Any] = optimizers if self._checked is not None else ()
        for optimizer in guarded:
            optimizer.grad_scale, optimizer.found_inf = None, self._found
        try:
            yield
        finally:
            for optimizer in guarded:
                del optimizer.grad_scale, optimizer.found_inf

    def take_failure(self) -> tuple[int, Tensor] | None:
        """Wait for the check of the last step. Return what `check` was called with if the gradient was not finite."""
        checked, self._checked = self._checked, None
        if checked is None:
            return None
        if self._copied is not None:
            self._copied.synchronize()
        return checked if self._copy.item() else None
