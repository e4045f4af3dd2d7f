"""Hyperparameters of the optimizers: compare those of the script with those of a checkpoint, and choose one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# A scheduler that cycles the momentum keeps its own settings in the group, and changes these in every step.
CYCLED = ("momentum", "betas")
CYCLE_MARKS = ("max_momentum", "base_momentum")


@dataclass(frozen=True, slots=True)
class ChangedHyperparameter:
    """A value in one group of an optimizer's parameters that the script constructs differently from the checkpoint."""

    optimizer: int
    group: int
    key: str
    script: Any
    checkpoint: Any

    @property
    def name(self) -> str:
        return "lr" if self.key == "initial_lr" else self.key


class Hyperparameters:
    """The values that the script gave to its optimizers. Create it before a state is installed."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], others: Mapping[str, object]) -> None:
        self._optimizers = optimizers
        self._others = others
        self._script = [[_values(group) for group in optimizer.param_groups] for optimizer in optimizers]

    def changes(self) -> list[ChangedHyperparameter]:
        """Return how the script differs from the state that was just installed.

        A scheduler keeps the script's rate as `initial_lr`, and its own result as `lr`. Then `initial_lr` is compared.
        """
        found = []
        for number, (optimizer, groups) in enumerate(zip(self._optimizers, self._script, strict=True)):
            for index, (group, script) in enumerate(zip(optimizer.param_groups, groups, strict=False)):
                installed = _values(group)
                found += [
                    ChangedHyperparameter(number, index, key, script[key], installed[key])
                    for key in script.keys() & installed.keys()
                    if script[key] != installed[key] and not _follows_schedule(key, script, installed)
                ]
        return sorted(found, key=lambda each: (each.optimizer, each.group, each.key))

    def apply(self, changes: Sequence[ChangedHyperparameter]) -> None:
        """Put the script's values into the installed state. A schedule continues from its position at the new rate."""
        for each in changes:
            group = self._optimizers[each.optimizer].param_groups[each.group]
            if each.key == "initial_lr":
                old = float(each.checkpoint)
                _put(group, "lr", float(group["lr"]) / old * each.script if old else each.script)
            _put(group, each.key, each.script)
        if any(each.key == "initial_lr" for each in changes):
            for scheduler in _schedulers(self._others.values()):
                groups = scheduler.optimizer.param_groups
                if hasattr(scheduler, "base_lrs"):
                    scheduler.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]
                scheduler._last_lr = [group["lr"] for group in groups]

    def describe(self, changes: Sequence[ChangedHyperparameter], *, applied: bool) -> list[str]:
        """Return one sentence for each changed value; the same change in several groups is named once."""
        which = (
            "the script's is used" if applied else "the checkpoint's is used; pliant run --override uses the script's"
        )
        lines = []
        for each in changes:
            of = f" of optimizer {each.optimizer + 1}" if len(self._optimizers) > 1 else ""
            lines.append(
                f"{each.name}{of} is {each.script} in the script and {each.checkpoint} in the checkpoint: {which}"
            )
        return list(dict.fromkeys(lines))


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers and flags of a group, without its parameters."""
    found = {}
    for key, value in group.items():
        plain = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
        if isinstance(plain, bool | int | float) or (
            isinstance(plain, tuple | list) and all(isinstance(each, int | float) for each in plain)
        ):
            found[key] = tuple(plain) if isinstance(plain, list) else plain
    found.pop("params", None)
    return found


def _follows_schedule(key: str, script: Mapping[str, Any], installed: Mapping[str, Any]) -> bool:
    """Return whether a scheduler sets this value, so that a difference is not the user's."""
    if key == "lr":
        return "initial_lr" in script and "initial_lr" in installed
    return key in CYCLED and any(mark in installed for mark in CYCLE_MARKS)


def _put(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group[key], Tensor):
        group[key].fill_(value)
    else:
        group[key] = value


def _schedulers(objects: Any) -> Iterator[Any]:
    """Yield the schedulers among these objects, with those inside of them."""
    for each in objects:
        if hasattr(each, "get_last_lr") and hasattr(each, "optimizer"):
            yield each
        yield from _schedulers(getattr(each, "_schedulers", ()))
