"""A part of the state that is on a GPU: put aside there in no time, and fetched later beside training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pliant.torch.state.training_state import as_leaf

SPARE = 1.25  # so many times what is put aside must be free on the device, or it is not


def copy_on_gpu(tensors: Sequence[Tensor]) -> list[Callable[[], memoryview]] | None:
    """Call at a boundary: how to get the tensors as they are now, whatever becomes of them. From any thread, later.

    None: they are not on a GPU, or there is no room on it. Then they must be copied before they change.
    """
    on_gpu = [tensor for tensor in tensors if tensor.is_cuda]
    if not on_gpu:
        return None
    device = on_gpu[0].device
    free, _ = torch.cuda.mem_get_info(device)
    # What a step takes at its peak is not free, though it is not in use at a boundary.
    free += torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    if free < SPARE * sum(tensor.nbytes for tensor in on_gpu):
        return None
    try:
        copies = [tensor.detach().clone() for tensor in tensors]
    except torch.OutOfMemoryError:  # in pieces, there was less room than that
        return None
    cuda: Any = torch.cuda  # its events and streams have no types
    made = cuda.Event()
    made.record(torch.cuda.current_stream(device))
    beside = cuda.Stream(device)
    return [partial(_fetched, copy, made, beside) for copy in copies]


def _fetched(tensor: Tensor, made: torch.cuda.Event, beside: torch.cuda.Stream) -> memoryview:
    """The bytes of a copy, over a stream of its own: training's kernels do not wait for it."""
    made.synchronize()
    with torch.cuda.stream(beside):
        leaf = as_leaf(tensor)
    assert leaf is not None
    return leaf.content
