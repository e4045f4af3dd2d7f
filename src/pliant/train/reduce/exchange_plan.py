"""The exchanges of a deterministic reduction, derived from the shares of all ranks."""

from __future__ import annotations

from functools import lru_cache

from pliant.core.member.signals import Shares
from pliant.train.reduce.tree import nodes_of


class ExchangePlan:
    """The nodes that each rank sends, and how many exchanges that takes."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self.filled = sum(map(len, shares))
        self.nodes = [nodes_of(share, self.filled) for share in shares]
        self.sendings = max(map(len, self.nodes))
        self.slots_max = max(map(len, shares))
        self.is_one_sum = [len(nodes) for nodes in self.nodes] == [1, 1]


plan_of = lru_cache(maxsize=64)(ExchangePlan)
