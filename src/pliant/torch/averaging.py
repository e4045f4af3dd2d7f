"""Synchronous model averaging for PyTorch: each member computes with a model of its own around the common one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pliant.torch.state.optimizers import Optimizers
from pliant.train.live.loop import Loop
from pliant.train.reduce.own_model import OwnModel


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
        trained: Mapping[str, nn.Parameter],
        optimizers: Optimizers,
        own: OwnModel,
        reduce: Callable[[], bool],
        apply: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._model = model
        self._trained = trained
        self._own = own
        self._reduce, self._apply = reduce, apply
        groups = [group for optimizer in optimizers.all for group in optimizer.param_groups]
        self._groups = {id(param): group for group in groups for param in group["params"]}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute with this member's own model. Gradients arrive at the parameters of the centre."""
        own = dict(zip(self._trained, self._own.place(list(self._trained.values())), strict=True))
        return functional_call(self._model, own, args, kwargs)

    @property
    def distance(self) -> float:
        """The distance of this member's own model from the centre."""
        return self._own.distance

    def step(self) -> bool:
        """End an item, like `run.step`: apply the mean gradient to the centre, and move the own model."""
        grads = [None if param.grad is None else param.grad.detach() for param in self._trained.values()]
        self._own.keep(grads, self._loop.item_weight, first=self._loop.begins_step)
        if not self._reduce():
            return False
        with torch.no_grad():
            means = [param.grad for param in self._trained.values()]
            if all(mean is None or bool(torch.isfinite(mean).all()) for mean in means):
                self._own.move(means, [self._rate(param) for param in self._trained.values()])
        self._apply()
        return True

    def _rate(self, param: nn.Parameter) -> float:
        return float(self._groups[id(param)]["lr"]) if id(param) in self._groups else 0.0
