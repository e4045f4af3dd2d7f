"""Checks of the arguments of `job.train` that are torch's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.state.training_state import Stateful
from pliant.train.live import arguments as common
from pliant.train.live.arguments import a


def check(
    model: Any,
    slots: int | None,
    batch_size: int,
    clip_norm: Any,
    nonfinite: Any,
    collate_fn: Any,
    stall_s: Any,
    verify_slots: Any,
) -> None:
    """Check the arguments that are neither whole numbers nor flags."""
    if not isinstance(model, nn.Module):
        raise BadInput(f"model must be a torch.nn.Module, got {a(type(model).__name__)}.")
    common.check_common(slots, batch_size, clip_norm, nonfinite, collate_fn)
    common.check_numbers(stall_s, verify_slots)


def check_state(state: object, scaler: object) -> dict[str, Stateful]:
    """Return the other objects that move with the model, by name."""
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise BadInput(f"scaler must be a torch.amp.GradScaler, got {a(type(scaler).__name__)}.")
    if state is not None and not isinstance(state, Mapping):
        raise BadInput(
            f'state must be a dictionary of objects by name, such as {{"scheduler": scheduler}}, '
            f"got {a(type(state).__name__)}."
        )
    if scaler is not None and state and "scaler" in state:
        raise BadInput('The scaler is part of the state already. Remove "scaler" from state=.')
    others = {**(state or {}), **({"scaler": scaler} if scaler is not None else {})}
    for name, other in others.items():
        if not isinstance(name, str):
            raise BadInput(f"The names in state= must be strings, got {name!r}.")
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            raise BadInput(
                f'state["{name}"] is {a(type(other).__name__)}; '
                "wrap it in an object with state_dict and load_state_dict."
            )
    return others
