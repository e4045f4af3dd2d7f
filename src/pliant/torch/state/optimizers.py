"""The optimizers of a run, which only `run.step()` may step, with the global gradient."""

from __future__ import annotations

import inspect
import logging
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pliant.errors import BadInput
from pliant.torch.state import step_guard
from pliant.torch.state.step_guard import Guardable, StepGuard
from pliant.train.live.arguments import IGNORE, RAISE
from pliant.train.live.errors import NonFiniteGradient

log = logging.getLogger(__name__)


class Optimizers:
    """One or several optimizers of one model, with an optional scaler and clipping.

    A list is stepped together. The optimizers of a mapping take turns: each batch has a step for each of them.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: torch.optim.Optimizer | list[torch.optim.Optimizer] | Mapping[str, torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None,
        clip_norm: float | None,
        nonfinite: str = RAISE,
    ) -> None:
        self.turns: tuple[str, ...] = ()  # the names of optimizers that take turns
        if isinstance(optimizers, Mapping):
            self.turns, optimizers = tuple(map(str, optimizers)), list(optimizers.values())
        self.all = list(optimizers) if isinstance(optimizers, list | tuple) else [optimizers]
        self._stepped = self.all  # in the current step
        self._guardable = {id(optimizer): Guardable(optimizer) for optimizer in self.all}
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self.clip_norm = clip_norm
        self.nonfinite = nonfinite
        self._names = {id(param): name for name, param in model.named_parameters()}
        self._params = [param for param in model.parameters() if param.requires_grad]
        self._ours = {id(param) for param in model.parameters()}
        self._stepping = False
        self._guard: StepGuard | None = None  # created with the first step that it guards
        self._checked: Sequence[Tensor] = ()  # the parameters whose gradients the guard of this step checks
        self._in_inner_loop = False
        self._warned_of_other = False  # of a step of an optimizer without parameters of the model
        self._thread = threading.get_ident()
        self._require_params_of_model()
        self._with_closure = {id(optimizer) for optimizer in self.all if _needs_closure(optimizer)}
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    @property
    def names(self) -> str:
        """The classes of the optimizers, with the names of their turns."""
        classes = [type(optimizer).__name__ for optimizer in self.all]
        if self.turns:
            classes = [f"{turn}: {kind}" for turn, kind in zip(self.turns, classes, strict=True)]
        return ", ".join(classes)

    def begin_turn(self, turn: int) -> None:
        """Begin a step in which only the optimizer of this turn is stepped, if they take turns."""
        if self.turns:
            self._stepped = [self.all[turn]]
            groups = self._stepped[0].param_groups
            self._params = [param for group in groups for param in group["params"] if param.requires_grad]

    @contextmanager
    def inner_loop(self) -> Iterator[None]:
        """Do not warn of steps of optimizers that hold none of the model's parameters."""
        self._in_inner_loop = True
        try:
            yield
        finally:
            self._in_inner_loop = False

    def require_plain_sgd(self) -> None:
        """Raise BadInput unless a step subtracts the gradient times the rate, for model averaging."""
        for name, given in (("clip_norm", self.clip_norm), ("scaler", self._scaler), ("turns", self.turns or None)):
            if given is not None:
                raise BadInput(f"run.average_models cannot be combined with {name} in job.train. Remove one of them.")
        for optimizer in self.all:
            kinds = [group.get("momentum", 0.0) or group.get("weight_decay", 0.0) for group in optimizer.param_groups]
            if not isinstance(optimizer, torch.optim.SGD) or any(kinds):
                raise BadInput(
                    f"run.average_models needs SGD without momentum and weight decay, got {optimizer}. "
                    "Pass torch.optim.SGD(parameters, lr=...)."
                )

    def close(self) -> None:
        self._hook.remove()

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)

    @property
    def loss_scale(self) -> float:
        """The factor by which `scaled` multiplies the loss."""
        return 1.0 if self._scaler is None else self._scaler.get_scale()

    def unscale(self) -> None:
        """Unscale the global gradient, so that user code and clipping get its true values."""
        if self._scaler is not None:
            for optimizer in self._stepped:
                self._scaler.unscale_(optimizer)

    def can_step(self, step: int, *, may_wait: bool = False) -> bool:
        """Return whether to apply the global gradient, which is the same on every member.

        Raises NonFiniteGradient if it is not finite and the policy is to raise. A scaler skips such steps itself. With
        `may_wait` the answer may be True before it is known: then the step changes nothing if the gradient is not
        finite, and `settle` gives the answer.
        """
        if self.nonfinite == IGNORE or self._scaler is not None:
            return True
        params, grads = self._params, [grad for param in self._params if (grad := param.grad) is not None]
        if not grads:
            return True
        if len(grads) < len(params):
            params = [param for param in params if param.grad is not None]
        if may_wait and step_guard.is_asynchronous(grads[0].device) and self._can_guard():
            self._guard = self._guard or StepGuard(grads[0].device)
            self._guard.check(step, grads, will_change=self.clip_norm is not None)
            self._checked = params
            return True
        # A finite norm shows that all numbers are finite, and is fast. Squares may overflow: then look closer.
        if math.isfinite(_norms(grads, 2.0).sum().item()):
            return True
        largest = _norms(grads, math.inf)
        return math.isfinite(largest.max().item()) or self._refuse(step, params, largest)

    def _can_guard(self) -> bool:
        return all(self._guardable[id(optimizer)] for optimizer in self._stepped)

    def settle(self) -> None:
        """Wait until it is known whether the last step was applied. Raises NonFiniteGradient like `can_step`."""
        failed = self._guard.take_failure() if self._guard is not None else None
        checked, self._checked = self._checked, ()
        if failed is not None:
            self._refuse(failed[0], checked, _norms(failed[1], math.inf))

    def _refuse(self, step: int, params: Sequence[Tensor], largest: Tensor) -> bool:
        first = self._names[id(params[largest.isfinite().tolist().index(False)])]
        if self.nonfinite == RAISE:
            raise NonFiniteGradient(step, first)
        log.warning("step %d was skipped: its gradient is not finite (first in %s)", step, first)
        return False

    def step(self) -> None:
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self._params, self.clip_norm)
        self._stepping = True
        try:
            if self._checked and self._guard is not None:
                with self._guard.over(self._stepped):
                    self._step_all()
            else:
                self._step_all()
        finally:
            self._stepping = False
        if self._scaler is not None:
            self._scaler.update()

    def _step_all(self) -> None:
        for optimizer in self._stepped:
            if id(optimizer) in self._with_closure:
                optimizer.step(_no_loss)
            elif self._scaler is None:
                optimizer.step()
            else:
                self._scaler.step(optimizer)

    def _require_params_of_model(self) -> None:
        if not self.all:
            raise BadInput("optimizer is empty. Pass the optimizers that train the model.")
        for optimizer in self.all:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise BadInput(
                    f"optimizer must be a torch optimizer or a list of them, not {type(optimizer).__name__}."
                )
            if _needs_closure(optimizer):
                self._require_one_evaluation(optimizer)
            for group in optimizer.param_groups:
                if any(id(param) not in self._ours for param in group["params"]):
                    raise BadInput(
                        f"{type(optimizer).__name__} steps a parameter that is not in the model, so its gradient would "
                        "not be reduced. Put all trained parameters into one nn.Module."
                    )

    def _require_one_evaluation(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that computes the loss again within a step: a step has one gradient of all members."""
        name = type(optimizer).__name__
        if not isinstance(optimizer, torch.optim.LBFGS):
            raise BadInput(
                f"{name} needs a closure that computes the loss several times in one step. "
                "Pliant reduces one gradient in each step: use an optimizer without a closure, such as AdamW."
            )
        group = optimizer.param_groups[0]
        times, search = group["max_iter"], group["line_search_fn"]
        if times != 1 or search is not None:
            raise BadInput(
                f"{name} with max_iter={times} and line_search_fn={search!r} computes the loss several times in one "
                "step, and Pliant reduces one gradient in each step. Pass max_iter=1 and no line_search_fn: every step "
                "is then one iteration, and the next step continues."
            )
        if self._scaler is not None:
            raise BadInput(f"{name} cannot be used with a scaler. Train without one, in bfloat16 for instance.")

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Refuse a step with this member's gradients alone, after which members would differ."""
        if self._stepping or threading.get_ident() != self._thread:
            return
        name = type(optimizer).__name__
        if any(id(param) in self._ours for group in optimizer.param_groups for param in group["params"]):
            raise BadInput(
                f"{name}.step() was called by hand, with this member's gradients alone. run.step() steps the "
                "optimizers: pass all of them to job.train, as a list to step them together, or as a dictionary "
                "to step them in turns."
            )
        if not self._in_inner_loop and not self._warned_of_other:
            self._warned_of_other = True
            log.warning(
                "%s.step() was called, and %s holds no parameter of the model given to job.train. What it trains is "
                "not reduced and differs between members. Put it into the model and pass the optimizer to job.train, "
                "or step it inside `with run.inner_loop():` if it lives in one item only.",
                name,
                name,
            )


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _no_loss() -> float:
    """A closure for an optimizer that needs the gradient alone, which it has."""
    return 0.0


def _norms(grads: Sequence[Tensor], order: float) -> Tensor:
    """Return the norm of each gradient. NaN and infinity stay, and with the order `inf` nothing finite overflows."""
    norms = torch._foreach_norm(list(grads), order)
    if any(norm.dtype is not torch.float32 for norm in norms):
        norms = tuple(norm.float() for norm in norms)
    return torch.stack(norms)
