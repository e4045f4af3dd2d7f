"""The order of shards: every sample once, and each run of slots reads on where it ended in the step before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.grid import Grid
from pliant.train.data.lanes import LANES, ShardOrder, lane_positions


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    batch = draw(st.integers(1, 60))
    return Grid(draw(st.integers(1, 500)), batch, draw(st.integers(1, batch)), 3)


@given(grids())
def test_the_lanes_hold_every_place_of_the_row_once(grid: Grid) -> None:
    assert sorted(lane_positions(grid).tolist()) == list(range(grid.samples))


@given(grids(), st.lists(st.integers(0, 90), min_size=1, max_size=12).filter(any), st.booleans())
def test_epochs_go_through_all_shards_pass_after_pass(grid: Grid, sizes: list[int], shuffled: bool) -> None:
    order = ShardOrder(grid, sizes, seed=3, shuffled=shuffled)
    data = sum(sizes)
    drawn = np.concatenate([order(epoch) for epoch in range(3)])
    counts = np.bincount(drawn, minlength=data)
    assert len(drawn) == 3 * grid.samples
    assert (counts.max(), counts.min()) == (-(-len(drawn) // data), len(drawn) // data)


@pytest.mark.parametrize("slots", [4, 16, 64])
def test_a_slot_reads_on_where_it_ended(slots: int) -> None:
    grid = Grid(64 * 50, 64, slots, 1)
    lanes = min(slots, LANES)
    steps = lane_positions(grid).reshape(50, lanes, -1)
    for lane in range(lanes):
        read = steps[:, lane].reshape(-1)
        assert read.tolist() == list(range(read[0], read[0] + len(read)))


def test_shards_are_shuffled_anew_for_each_pass_and_read_in_sequence() -> None:
    grid = Grid(40, 4, 1, 2)
    order = ShardOrder(grid, [10] * 4, seed=1, shuffled=True)
    first, second = ([each[0] // 10 for each in order(epoch).reshape(4, 10)] for epoch in (0, 1))
    assert sorted(first) == sorted(second) == [0, 1, 2, 3]
    assert first != second
    assert all(np.diff(shard).tolist() == [1] * 9 for shard in order(0).reshape(4, 10))
    assert ShardOrder(grid, [10] * 4, seed=1, shuffled=False)(1).tolist() == list(range(40))
