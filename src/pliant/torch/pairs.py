"""A PyTorch model as arrays, for pair averaging in a task queue."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["ModelArrays"]


class ModelArrays:
    """The parameters of a model and its buffers of floating point numbers, for `average=` of `pliant.tasks`.

    On the CPU the arrays share the memory of the model. From a GPU they are copied to the host and back.
    """

    def __init__(self, model: nn.Module) -> None:
        buffers = [each for each in model.buffers() if each.is_floating_point()]
        self._tensors: list[Tensor] = [*model.parameters(), *buffers]

    def read(self) -> list[npt.NDArray[Any]]:
        return [_host(each).numpy() for each in self._tensors]

    def write(self, arrays: list[npt.NDArray[Any]]) -> None:
        with torch.no_grad():
            for tensor, array in zip(self._tensors, arrays, strict=True):
                tensor.copy_(torch.from_numpy(array))


def _host(tensor: Tensor) -> Tensor:
    """Return the tensor on the host, in a type that numpy has."""
    found = tensor.detach().cpu()
    return found.float() if found.dtype == torch.bfloat16 else found
