"""What members of a job must have in common, checked when training begins and compared at join."""

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
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if not any(param.requires_grad for param in model.parameters()):
        raise BadInput("The model has no parameter to train.")
    if len(devices) > 1:
        raise BadInput(f"The model is on several devices ({', '.join(map(str, devices))}): one for each worker.")
    return devices.pop()


def other_state(state: Mapping[str, Stateful] | None, scaler: torch.amp.GradScaler | None) -> dict[str, Stateful]:
    """What else moves with the model."""
    if scaler is not None and state and "scaler" in state:
        raise BadInput('The scaler moves with the model already: leave "scaler" out of state=.')
    others = {**(state or {}), **({"scaler": scaler} if scaler is not None else {})}
    for name, other in others.items():
        if not (hasattr(other, "state_dict") and hasattr(other, "load_state_dict")):
            raise BadInput(f'state["{name}"] is a {type(other).__name__} without state_dict and load_state_dict.')
    return others


def extra_terms(
    model: nn.Module, optimizers: Optimizers, indices: SampleIndices, others: Mapping[str, Stateful]
) -> tuple[tuple[str, str], ...]:
    """What members must have in common besides the data's shape, in words that help whoever got it wrong."""
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
