"""The ladder of sizes: every share of every world is cut into sizes that are known before the first step."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.grid import Grid
from pliant.train.data.loader import MicroBatch
from pliant.train.data.microbatches import LADDER, LadderBatcher


def samples(grid: Grid, part: MicroBatch) -> int:
    return sum(len(grid.slot(part.step, slot)) for slot in part.slots)


@given(st.integers(1, 60), st.integers(1, 24), st.integers(1, 24), st.data())
def test_every_share_is_cut_into_the_sizes_that_were_announced(
    length: int, batch: int, most: int, data: st.DataObject
) -> None:
    grid = Grid(length, batch, data.draw(st.integers(1, batch)), 2)
    widest = max(
        samples(grid, MicroBatch(step, (slot,))) for step in (1, grid.steps_per_epoch) for slot in grid.filled(step)
    )
    ladder = LadderBatcher(grid, max(most, widest), one_slot=False)
    sizes = {samples(grid, part) for part in ladder.shapes()}
    step = data.draw(st.integers(1, grid.total_steps))
    slots = data.draw(st.sets(st.sampled_from(range(grid.slots))))
    parts = ladder.cut(step, slots)
    assert sorted(slot for part in parts for slot in part.slots) == sorted(slots & set(grid.filled(step)))
    assert {samples(grid, part) for part in parts} <= sizes
    assert all(samples(grid, part) <= max(most, widest) for part in parts)
    assert samples(grid, ladder.idle(step, 0)) in sizes


def test_a_whole_batch_is_one_item_and_there_are_few_sizes() -> None:
    grid = Grid(1024, 256, 16, 1)
    ladder = LadderBatcher(grid, None, one_slot=False)
    assert [len(part.slots) for part in ladder.cut(1, range(16))] == [16]
    assert [samples(grid, part) for part in ladder.shapes()] == [16, 16 * LADDER, 256]


def test_deterministic_training_has_one_slot_in_each_item() -> None:
    grid = Grid(40, 8, 4, 1)
    ladder = LadderBatcher(grid, None, one_slot=True)
    assert [part.slots for part in ladder.cut(1, range(4))] == [(0,), (1,), (2,), (3,)]
    assert [samples(grid, part) for part in ladder.shapes()] == [2]
