"""The settings that all members of a job must share, besides the data. They are compared when a member joins."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.state.optimizers import Optimizers
from pliant.torch.state.training_state import Stateful
from pliant.train.data.loader import SampleIndices


def model_device(model: nn.Module) -> torch.device:
    """Return the device of the model. Raises BadInput if it is on several, or has nothing to train."""
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if not any(param.requires_grad for param in model.parameters()):
        raise BadInput("The model has no parameter to train.")
    if len(devices) > 1:
        raise BadInput(f"The model is on several devices ({', '.join(map(str, devices))}). Put it on one device.")
    return devices.pop()


def other_state(state: Mapping[str, Stateful] | None, scaler: torch.amp.GradScaler | None) -> dict[str, Stateful]:
    """Return the other objects that move with the model, by name."""
    if scaler is not None and state and "scaler" in state:
        raise BadInput('The scaler is part of the state already. Remove "scaler" from state=.')
    others = {**(state or {}), **({"scaler": scaler} if scaler is not None else {})}
    for name, other in others.items():
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            raise BadInput(f'state["{name}"] is a {type(other).__name__} without state_dict and load_state_dict.')
    return others


def extra_terms(
    model: nn.Module, optimizers: Optimizers, indices: SampleIndices, others: Mapping[str, Stateful]
) -> tuple[tuple[str, str], ...]:
    """Return name and value of the terms besides the grid and the seed, as shown to a member that differs."""
    parts = [(name, tuple(t.shape), str(t.dtype)) for name, t in [*model.named_parameters(), *model.named_buffers()]]
    count = sum(param.numel() for param in model.parameters())
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()
    return (
        ("model", f"{type(model).__name__} with {count:,} parameters ({digest})"),
        ("optimizer", ", ".join(type(optimizer).__name__ for optimizer in optimizers.all)),
        ("clip_norm", str(optimizers.clip_norm)),
        ("order", indices.fingerprint),
        ("state", ", ".join(sorted(others))),
    )
