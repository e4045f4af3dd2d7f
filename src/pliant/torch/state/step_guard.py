"""Launch an optimizer step on a GPU before it is known there whether the gradient is finite.

A CPU that waits for the answer first leaves the GPU idle. Fused optimizers read a number on the GPU, `found_inf`, and
change nothing where it is not zero. So the step is launched at once, and the answer is read at the next boundary, while
the GPU works on the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

GUARDED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)  # not subclasses, whose step may do more
SMALL_NUMEL = 1 << 25  # of a gradient: below this the launches of its norms take the CPU longer than writing it the GPU


def is_asynchronous(device: torch.device) -> bool:
    """Return whether a CPU can launch work on this device and go on."""
    return device.type == "cuda"


class Guardable:
    """The answer whether the next step of an optimizer can be guarded. Ask for it with `bool`."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._filled: tuple[object, int] | None = None  # the optimizer's state that had all momentum, and its length

    def __bool__(self) -> bool:
        """Return whether the optimizer's next step reads `found_inf` and leaves no trace where it is set.

        The first step of SGD with momentum would leave memory without content.
        """
        if type(self._optimizer) not in GUARDED:
            return False
        groups = self._optimizer.param_groups
        if not all(group.get("fused") for group in groups):
            return False
        moving = [group for group in groups if group.get("momentum")]
        return not moving or self._has_momentum([param for group in moving for param in group["params"]])

    def _has_momentum(self, params: Sequence[Tensor]) -> bool:
        state = self._optimizer.state
        if self._filled is not None and self._filled[0] is state and self._filled[1] == len(state) >= len(params):
            return True  # to look at each parameter takes as long as their step
        lacking = [param for param in params if state.get(param, {}).get("momentum_buffer") is None]
        self._filled = None if lacking else (state, len(state))
        return all(param.grad is None for param in lacking)


class StepGuard:
    """The number that lets a step pass, on the GPU and on its way to the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._found = torch.zeros((), device=device)  # 1 if the gradient is not finite
        self._unscaled = torch.ones((), device=device)
        self._copy = torch.zeros((), pin_memory=device.type == "cuda")
        self._copied = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._checked: tuple[int, Sequence[Tensor]] | None = None  # the step, and what was looked at for each gradient

    def check(self, step: int, grads: list[Tensor], *, will_change: bool = False) -> None:
        """Set the guard of the step from its gradients. Returns at once.

        With `will_change` the gradients are changed before the step, so that they do not show later which one failed.
        """
        if self._checked is not None:
            self._found.zero_()
        looked_at: list[Tensor] | tuple[Tensor, ...] = grads
        with torch.no_grad():
            if will_change or sum([grad.numel() for grad in grads]) > SMALL_NUMEL:
                looked_at = torch._foreach_norm(grads, math.inf)
            # torch's own check for GradScaler: one kernel. It multiplies by 1, which leaves every bit as it is.
            torch._amp_foreach_non_finite_check_and_unscale_(looked_at, self._found, self._unscaled)
        self._copy.copy_(self._found, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._checked = step, looked_at

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

    def take_failure(self) -> tuple[int, Sequence[Tensor]] | None:
        """Wait for the check of the last step. If it failed, return the step and a tensor for each gradient.

        A tensor is not finite if its gradient is not.
        """
        checked = self._checked
        if checked is None:
            return None
        if self._copied is not None:
            self._copied.synchronize()
        failed = bool(self._copy.item())
        if failed:
            self._found.zero_()
        self._checked = None
        return checked if failed else None
