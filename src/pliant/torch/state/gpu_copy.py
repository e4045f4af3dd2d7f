"""Copy a part of the state on the GPU at once, and fetch the copy in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pliant.torch.state.tensors import as_leaf

SPARE = 1.25  # required free memory of the device, as a multiple of the copy


def copy_on_gpu(tensors: Sequence[Tensor]) -> list[Callable[[], memoryview]] | None:
    """Copy tensors at a boundary. Return functions that fetch the copies later, from any thread.

    Returns None if the tensors are not on a GPU, or it has too little free memory. Then copy them before they change.
    """
    on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
    if not on_gpu:
        return None
    device = on_gpu[0].device
    if not has_room(device, sum(tensor.nbytes for tensor in on_gpu)):
        return None
    try:
        copies = [tensor.detach().clone() for tensor in tensors]
    except torch.OutOfMemoryError:  # the free memory is fragmented
        return None
    cuda: Any = torch.cuda  # events and streams are untyped
    made = cuda.Event()
    made.record(torch.cuda.current_stream(device))
    beside = cuda.Stream(device)
    return [partial(_fetch, copy, made, beside) for copy in copies]


def has_room(device: torch.device, nbytes: int) -> bool:
    """Return whether a GPU has room for a copy. Memory that a step needs at its peak does not count as free."""
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return free >= SPARE * nbytes


def _fetch(tensor: Tensor, made: torch.cuda.Event, beside: torch.cuda.Stream) -> memoryview:
    """Return the bytes of a copy, over a separate stream, so that training's kernels do not wait."""
    made.synchronize()
    with torch.cuda.stream(beside):
        leaf = as_leaf(tensor)
    assert leaf is not None
    return leaf.content
