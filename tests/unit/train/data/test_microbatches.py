"""The division of a member's slots: cut by size, one by one in deterministic training, and idle ones (rule 22)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.grid import Grid, deal_slots
from pliant.core.member import Machine
from pliant.core.model.job import Terms
from pliant.core.model.names import MemberId
from pliant.core.model.world import WorldKind
from pliant.train.data.loader import MicroBatch, cut_micro_batches
from pliant.train.data.microbatches import MicroBatcher
from unit.core import build

A, B, C = (MemberId(name) for name in "abc")


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    batch = draw(st.integers(1, 40))
    return Grid(draw(st.integers(1, 150)), batch, draw(st.integers(1, batch)), draw(st.integers(1, 3)))


def size(grid: Grid, part: MicroBatch) -> int:
    return sum(len(grid.slot(part.step, slot)) for slot in part.slots)


@given(grids(), st.data())
def test_one_slot_at_a_time_ascends_and_leaves_out_those_without_samples(grid: Grid, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    slots = data.draw(st.sets(st.integers(0, grid.slots - 1)))
    found = MicroBatcher(grid, None, one_slot=True).cut(step, slots)
    assert found == tuple(MicroBatch(step, (slot,)) for slot in sorted(slots) if slot in grid.filled(step))
    assert all(size(grid, part) > 0 for part in found)


@given(grids(), st.data())
def test_one_slot_at_a_time_does_not_depend_on_who_owns_which(grid: Grid, data: st.DataObject) -> None:
    """The content of a part decides the bits of its gradient."""
    step = data.draw(st.integers(1, grid.total_steps))
    parts = MicroBatcher(grid, None, one_slot=True)
    members = data.draw(st.integers(1, grid.slots))
    found = [part for mine in deal_slots(grid.slots, (1,) * members) for part in parts.cut(step, mine)]
    assert tuple(found) == parts.cut(step, range(grid.slots))


@pytest.mark.parametrize("micro_batch", [None, 2, 5])
def test_otherwise_slots_share_parts_as_far_as_the_cap_allows(micro_batch: int | None) -> None:
    grid = Grid(64, 16, 8, 1)
    parts = MicroBatcher(grid, micro_batch, one_slot=False)
    assert parts.cut(2, range(3, 8)) == cut_micro_batches(grid, 2, range(3, 8), micro_batch)
    assert parts.cut(2, []) == ()


@given(grids(), st.sampled_from([None, 1, 2, 3]), st.booleans(), st.data())
def test_an_idle_part_has_two_samples_where_the_step_has_them(
    grid: Grid, micro_batch: int | None, one_slot: bool, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    slot = data.draw(st.sampled_from(grid.filled(step)))
    part = MicroBatcher(grid, micro_batch, one_slot=one_slot).idle(step, slot)
    assert slot in part.slots
    assert set(part.slots) <= set(grid.filled(step))
    assert size(grid, part) >= min(2, micro_batch or 2, grid.size(step))
    assert len(part.slots) <= 2


@given(grids(), st.booleans(), st.integers(1, 5), st.data())
def test_the_first_items_have_the_sizes_of_those_that_a_joiner_computes(
    grid: Grid, one_slot: bool, members: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    parts = MicroBatcher(grid, None, one_slot=one_slot)
    idle, *own = parts.first_items(step, members)
    assert size(grid, idle) >= min(2, grid.size(step))
    assert own == list(parts.cut(step, deal_slots(grid.slots, (1,) * members)[-1])[:1])


def machine(grid: Grid, me: MemberId, holders: frozenset[int], weights: tuple[int, ...] = (1, 1, 1)) -> Machine:
    world = replace(build.world(1, A, B, C, kind=WorldKind.PLANNED), weights=weights)
    return Machine(me, Terms(grid, seed=1), world=world, rank=world.members.index(me), holders=holders)


def test_what_is_read_ahead_are_the_parts_of_the_next_steps() -> None:
    grid = Grid(60, 12, 6, 2)
    parts = MicroBatcher(grid, None, one_slot=True)
    mine = machine(grid, B, frozenset({0, 1, 2}))
    assert parts.ahead(mine, 3, 3) == [
        MicroBatch(4, (2,)),
        MicroBatch(4, (3,)),
        MicroBatch(5, (2,)),
        MicroBatch(5, (3,)),
    ]
    assert parts.ahead(mine, 3, 0) == []
    assert parts.ahead(mine, grid.total_steps, 5) == []
    assert len(parts.ahead(mine, grid.total_steps - 1, 50)) == 2


def test_who_holds_no_state_yet_is_dealt_nothing_and_the_others_more() -> None:
    grid = Grid(60, 12, 6, 2)
    parts = MicroBatcher(grid, None, one_slot=False)
    assert parts.ahead(machine(grid, A, frozenset({0, 1})), 1, 1) == [MicroBatch(2, (0, 1, 2))]
    assert parts.ahead(machine(grid, C, frozenset({0, 1})), 1, 1) == []
    assert parts.ahead(machine(grid, A, frozenset()), 1, 1) == []


def test_without_a_world_nothing_is_read_ahead() -> None:
    grid = Grid(60, 12, 6, 2)
    assert MicroBatcher(grid, None, one_slot=True).ahead(Machine(A, Terms(grid, seed=1)), 1, 4) == []
