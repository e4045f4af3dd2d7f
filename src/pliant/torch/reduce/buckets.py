"""Parameters whose gradients travel together, and what comes back for a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pliant.train.reduce.spot_checks import SpotCheck

FIRST_BYTES = 1 << 20  # the first bucket is small, so that the wire is busy early
BUCKET_BYTES = 25 << 20


@dataclass
class ReducedGradient:
    """A step's global gradient before it is divided: sums by bucket, of the buffers' moves, and the whole weight.

    No buckets: this is a world of one, and `.grad` has it, to be multiplied by `alone`.
    """

    buckets: list[Tensor]
    buffers: Tensor
    marks: list[float]  # how many members had a gradient for each parameter
    weight: float
    alone: float = 1.0
    means: tuple[float, ...] = ()  # of what was logged, in the order of the names
    views: list[list[Tensor]] = field(default_factory=list)  # each parameter's place in the buckets, where it is known
    disputed: tuple[SpotCheck, ...] = ()  # of which two members got other gradients


class Bucket:
    """Parameters of one type whose gradients travel together."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.params: list[int] = []
        self.shapes: list[torch.Size] = []
        self.numel = 0
        self.waits_for = 0  # parameters whose gradient of this part has not come yet

    def add(self, index: int, param: nn.Parameter) -> None:
        self.params.append(index)
        self.shapes.append(param.shape)
        self.numel += param.numel()

    def views(self, flat: Tensor) -> list[Tensor]:
        """What is each parameter's in a flat tensor."""
        found, at = [], 0
        for shape in self.shapes:
            found.append(flat[at : at + shape.numel()].view(shape))
            at += shape.numel()
        return found

    def zeros(self, extra: int) -> Tensor:
        """Room for the gradients and so many numbers more."""
        return torch.zeros(self.numel + extra, dtype=self.dtype, device=self.device)


def make_buckets(params: list[nn.Parameter], device: torch.device) -> list[Bucket]:
    """Buckets in the order in which backward brings gradients: from the model's end to its beginning.

    The last one holds single precision, if need be nothing.
    """
    buckets: list[Bucket] = []
    filling: dict[torch.dtype, Bucket] = {}
    for index in reversed(range(len(params))):
        param = params[index]
        dtype = torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype  # sums are larger
        bucket = filling.get(dtype)
        limit = FIRST_BYTES if bucket is not None and bucket is buckets[0] else BUCKET_BYTES
        if bucket is None or bucket.numel * dtype.itemsize >= limit:
            bucket = filling[dtype] = Bucket(dtype, device)
            buckets.append(bucket)
        bucket.add(index, param)
    last = filling.get(torch.float32) or Bucket(torch.float32, device)
    return [*(bucket for bucket in buckets if bucket is not last), last]


def multiply_into(grad: Tensor, factor: float, out: Tensor) -> None:
    """A weighted gradient. Half precision is widened first: a weighted sum does not fit into it."""
    if grad.dtype == out.dtype:
        torch.mul(grad, factor, out=out)
    else:
        out.copy_(grad).mul_(factor)
