"""The optimizers of a run, which only `run.step()` may step, with the global gradient."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pliant.errors import BadInput


class Optimizers:
    """One or several optimizers of one model, with an optional scaler and clipping."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: torch.optim.Optimizer | list[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        clip_norm: float | None,
    ) -> None:
        self.all = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.clip_norm = clip_norm
        self._params = [param for param in model.parameters() if param.requires_grad]
        self._ours = {id(param) for param in model.parameters()}
        self._stepping = False
        self._thread = threading.get_ident()
        self._require_params_of_model()
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        self._hook.remove()

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self) -> None:
        """Unscale the global gradient, so that user code and clipping get its true values."""
        if self._scaler is not None:
            for optimizer in self.all:
                self._scaler.unscale_(optimizer)

    def step(self) -> None:
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._params, self.clip_norm)
        self._stepping = True
        try:
            for optimizer in self.all:
                if self._scaler is None:
                    optimizer.step()
                else:
                    self._scaler.step(optimizer)
        finally:
            self._stepping = False
        if self._scaler is not None:
            self._scaler.update()

    def _require_params_of_model(self) -> None:
        if not self.all:
            raise BadInput("optimizer is an empty list. Pass the optimizers that train the model.")
        for optimizer in self.all:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise BadInput(
                    f"optimizer must be a torch optimizer or a list of them, not {type(optimizer).__name__}."
                )
            for group in optimizer.param_groups:
                if any(id(param) not in self._ours for param in group["params"]):
                    raise BadInput(
                        f"{type(optimizer).__name__} steps a parameter that is not in the model, so its gradient would "
                        "not be reduced. Put all trained parameters into one nn.Module."
                    )

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Refuse a step with this member's gradients alone, after which members would differ."""
        if not self._stepping and threading.get_ident() == self._thread:
            raise BadInput(
                f"{type(optimizer).__name__}.step() was called by hand, with this member's gradients alone. run.step() "
                "steps the optimizers: put all trained parameters into one model, and pass all its optimizers to "
                "job.train(optimizer=[...])."
            )
