"""The fixed tree over the slots: the same sums for any owners and any order of arrival (rule 23)."""

import math
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from pliant.train.reduce.tree import SlotTree, TreeNode, fold, nodes_of

filled_counts = st.integers(1, 70)


def joined(left: str, right: str) -> str:
    """A sum that says how it was formed."""
    return f"({left}{right})"


def name(slot: int) -> str:
    return f"{slot},"


def by_hand(first: int, level: int, filled: int) -> str:
    """The tree in plain words: a run of slots is its left half and its right half, where there is one."""
    if level == 0:
        return name(first)
    middle = first + (1 << (level - 1))
    left = by_hand(first, level - 1, filled)
    return left if middle >= filled else joined(left, by_hand(middle, level - 1, filled))


def whole(filled: int) -> str:
    return by_hand(0, math.ceil(math.log2(filled)) if filled > 1 else 0, filled)


def owned(owners: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The slots of each owner."""
    return {rank: tuple(s for s, owner in enumerate(owners) if owner == rank) for rank in sorted(set(owners))}


@given(filled_counts, st.randoms())
def test_the_order_of_arrival_changes_nothing(filled: int, chance: object) -> None:
    slots = list(range(filled))
    chance.shuffle(slots)  # type: ignore[attr-defined]
    tree: SlotTree[str] = SlotTree(filled, joined)
    for slot in slots:
        tree.put_slot(slot, name(slot))
    assert tree.root == whole(filled)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=70), st.randoms())
def test_any_owners_and_any_order_among_them_give_the_same_tree(owners: list[int], chance: object) -> None:
    filled = len(owners)
    given_by_all: list[tuple[TreeNode, str]] = []
    for share in owned(owners).values():
        tree: SlotTree[str] = SlotTree(filled, joined)
        mine = list(share)
        chance.shuffle(mine)  # type: ignore[attr-defined]
        for slot in mine:
            tree.put_slot(slot, name(slot))
        assert tree.nodes == nodes_of(share, filled)
        given_by_all += zip(tree.nodes, tree.values, strict=True)
    chance.shuffle(given_by_all)  # type: ignore[attr-defined]
    assert fold(given_by_all, filled, joined) == whole(filled)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=70))
def test_the_nodes_left_are_the_highest_that_lie_whole_within_the_slots_and_ascend(owners: list[int]) -> None:
    filled = len(owners)
    for share in owned(owners).values():
        covered = [
            tuple(slot for slot in range(node.first, node.first + (1 << node.level)) if slot < filled)
            for node in nodes_of(share, filled)
        ]
        assert [slot for run in covered for slot in run] == list(share)
        for node in nodes_of(share, filled):
            parent = TreeNode(node.level + 1, node.place >> 1)
            within = [s for s in range(parent.first, parent.first + (1 << parent.level)) if s < filled]
            assert not set(within) <= set(share) or (1 << node.level) >= filled


@given(st.integers(1, 500), st.data())
@example(500, None)
def test_a_run_of_slots_leaves_about_as_many_nodes_as_its_logarithm(filled: int, data: st.DataObject | None) -> None:
    first = 1 if data is None else data.draw(st.integers(0, filled - 1))
    stop = filled - 1 if data is None else data.draw(st.integers(first + 1, filled))
    count = len(nodes_of(tuple(range(first, stop)), filled))
    assert count <= 2 * math.log2(stop - first + 1) + 1


@given(st.integers(1, 500), st.data())
def test_slots_that_come_in_order_are_never_held_in_more_than_a_few_values(filled: int, data: st.DataObject) -> None:
    """Nor does the number of values in being at once, with the one that is put, grow faster than the logarithm."""
    first = data.draw(st.integers(0, filled - 1))
    stop = data.draw(st.integers(first + 1, filled))
    tree: SlotTree[None] = SlotTree(filled, lambda _left, _right: None)
    held = 0
    for slot in range(first, stop):
        tree.put_slot(slot, None)
        held = max(held, len(tree.nodes))
    assert held <= 2 * math.log2(stop - first + 1) + 1
    if first == 0:
        assert held <= math.log2(stop) + 1


@given(filled_counts)
def test_a_tree_that_was_emptied_can_be_filled_again(filled: int) -> None:
    tree: SlotTree[str] = SlotTree(filled, joined)
    tree.put_slot(filled - 1, "old")
    assert tree.take_all() == ["old"]
    assert tree.nodes == ()
    for slot in range(filled):
        tree.put_slot(slot, name(slot))
    assert tree.root == whole(filled)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40), st.randoms())
def test_sums_of_floats_have_the_same_bits_for_any_owners(values: list[float], chance: object) -> None:
    filled = len(values)
    found = set()
    for members in (1, 2, 3, filled):
        owners = [chance.randrange(members) for _ in values]  # type: ignore[attr-defined]
        given_by_all: list[tuple[TreeNode, float]] = []
        for share in owned(owners).values():
            tree: SlotTree[float] = SlotTree(filled, lambda left, right: left + right)
            for slot in share:
                tree.put_slot(slot, values[slot])
            given_by_all += zip(tree.nodes, tree.values, strict=True)
        found.add(fold(given_by_all, filled, lambda left, right: left + right).hex())
    assert len(found) == 1
