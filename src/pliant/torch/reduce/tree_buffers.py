"""The memory of a deterministic reduction, and what follows from who brings which slots."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pliant.core.member.signals import Shares
from pliant.torch.reduce.buckets import Bucket
from pliant.train.reduce.tree import SlotTree, TreeNode, nodes_of


class FlatBuffer:
    """Room for the gradients of a bucket, and what is each parameter's in it."""

    __slots__ = ("data", "views")

    def __init__(self, bucket: Bucket, extra: int) -> None:
        self.data = bucket.zeros(extra)
        self.views = bucket.views(self.data)

    def grow(self, bucket: Bucket, extra: int) -> None:
        """More room, with the same numbers in it."""
        data = bucket.zeros(extra)
        data[: bucket.numel] = self.data[: bucket.numel]
        self.data, self.views = data, bucket.views(data)


class TreeBuffers:
    """One bucket's nodes in a step, and the memory for them: it is used again and again."""

    def __init__(self, bucket: Bucket, slots: int) -> None:
        self._bucket = bucket
        self._extra = slots  # stretches are of one length: their ends reach over by less than one for each rank
        self._spare: list[FlatBuffer] = []
        self.tree: SlotTree[FlatBuffer] = SlotTree(1, self._combine)
        self.results: list[FlatBuffer | None] = [None, None]  # roots of the last two steps, in turn
        self.arriving: list[Tensor] = []  # scratch, one for each sending

    def fit(self, size: int) -> None:
        """Have room for so many stretches. While somebody is replaced a world may have more ranks than slots."""
        if size > self._extra:
            self._extra = size
            self._spare.clear()
            for flat in self.tree.values:
                flat.grow(self._bucket, size)

    def begin(self, filled: int) -> None:
        """A step begins in which so many slots hold samples."""
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
        """Room for what arrives in one sending."""
        while len(self.arriving) <= number:
            self.arriving.append(self._bucket.zeros(0)[:0])
        if self.arriving[number].numel() != numel:
            self.arriving[number] = torch.empty(numel, dtype=self._bucket.dtype, device=self._bucket.device)
        return self.arriving[number]


class StreamEvent:
    """What this thread has put on its GPU's stream by now; another thread waits for it on its own."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.wait()


class ExchangePlan:
    """What follows from who brings which slots."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self.filled = sum(map(len, shares))
        self.nodes = [nodes_of(share, self.filled) for share in shares]
        self.sendings = max(map(len, self.nodes))
        self.slots_max = max(map(len, shares))
        self.is_one_sum = [len(nodes) for nodes in self.nodes] == [1, 1]


plan_of = lru_cache(maxsize=64)(ExchangePlan)


def split_nodes(
    everybodys: np.ndarray[tuple[int, int], np.dtype[Any]], plan: ExchangePlan, numel: int
) -> list[tuple[TreeNode, Tensor]]:
    """The nodes that came with what is small, of so many numbers each."""
    return [
        (node, torch.from_numpy(everybodys[rank, at * numel : (at + 1) * numel]))
        for rank, nodes in enumerate(plan.nodes)
        for at, node in enumerate(nodes)
    ]
