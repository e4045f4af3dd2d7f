"""The memory of a deterministic reduction."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from pliant.torch.reduce.buckets import Bucket
from pliant.train.reduce.exchange_plan import ExchangePlan
from pliant.train.reduce.tree import SlotTree, TreeNode


class FlatBuffer:
    """Memory for the gradients of a bucket, with a view for each parameter."""

    __slots__ = ("data", "views")

    def __init__(self, bucket: Bucket, extra: int) -> None:
        self.data = bucket.zeros(extra)
        self.views = bucket.views(self.data)

    def grow(self, bucket: Bucket, extra: int) -> None:
        """Enlarge the memory and keep the gradients."""
        data = bucket.zeros(extra)
        data[: bucket.numel] = self.data[: bucket.numel]
        self.data, self.views = data, bucket.views(data)


class TreeBuffers:
    """One bucket's tree nodes in a step, with reused memory."""

    def __init__(self, bucket: Bucket, slots: int) -> None:
        self._bucket = bucket
        self._extra = slots  # stretches have equal lengths, which takes less than one extra number for each rank
        self._spare: list[FlatBuffer] = []
        self.tree: SlotTree[FlatBuffer] = SlotTree(1, self._combine)
        self.results: list[FlatBuffer | None] = [None, None]  # roots of the last two steps, alternating
        self.arriving: list[Tensor] = []  # scratch memory, by number of the exchange

    def fit(self, size: int) -> None:
        """Ensure memory for `size` stretches. While a member is replaced, a world may have more ranks than slots."""
        if size > self._extra:
            self._extra = size
            self._spare.clear()
            for flat in self.tree.values:
                flat.grow(self._bucket, size)

    def begin(self, filled: int) -> None:
        """Start a step in which `filled` slots hold samples."""
        if self.tree.filled != filled:
            self.clear()
            self.tree = SlotTree(filled, self._combine)

    def _combine(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        left.data.add_(right.data)
        self._spare.append(right)
        return left

    def take(self) -> FlatBuffer:
        return self._spare.pop() if self._spare else FlatBuffer(self._bucket, self._extra)

    def clear(self) -> None:
        self._spare += self.tree.take_all()

    def set_result(self, turn: int, flat: FlatBuffer) -> None:
        if (old := self.results[turn]) is not None and len(old.data) == self._bucket.numel + self._extra:
            self._spare.append(old)
        self.results[turn] = flat

    def scratch(self, number: int, numel: int) -> Tensor:
        """Return memory for what arrives in one exchange."""
        while len(self.arriving) <= number:
            self.arriving.append(self._bucket.zeros(0)[:0])
        if self.arriving[number].numel() != numel:
            self.arriving[number] = torch.empty(numel, dtype=self._bucket.dtype, device=self._bucket.device)
        return self.arriving[number]


class StreamEvent:
    """The work that this thread has queued on its GPU stream. Another thread's stream can wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.wait()


def split_nodes(
    gathered: np.ndarray[tuple[int, int], np.dtype[Any]], plan: ExchangePlan, numel: int
) -> list[tuple[TreeNode, Tensor]]:
    """Return the nodes of all ranks from gathered rows, with `numel` numbers each."""
    return [
        (node, torch.from_numpy(gathered[rank, at * numel : (at + 1) * numel]))
        for rank, nodes in enumerate(plan.nodes)
        for at, node in enumerate(nodes)
    ]
