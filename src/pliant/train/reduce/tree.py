"""The fixed tree over a step's slots, along which gradients are added up in deterministic mode (rule 23).

Floating-point addition is commutative but not associative, so the sums that are formed must not depend on the owners of
the slots. They are always those of this tree, whose leaves are the slots and whose nodes are aligned runs of slots. A
member adds up the nodes that lie within its own slots. A few nodes remain, about as many as the logarithm of the number
of slots. A member that receives all remaining nodes adds them up to the root. The result is the same for every
distribution of the slots.

No framework is used here: `combine` can add the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class TreeNode(NamedTuple):
    """A run of `2**level` slots that begins with slot `place * 2**level`."""

    level: int
    place: int

    @property
    def first(self) -> int:
        """The first slot of the run."""
        return self.place << self.level


class SlotTree(Generic[Value]):
    """Values of nodes, added up as far as possible. `filled` is the number of slots that hold samples.

    `combine(left, right)` returns the value of two neighbours' parent; it may reuse the memory of both.
    """

    def __init__(self, filled: int, combine: Callable[[Value, Value], Value]) -> None:
        self.filled = filled
        self._combine = combine
        self._held: dict[TreeNode, Value] = {}

    def put(self, node: TreeNode, value: Value) -> None:
        """Add a value. If its neighbour is present, both are combined into their parent, and so on upwards."""
        while True:
            node = _raised(node, self.filled)
            other = TreeNode(node.level, node.place ^ 1)
            if other not in self._held:
                break
            beside = self._held.pop(other)
            value = self._combine(value, beside) if other.place & 1 else self._combine(beside, value)
            node = TreeNode(node.level + 1, node.place >> 1)
        self._held[node] = value

    def put_slot(self, slot: int, value: Value) -> None:
        """Add the value of one slot."""
        self.put(TreeNode(0, slot), value)

    @property
    def nodes(self) -> tuple[TreeNode, ...]:
        """The nodes that could not be combined further, in the order of slots."""
        return tuple(sorted(self._held, key=lambda node: node.first))

    @property
    def values(self) -> list[Value]:
        """The values of `nodes`, in the same order."""
        return [self._held[node] for node in self.nodes]

    @property
    def root(self) -> Value:
        """The sum over all slots, once all are present."""
        (value,) = self._held.values()
        return value

    def take_all(self) -> list[Value]:
        """Empty the tree and return its values, for reuse of their memory."""
        values = list(self._held.values())
        self._held.clear()
        return values


def _raised(node: TreeNode, filled: int) -> TreeNode:
    """Return the highest node with the same filled slots: without a right neighbour the parent has the same ones."""
    level, place = node
    while place % 2 == 0 and (place << level) + (1 << level) >= filled and (1 << level) < filled:
        level, place = level + 1, place >> 1
    return TreeNode(level, place)


@lru_cache(maxsize=1024)
def nodes_of(slots: tuple[int, ...], filled: int) -> tuple[TreeNode, ...]:
    """Return the nodes that remain after a member added up these slots of a step."""
    tree: SlotTree[None] = SlotTree(filled, lambda _left, _right: None)
    for slot in slots:
        tree.put_slot(slot, None)
    return tree.nodes


def fold(given: Iterable[tuple[TreeNode, Value]], filled: int, combine: Callable[[Value, Value], Value]) -> Value:
    """Return the sum over all slots of a step, from the remaining nodes of all members."""
    tree = SlotTree(filled, combine)
    for node, value in given:
        tree.put(node, value)
    return tree.root
