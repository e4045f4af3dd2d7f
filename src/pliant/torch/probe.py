"""The abilities of this installation of PyTorch, for `pliant doctor`."""

from __future__ import annotations

import torch
from torch import distributed


def has_gloo() -> bool:
    """Return whether PyTorch was built with gloo, which scripts may use that connect their workers themselves."""
    return distributed.is_available() and distributed.is_gloo_available()


def gpu_names() -> list[str]:
    """Return the names of the GPUs that PyTorch can use."""
    if not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
