"""Put a model into evaluation mode, and restore it afterwards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from pliant.torch.data.seeds import preserve_generators


def modules_of(objects: Iterable[object]) -> list[nn.Module]:
    """Return the modules among objects and among their attributes, such as the copy that an EMA class keeps."""
    candidates = [candidate for each in objects for candidate in (each, *getattr(each, "__dict__", {}).values())]
    return [candidate for candidate in candidates if isinstance(candidate, nn.Module)]


class evaluation_mode:  # noqa: N801  # a context manager, used like a function
    """Put modules into evaluation mode without gradients, and restore them and the generators afterwards."""

    def __init__(self, *modules: nn.Module) -> None:
        self._modes = [(each, each.training) for module in modules for each in module.modules()]
        self._no_grad = torch.no_grad()
        self._chance = preserve_generators()

    def __enter__(self) -> None:
        self._chance.__enter__()
        self._no_grad.__enter__()
        for module, _ in self._modes:
            module.training = False

    def __exit__(self, *raised: Any) -> None:
        for module, training in self._modes:
            module.training = training
        self._no_grad.__exit__(*raised)
        self._chance.__exit__(*raised)
