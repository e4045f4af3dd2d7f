"""Workers come and go between steps, and every sample is seen exactly once, which TF Elastic could not do.

Its data was sharded by worker, so a change of size in the middle of an epoch lost some samples and repeated
others. Here a step's samples do not depend on who is there to read them (rule 21).
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.audit import audit
from pliant.core.data.grid import Grid, deal_slots
from pliant.core.data.ledger import GENESIS, LedgerLine, add_digests, make_line, slot_digest
from pliant.core.data.sample_order import Order


def train(grid: Grid, order: Order, sizes: list[int]) -> tuple[Counter[tuple[int, int]], list[LedgerLine]]:
    """Do one step in a world of each of these sizes; give the (epoch, sample) pairs read, and the ledger."""
    seen: Counter[tuple[int, int]] = Counter()
    lines: list[LedgerLine] = []
    head = GENESIS
    for step, size in enumerate(sizes, start=1):
        epoch = grid.cursor(step).epoch
        samples = digest = 0
        for run in deal_slots(grid.slots, [1] * size):
            for slot in run:
                read = order.take(epoch, grid.slot(step, slot))
                seen.update((epoch, sample) for sample in read)
                samples += len(read)
                digest = add_digests(digest, slot_digest(step, slot, read))
        lines.append(make_line(head, step, step, grid.cursor(step), samples, digest))
        head = lines[-1].lineage
    return seen, lines


def once(grid: Grid) -> Counter[tuple[int, int]]:
    return Counter((epoch, sample) for epoch in range(grid.epochs) for sample in range(grid.samples))


@pytest.mark.parametrize("samples", [60, 59, 58, 51, 50, 49])
@pytest.mark.parametrize(
    "sizes", [[2, 2, 3, 3, 3], [3, 3, 2, 2, 2], [1, 12, 1, 12, 1], [5, 4, 3, 2, 1], [7, 7, 7, 7, 7]]
)
def test_every_sample_is_seen_once_while_the_world_changes_size(samples: int, sizes: list[int]) -> None:
    grid = Grid(samples, batch=12, slots=12, epochs=1)
    order = Order(seed=1, samples=samples)
    seen, lines = train(grid, order, sizes)
    assert grid.total_steps == 5
    assert seen == once(grid)
    assert audit(grid, order, lines, finished=True).ok


def test_the_order_of_reading_is_the_same_for_every_sequence_of_sizes() -> None:
    grid = Grid(58, batch=12, slots=6, epochs=1)
    order = Order(seed=1, samples=58)
    ledgers = [train(grid, order, sizes)[1] for sizes in ([2, 2, 3, 3, 3], [1, 1, 1, 1, 1], [6, 1, 5, 2, 4])]
    assert ledgers[0] == ledgers[1] == ledgers[2]


@given(st.integers(1, 120), st.integers(1, 24), st.integers(), st.data())
def test_every_sample_is_seen_once_whatever_the_sizes(samples: int, batch: int, seed: int, data: st.DataObject) -> None:
    grid = Grid(samples, batch, data.draw(st.integers(1, batch), label="slots"), epochs=2)
    steps = min(grid.total_steps, 40)
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=steps, max_size=steps), label="sizes")
    order = Order(seed, samples)
    seen, lines = train(grid, order, sizes)
    found = audit(grid, order, lines)
    assert found.ok
    assert seen.total() == found.samples
    assert set(seen.values()) == {1}
    if steps == grid.total_steps:
        assert seen == once(grid)
