"""Changes of the batch, in the grid, in ledger lines and in the audit (ADR 0051)."""

from dataclasses import replace

import pytest

from pliant.core.data.audit import audit
from pliant.core.data.grid import BATCH_MAX, Grid, Stretch, change_batch, changes_up_to
from pliant.core.data.ledger import GENESIS, LedgerLine, expected_digest, is_sealed, make_line, with_changes_of
from pliant.core.data.ledger_check import LedgerCheck
from pliant.core.data.sample_order import Cursor, Order
from pliant.errors import BadInput

GRID = Grid(samples=20, batch=4, slots=4, epochs=2)  # 10 steps
ORDER = Order(5, 20)
WIDER = change_batch(GRID, 2, 6)  # steps of 4, 4, 6 and 6, then of 6, 6, 6 and 2


def test_the_steps_after_the_change_have_the_new_batch() -> None:
    assert [WIDER.size(step) for step in range(1, 9)] == [4, 4, 6, 6, 6, 6, 6, 2]
    assert (WIDER.total_steps, GRID.total_steps) == (8, 10)
    assert WIDER.cursor(3) == Cursor(0, 8)
    assert WIDER.slot(3, 1) == range(9, 11)
    assert (WIDER.newest_batch, GRID.newest_batch) == (6, 4)
    assert WIDER.stretch(2) == Stretch(1, 0, 0, 4, 2)
    assert WIDER.stretch(4) == Stretch(3, 0, 8, 6, 2)
    assert WIDER.changes_at(2) == ()
    assert WIDER.changes_at(3) == ((2, 6),)
    assert GRID.changes_at(3) == ()


def test_optimizers_that_take_turns_keep_their_batch_until_its_last_turn() -> None:
    grid = change_batch(change_batch(replace(GRID, turns=2), 3, 7), 4, 6)  # the second change comes in time
    assert [grid.size(step) for step in range(1, 11)] == [4, 4, 4, 4, 6, 6, 6, 6, 6, 6]
    assert grid.samples_up_to(5) == 4 * 4 + 6


def test_a_step_limit_holds_with_changes() -> None:
    assert replace(WIDER, max_steps=3).total_steps == 3
    with pytest.raises(BadInput, match="steps 1 to 3, not 4"):
        replace(WIDER, max_steps=3).size(4)


@pytest.mark.parametrize("step", [0, 10])
def test_a_step_that_the_job_does_not_have_is_refused(step: int) -> None:
    with pytest.raises(BadInput, match=f"steps 1 to 8, not {step}"):
        WIDER.cursor(step)


@pytest.mark.parametrize("changes", [((0, 4),), ((3, 8), (3, 9)), ((2, 3),), ((2, BATCH_MAX),)])
def test_changes_that_do_not_fit_are_refused(changes: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(BadInput, match="does not fit the grid"):
        replace(GRID, changes=changes)


def test_a_shorter_history_has_fewer_changes() -> None:
    twice = change_batch(WIDER, 5, 4)
    assert changes_up_to(twice.changes, 4) == ((2, 6),)
    assert twice.up_to(4) == WIDER
    assert twice.up_to(1) == GRID
    assert GRID.up_to(1) is GRID


# --------------------------------------------------------------------------------------------------- the ledger


def lines(grid: Grid, count: int) -> list[LedgerLine]:
    made: list[LedgerLine] = []
    for step in range(1, count + 1):
        parent = made[-1].lineage if made else GENESIS
        batch = dict(grid.changes).get(step, 0)
        digest = expected_digest(grid, ORDER, step)
        made.append(make_line(parent, 1, step, grid.cursor(step), grid.size(step), digest, 0, batch))
    return made


def test_a_line_is_sealed_with_its_batch() -> None:
    line = lines(WIDER, 2)[1]
    assert line.next_batch == 6
    assert is_sealed(line)
    assert not is_sealed(replace(line, next_batch=7))
    assert not is_sealed(replace(line, next_batch=0))
    assert (
        len({make_line(GENESIS, 1, 1, Cursor(0, 0), 4, 9, state, batch) for state in (0, 6) for batch in (0, 6)}) == 4
    )


def test_lines_carry_the_changes() -> None:
    assert with_changes_of(GRID, lines(WIDER, 8)) == WIDER


def checked(found: list[LedgerLine], grid: Grid = GRID, *, finished: bool = True) -> bool:
    check = LedgerCheck(grid, lambda now, steps: [expected_digest(now, ORDER, step) for step in steps])
    for line in found:
        check.add(line)
    return check.result(finished=finished) is not None


def test_a_whole_ledger_with_a_change_is_sound() -> None:
    found = audit(GRID, ORDER, lines(WIDER, 8), finished=True)
    assert (found.ok, found.samples, found.steps) == (True, 40, 8)
    assert checked(lines(WIDER, 8))
    assert checked(lines(WIDER, 8), WIDER)  # the changes come from the lines, not from the job's terms


def test_a_batch_that_changes_without_a_line_that_says_so_is_found() -> None:
    made = lines(WIDER, 2)
    made[1] = make_line(made[0].lineage, 1, 2, GRID.cursor(2), 4, expected_digest(GRID, ORDER, 2))
    made.append(make_line(made[1].lineage, 1, 3, Cursor(0, 8), 6, expected_digest(WIDER, ORDER, 3)))
    found = audit(GRID, ORDER, made)
    assert not found.ok
    assert not checked(made, finished=False)


def test_a_line_that_does_not_start_where_the_last_one_ended_is_found() -> None:
    made = lines(WIDER, 4)
    made.append(make_line(made[-1].lineage, 1, 5, Cursor(0, 18), 6, expected_digest(WIDER, ORDER, 5)))
    assert audit(GRID, ORDER, made).problems == (
        "step 5 starts at epoch 1, position 0, but its line has epoch 0, position 18",
    )
    assert not checked(made, finished=False)


@pytest.mark.parametrize("batch", [3, BATCH_MAX])
def test_a_batch_that_the_slots_cannot_share_is_found(batch: int) -> None:
    made = [make_line(GENESIS, 1, 1, Cursor(0, 0), 4, expected_digest(GRID, ORDER, 1), 0, batch)]
    (problem,) = audit(GRID, ORDER, made).problems
    assert problem.startswith("step 1 agreed on a batch that cannot be: ")
    assert not checked(made, finished=False)


def test_a_change_that_was_rolled_back_is_none() -> None:
    first = lines(WIDER, 5)
    narrow = change_batch(GRID, 3, 5)
    again = [first[0]]
    for step in range(2, narrow.total_steps + 1):
        batch = dict(narrow.changes).get(step, 0)
        digest = expected_digest(narrow, ORDER, step)
        about = (narrow.cursor(step), narrow.size(step), digest, 0, batch)
        again.append(make_line(again[-1].lineage, 2, step, *about))
    made = [*first, *again[1:]]
    found = audit(GRID, ORDER, made, finished=True)
    assert (found.ok, found.rolled_back, found.steps) == (True, 4, narrow.total_steps)
    assert checked(made)
