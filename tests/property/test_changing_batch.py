"""A batch that changes while a job runs: the grid under any changes (ADR 0051)."""

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.audit import audit
from pliant.core.data.grid import Grid, change_batch
from pliant.core.data.ledger import GENESIS, LedgerLine, expected_digest, make_line
from pliant.core.data.ledger_check import LedgerCheck
from pliant.core.data.sample_order import Cursor, Order


@st.composite
def changing(draw: st.DrawFn, turns_max: int = 3) -> tuple[Grid, list[tuple[int, int, int]]]:
    """Return a grid at the end of its job, and (epoch, position, size) of its steps, written down one after another."""
    batch = draw(st.integers(1, 12))
    slots, turns = draw(st.integers(1, batch)), draw(st.integers(1, turns_max))
    grid = Grid(draw(st.integers(1, 40)), batch, slots, draw(st.integers(1, 3)), turns)
    rows: list[tuple[int, int, int]] = []
    epoch = position = 0
    while epoch < grid.epochs:
        size, wanted = min(batch, grid.samples - position), 0
        for _ in range(turns):
            rows.append((epoch, position, size))
            if draw(st.integers(0, 4)) == 0:
                wanted = draw(st.integers(slots, 15))
                grid = change_batch(grid, len(rows), wanted)
        batch = wanted or batch
        epoch, position = (epoch, position + size) if position + size < grid.samples else (epoch + 1, 0)
    return grid, rows


@given(changing())
def test_each_step_starts_where_the_last_one_ended(given: tuple[Grid, list[tuple[int, int, int]]]) -> None:
    grid, rows = given
    assert grid.total_steps == len(rows)
    for step, (epoch, position, size) in enumerate(rows, 1):
        assert grid.cursor(step) == Cursor(epoch, position)
        assert grid.size(step) == size
        assert grid.samples_up_to(step) == sum(each for *_, each in rows[:step])
        assert grid.ends_epoch(step) == (step == len(rows) or rows[step][0] > epoch)
        assert grid.index_in_epoch(step) == sum(1 for before in rows[: step - 1] if before[0] == epoch)
        stretch = grid.stretch(step)
        assert stretch.first <= step < stretch.first + stretch.steps
        assert stretch.position + (step - stretch.first) // grid.turns * stretch.batch == position
    assert grid.cursor(len(rows) + 1) == Cursor(grid.epochs, 0)


@given(changing(turns_max=1))
def test_an_epoch_holds_each_sample_once_with_any_changes(given: tuple[Grid, list[tuple[int, int, int]]]) -> None:
    grid, rows = given
    for epoch in range(grid.epochs):
        steps = [step for step, row in enumerate(rows, 1) if row[0] == epoch]
        assert [at for step in steps for slot in range(grid.slots) for at in grid.slot(step, slot)] == list(
            range(grid.samples)
        )


@given(changing(), st.data())
def test_a_step_does_not_depend_on_later_changes(
    given: tuple[Grid, list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    grid, rows = given
    last = data.draw(st.integers(0, len(rows)))
    before = grid.up_to(last)
    assert before.total_steps >= last
    for step in range(1, last + 1):
        assert before.cursor(step) == grid.cursor(step)
        assert [before.slot(step, slot) for slot in range(grid.slots)] == [
            grid.slot(step, slot) for slot in range(grid.slots)
        ]
        assert before.changes_at(step) == grid.changes_at(step)


def ledger(grid: Grid, order: Order) -> list[LedgerLine]:
    """Return the lines of the whole job, as its members write them."""
    lines: list[LedgerLine] = []
    batches = dict(grid.changes)
    for step in range(1, grid.total_steps + 1):
        parent = lines[-1].lineage if lines else GENESIS
        digest = expected_digest(grid, order, step)
        about = (grid.cursor(step), grid.size(step), digest, 0, batches.get(step, 0))
        lines.append(make_line(parent, 1, step, *about))
    return lines


@given(changing(), st.data())
def test_the_audit_confirms_it_from_the_lines_alone(
    given: tuple[Grid, list[tuple[int, int, int]]], data: st.DataObject
) -> None:
    grid, _ = given
    order = Order(3, grid.samples)
    base = grid.up_to(0)
    lines = ledger(grid, order)
    found = audit(base, order, lines, finished=True)
    assert found.ok
    assert found.samples == grid.samples * grid.epochs * grid.turns
    check = LedgerCheck(base, lambda now, steps: [expected_digest(now, order, step) for step in steps])
    for line in lines:
        check.add(line)
    assert check.result(finished=True) == found
    if grid.changes:  # a ledger that forgets a change does not start where the last step ended
        step = data.draw(st.sampled_from([step for step, _ in grid.changes]))
        other = ledger(grid.up_to(step - 1), order)
        forged = [*lines[:step], *other[step:]]
        if other[step:] != lines[step:]:
            assert not audit(base, order, forged, finished=True).ok
