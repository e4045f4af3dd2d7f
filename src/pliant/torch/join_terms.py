"""The settings that all members of a job must share, besides the data. They are compared when a member joins."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, FunctionType

import torch
from torch import nn

from pliant.errors import BadInput
from pliant.torch.state.optimizers import Optimizers
from pliant.torch.state.training_state import Stateful
from pliant.train.data.loader import SampleIndices

LISTED_MAX = 200  # characters of the list of classes: a term has at most 255


def model_device(model: nn.Module) -> torch.device:
    """Return the device of the model. Raises BadInput if it is on several, or has nothing to train."""
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    if not any(param.requires_grad for param in model.parameters()):
        raise BadInput("The model has no parameter to train.")
    if len(devices) > 1:
        raise BadInput(f"The model is on several devices ({', '.join(map(str, devices))}). Put it on one device.")
    return devices.pop()


def extra_terms(
    model: nn.Module, optimizers: Optimizers, indices: SampleIndices, others: Mapping[str, Stateful]
) -> tuple[tuple[str, str], ...]:
    """Return name and value of the terms besides the grid and the seed, as shown to a member that differs."""
    parts = [(name, tuple(t.shape), str(t.dtype)) for name, t in [*model.named_parameters(), *model.named_buffers()]]
    count = sum(param.numel() for param in model.parameters())
    digest = _digest(parts)
    length = () if indices.data == indices.grid.samples else (("data", f"{indices.data} samples"),)
    return (
        ("model", f"{type(model).__name__} with {count:,} parameters ({digest})"),
        ("layers", _layers(model)),
        ("optimizer", optimizers.names),
        ("clip_norm", str(optimizers.clip_norm)),
        ("nonfinite", optimizers.nonfinite),
        ("order", indices.fingerprint),
        *length,
        ("state", ", ".join(sorted(others))),
    )


def _layers(model: nn.Module) -> str:
    """Return the number of modules of each class, and a digest of their structure and settings."""
    found = dict(model.named_modules(remove_duplicate=False))
    digest = _digest([(name, _description(module)) for name, module in found.items()])
    counts = Counter(type(module).__name__ for module in found.values())
    classes = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{classes if len(classes) <= LISTED_MAX else classes[:LISTED_MAX] + '...'} ({digest})"


def _description(module: nn.Module) -> tuple[str, str, list[tuple[str, str]]]:
    """Describe a module by its class and what torch shows of its settings.

    A script's own `extra_repr` may show initial weights, devices or memory addresses, in which equal members differ.
    """
    settings = module.extra_repr() if _is_of_torch(type(module).extra_repr) else ""
    functions = [
        (name, value.__qualname__)  # TransformerEncoderLayer, for one, keeps its activation as a function
        for name, value in sorted(vars(module).items())
        if not name.startswith("_") and isinstance(value, FunctionType | BuiltinFunctionType) and _is_of_torch(value)
    ]
    return type(module).__qualname__, settings, functions


def _is_of_torch(function: Callable[..., object]) -> bool:
    return (function.__module__ or "torch").partition(".")[0] == "torch"  # torch.tanh has no module


def _digest(value: object) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=6).hexdigest()
