"""The fixed tree over a step's slots, along which gradients are added up in deterministic mode (rule 23).

Addition of floating-point numbers is commutative but not associative, so what must not depend on who computed what is
which sums are formed: always those of this tree, whose leaves are the slots and whose nodes stand for aligned runs of
them. A member adds up what lies whole within its own slots; what is left are a few nodes (about as many as the
logarithm of the number of slots), and whoever gets everybody's nodes goes on from there to the root. The result is the
same for every way of dealing out the slots.

No framework is known here: values are whatever `combine` can add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class TreeNode(NamedTuple):
    """A run of slots, `2**level` of them, beginning with slot `place * 2**level`; in order of their first slots."""

    level: int
    place: int

    @property
    def first(self) -> int:
        """Its first slot."""
        return self.place << self.level


class SlotTree(Generic[Value]):
    """Values of nodes, added up as far as they go. `filled` is how many slots hold samples.

    `combine(left, right)` gives the value of two neighbours' parent; it may reuse the memory of both.
    """

    def __init__(self, filled: int, combine: Callable[[Value, Value], Value]) -> None:
        self.filled = filled
        self._combine = combine
        self._held: dict[TreeNode, Value] = {}

    def put(self, node: TreeNode, value: Value) -> None:
        """Add a value. If its neighbour is there already, both become their parent, and so on upwards."""
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
        """What could not be added up any further, in order of slots."""
        return tuple(sorted(self._held, key=lambda node: node.first))

    @property
    def values(self) -> list[Value]:
        """The values of `nodes`, in the same order."""
        return [self._held[node] for node in self.nodes]

    @property
    def root(self) -> Value:
        """The sum over all slots, once every one of them is there."""
        (value,) = self._held.values()
        return value

    def take_all(self) -> list[Value]:
        """Empty it: gives what it held, to be used again."""
        values = list(self._held.values())
        self._held.clear()
        return values


def _raised(node: TreeNode, filled: int) -> TreeNode:
    """The highest node that stands for the same filled slots: where there is no right neighbour, the parent does."""
    level, place = node
    while place % 2 == 0 and (place << level) + (1 << level) >= filled and (1 << level) < filled:
        level, place = level + 1, place >> 1
    return TreeNode(level, place)


@lru_cache(maxsize=1024)
def nodes_of(slots: tuple[int, ...], filled: int) -> tuple[TreeNode, ...]:
    """The nodes that are left when a member has added up these slots of a step. The same slots, the same nodes."""
    tree: SlotTree[None] = SlotTree(filled, lambda _left, _right: None)
    for slot in slots:
        tree.put_slot(slot, None)
    return tree.nodes


def fold(given: Iterable[tuple[TreeNode, Value]], filled: int, combine: Callable[[Value, Value], Value]) -> Value:
    """The sum over all slots of a step, from the nodes of everybody who has some."""
    tree = SlotTree(filled, combine)
    for node, value in given:
        tree.put(node, value)
    return tree.root
