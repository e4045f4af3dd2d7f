"""Buckets of parameters whose gradients are reduced together, and the result of a reduction."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pliant.train.reduce.spot_checks import SpotCheck

FIRST_BYTES = 1 << 20  # the first bucket is small, so that the network is busy early
BUCKET_BYTES = 25 << 20
# Over NCCL each reduction has a fixed cost, so buckets are larger. Nothing hides the last one, which stays small.
NCCL_FIRST_BYTES = 25 << 20
NCCL_BUCKET_BYTES = 100 << 20
NCCL_LAST_BYTES = 25 << 20
REST = 32  # a last bucket that is smaller than the one before by this factor joins it, to save a collective
SMALL_NUMEL = 16_384  # of a parameter: below this a call from Python takes longer than a second pass over its memory


@dataclass
class ReducedGradient:
    """A step's global gradient before division: sums by bucket, changes of the buffers, and the total weight.

    A world of one has no buckets: `.grad` has the gradient, to be multiplied by `alone`.
    """

    buckets: list[Tensor]
    buffers: Tensor
    marks: list[float]  # number of members with a gradient, by parameter
    weight: float
    alone: float = 1.0
    means: tuple[float, ...] = ()  # of the logged values, in the order of their names
    views: list[list[Tensor]] = field(default_factory=list)  # each parameter's view of its bucket, if already made
    largest: float = math.nan  # the largest absolute value of the sums, if known
    disputed: tuple[SpotCheck, ...] = ()  # spot checks whose two gradients differ

    @property
    def is_shared(self) -> bool:
        """True if it stays in memory for a member that missed the step."""
        return bool(self.buckets)


class Bucket:
    """Parameters of one type whose gradients are reduced together."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self.params: list[int] = []
        self.shapes: list[torch.Size] = []
        self.numel = 0
        self.is_plain = True  # whether every gradient has the memory layout and the type of its place in the bucket
        self.waits_for = 0  # number of parameters whose gradient of this part is missing

    def add(self, index: int, param: nn.Parameter) -> None:
        self.params.append(index)
        self.shapes.append(param.shape)
        self.numel += param.numel()
        self.is_plain = self.is_plain and param.is_contiguous() and param.dtype is self.dtype

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    @property
    def has_small_params(self) -> bool:
        """True if a second pass over all of them at once is faster than a call for each."""
        return self.numel <= SMALL_NUMEL * len(self.params)

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return each parameter's view of a flat tensor."""
        found, at = [], 0
        for shape in self.shapes:
            found.append(flat[at : at + shape.numel()].view(shape))
            at += shape.numel()
        return found

    def zeros(self, extra: int) -> Tensor:
        """Return a zeroed tensor for the gradients and `extra` more numbers."""
        return torch.zeros(self.numel + extra, dtype=self.dtype, device=self.device)


def make_buckets(params: list[nn.Parameter], device: torch.device, *, over_nccl: bool = False) -> list[Bucket]:
    """Return buckets in the order in which backward computes gradients, from the model's end to its beginning.

    Biases and norms come last: they are small, and a norm that is used before a layer may be registered after it. Then
    a bucket with both would wait for it. The last bucket has single precision, and may be empty.
    """
    first_bytes, bucket_bytes, last_bytes = FIRST_BYTES, BUCKET_BYTES, 0
    if over_nccl:
        first_bytes, bucket_bytes, last_bytes = NCCL_FIRST_BYTES, NCCL_BUCKET_BYTES, NCCL_LAST_BYTES
    buckets: list[Bucket] = []
    filling: dict[torch.dtype, Bucket] = {}
    left: Counter[torch.dtype] = Counter()  # bytes that are in no bucket yet
    for param in params:
        left[_sum_type(param)] += _sum_bytes(param)
    backwards = sorted(range(len(params)), key=lambda index: (params[index].dim() <= 1, -index))
    for index in backwards:
        param = params[index]
        dtype, nbytes = _sum_type(param), _sum_bytes(param)
        bucket = filling.get(dtype)
        limit = first_bytes if bucket is not None and bucket is buckets[0] else bucket_bytes
        begins_last = left[dtype] >= last_bytes > left[dtype] - nbytes
        left[dtype] -= nbytes
        if bucket is None or bucket.nbytes >= limit or begins_last:
            bucket = filling[dtype] = Bucket(dtype, device)
            buckets.append(bucket)
        bucket.add(index, param)
    last = filling.get(torch.float32) or Bucket(torch.float32, device)
    others = [bucket for bucket in buckets if bucket is not last]
    if others and others[-1].dtype is last.dtype and last.numel * REST < others[-1].numel:
        last, rest = others.pop(), last
        for index in rest.params:
            last.add(index, params[index])
    return [*others, last]


def _sum_type(param: nn.Parameter) -> torch.dtype:
    """Return the type of the sums of its gradients: they overflow half precision."""
    return torch.float32 if param.dtype in (torch.float16, torch.bfloat16) else param.dtype


def _sum_bytes(param: nn.Parameter) -> int:
    return param.numel() * _sum_type(param).itemsize


def multiply_into(grad: Tensor, factor: float, out: Tensor) -> None:
    """Write a weighted gradient to `out`. Half precision is widened first, which a weighted sum would overflow."""
    if grad.dtype == out.dtype:
        torch.mul(grad, factor, out=out)
    else:
        out.copy_(grad).mul_(factor)
