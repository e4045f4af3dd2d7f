"""Tensors as the leaves of a state: their types, shapes and bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from pliant.errors import BadInput
from pliant.train.state.flat import Leaf

ON_DEVICE = "@device"  # suffix of the type of a tensor that was not on the CPU

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def as_leaf(value: object) -> Leaf | None:
    """Return a tensor as a leaf, with its live bytes if it is on the CPU; None for other values."""
    if not isinstance(value, Tensor):
        return None
    if value.layout is not torch.strided:
        raise BadInput("A tensor in the state is sparse, which cannot be sent. Make it dense.")
    flat = value.detach().cpu().contiguous().reshape(-1)
    content = flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")
    return Leaf(kind_of(value), tuple(value.shape), content)


def content_of(tensor: Tensor) -> memoryview:
    leaf = as_leaf(tensor)
    assert leaf is not None
    return leaf.content


def kind_of(tensor: Tensor) -> str:
    name = str(tensor.dtype).removeprefix("torch.")
    return name if tensor.device.type == "cpu" else name + ON_DEVICE


def from_leaf(
    dtype: str, shape: tuple[int, ...], content: memoryview | Tensor, device: torch.device | None = None
) -> Tensor:
    """Return the tensor of a leaf: on `device` if it came from an accelerator, else on the CPU.

    The content is a view of memory, or a tensor of bytes on the GPU.
    """
    on_device = device is not None and dtype.endswith(ON_DEVICE)
    kind = _DTYPES.get(dtype.removesuffix(ON_DEVICE))
    if kind is None:
        raise BadInput(f"A tensor in the state has the type {dtype}, which this version of torch lacks. Upgrade torch.")
    if isinstance(content, Tensor):
        tensor = content.view(kind).reshape(shape)
        return tensor if on_device else tensor.cpu()
    tensor = torch.frombuffer(content, dtype=kind).reshape(shape) if content.nbytes else torch.empty(shape, dtype=kind)
    return tensor.to(device) if on_device else tensor
