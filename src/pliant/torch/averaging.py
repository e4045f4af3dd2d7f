"""Synchronous model averaging for PyTorch: each member computes with a model of its own around the common one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from pliant.core.policy.averaging import next_offset
from pliant.errors import BadInput
from pliant.torch.state.optimizers import Optimizers
from pliant.train.live.arguments import is_number
from pliant.train.live.loop import Loop


class ModelAveraging:
    """This member's own model. Call it like the model, and call its `step` in place of `run.step`.

    The model of `job.train` is the centre of all members' models: it is the state that new members receive, that
    checkpoints hold and that `run.evaluate` measures. The own model is the centre plus an offset. A new member starts
    at the centre. `run.average_models` creates it.
    """

    def __init__(
        self,
        loop: Loop,
        model: nn.Module,
        optimizers: Optimizers,
        alpha: float,
        reduce: Callable[[], bool],
        apply: Callable[[], None],
    ) -> None:
        if not (is_number(alpha) and 0.0 < alpha <= 1.0):
            raise BadInput(f"alpha must be a number above 0 and at most 1, got {alpha!r}.")
        if dict(loop.session.machine.terms.extra).get("deterministic") == "True":
            raise BadInput(
                "With run.average_models a gradient depends on the member that computes it, so the bits depend on the "
                "membership. Remove deterministic=True."
            )
        optimizers.require_plain_sgd()
        self._loop = loop
        self._model = model
        self._alpha = float(alpha)
        self._reduce, self._apply = reduce, apply
        self._trained = {name: param for name, param in model.named_parameters() if param.requires_grad}
        groups = [group for optimizer in optimizers.all for group in optimizer.param_groups]
        self._groups = {id(param): group for group in groups for param in group["params"]}
        self._offsets = {name: torch.zeros_like(param) for name, param in self._trained.items()}
        self._own: dict[str, Tensor] = {}  # sums of this member's gradients in the step, by weight
        self._weight = 0.0
        self._step = 0  # the step that they belong to

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute with this member's own model. Gradients arrive at the parameters of the centre."""
        own = {name: param + self._offsets[name] for name, param in self._trained.items()}
        return functional_call(self._model, own, args, kwargs)

    @property
    def distance(self) -> float:
        """The distance of this member's own model from the centre."""
        return math.sqrt(math.fsum(float(offset.square().sum()) for offset in self._offsets.values()))

    def step(self) -> bool:
        """End an item, like `run.step`: apply the mean gradient to the centre, and move the offset."""
        self._keep_own()
        if not self._reduce():
            return False
        with torch.no_grad():
            for name, param in self._trained.items():
                mean = torch.zeros_like(param) if param.grad is None else param.grad
                own = self._own[name] / self._weight if name in self._own else mean
                rate = float(self._groups[id(param)]["lr"]) if id(param) in self._groups else 0.0
                self._offsets[name] = next_offset(self._offsets[name], own, mean, rate=rate, alpha=self._alpha)
        self._own, self._weight = {}, 0.0
        self._apply()
        return True

    def _keep_own(self) -> None:
        """Add the gradients of this item to those of the step. An item without weight adds nothing."""
        if self._loop.step != self._step:
            self._step, self._own, self._weight = self._loop.step, {}, 0.0
        weight = self._loop.item_weight
        if not weight:
            return
        self._weight += weight
        for name, param in self._trained.items():
            if param.grad is not None:
                added = param.grad.detach() * weight
                self._own[name] = self._own[name] + added if name in self._own else added
