from typing import Any

import pytest

from pliant.core.data.grid import Grid, are_disjoint, assign_missing, deal_slots, idle_slot, missing_slots
from pliant.core.data.sample_order import Cursor
from pliant.errors import BadInput

# 23 samples in steps of 10: two full steps and one of 3 in every epoch. Four slots of widths 2, 3, 2, 3.
GRID = Grid(samples=23, batch=10, slots=4, epochs=2)


@pytest.mark.parametrize("name", ["samples", "batch", "slots", "epochs", "turns"])
def test_every_measure_of_a_grid_is_at_least_one(name: str) -> None:
    measures: dict[str, Any] = {"samples": 1, "batch": 1, "slots": 1, "epochs": 1, "turns": 1}
    assert Grid(**measures).total_steps == 1
    with pytest.raises(BadInput, match=f"{name} must be at least 1, not 0"):
        Grid(**{**measures, name: 0})


def test_a_job_ends_after_max_steps_if_its_epochs_have_more() -> None:
    measures: dict[str, Any] = {"samples": 10, "batch": 4, "slots": 1, "epochs": 3}
    assert [Grid(**measures, max_steps=steps).total_steps for steps in (1, 5, 9, 10)] == [1, 5, 9, 9]
    short = Grid(**measures, max_steps=5)
    assert short.cursor(6) == Grid(**measures).cursor(6)
    with pytest.raises(BadInput, match="the job has steps 1 to 5, not 6"):
        short.size(6)
    with pytest.raises(BadInput, match="max_steps must be at least 1, not 0"):
        Grid(**measures, max_steps=0)


def test_a_grid_has_at_most_as_many_slots_as_samples_in_a_batch() -> None:
    assert Grid(samples=1, batch=4, slots=4, epochs=1).filled(1) == (0,)
    with pytest.raises(BadInput, match="5 slots cannot share a batch of 4 samples: lower slots or raise batch"):
        Grid(samples=100, batch=4, slots=5, epochs=1)


def test_a_grid_holds_as_many_samples_as_an_order_can() -> None:
    assert Grid(samples=2**62, batch=1, slots=1, epochs=1).total_steps == 2**62
    with pytest.raises(BadInput, match="at most"):
        Grid(samples=2**62 + 1, batch=1, slots=1, epochs=1)


@pytest.mark.parametrize(
    ("samples", "batch", "steps"), [(1, 1, 1), (9, 10, 1), (10, 10, 1), (11, 10, 2), (20, 10, 2), (21, 10, 3)]
)
def test_an_epoch_has_a_step_for_every_batch_begun(samples: int, batch: int, steps: int) -> None:
    grid = Grid(samples, batch, slots=1, epochs=3)
    assert grid.steps_per_epoch == steps
    assert grid.total_steps == 3 * steps


def test_the_cursor_moves_by_batches_and_starts_anew_with_each_epoch() -> None:
    starts = [GRID.cursor(step) for step in range(1, 7)]
    assert starts == [Cursor(0, 0), Cursor(0, 10), Cursor(0, 20), Cursor(1, 0), Cursor(1, 10), Cursor(1, 20)]


def test_the_cursor_after_the_last_step_is_the_end() -> None:
    assert GRID.cursor(7) == Cursor(2, 0)
    assert Grid(samples=5, batch=5, slots=1, epochs=1).cursor(2) == Cursor(1, 0)


@pytest.mark.parametrize("step", [-1, 0, 8, 10, 11])
def test_there_is_no_cursor_outside_the_job(step: int) -> None:
    with pytest.raises(BadInput, match=f"steps 1 to 6, not {step}"):
        GRID.cursor(step)


def test_turns_are_consecutive_steps_on_one_batch() -> None:
    grid = Grid(samples=23, batch=10, slots=4, epochs=2, turns=2)
    assert (grid.steps_per_epoch, grid.total_steps) == (6, 12)
    assert [grid.turn(step) for step in range(1, 9)] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [grid.size(step) for step in range(1, 9)] == [10, 10, 10, 10, 3, 3, 10, 10]
    for step in range(1, 12, 2):
        assert grid.cursor(step) == grid.cursor(step + 1)
        assert [grid.slot(step, slot) for slot in range(4)] == [grid.slot(step + 1, slot) for slot in range(4)]
    assert grid.cursor(13) == Cursor(2, 0)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_the_samples_up_to_a_step_are_those_of_its_steps(turns: int) -> None:
    grid = Grid(samples=23, batch=10, slots=4, epochs=2, turns=turns)
    counted = 0
    assert grid.samples_up_to(0) == 0
    for step in range(1, grid.total_steps + 1):
        counted += grid.size(step)
        assert grid.samples_up_to(step) == counted


def test_only_the_last_step_of_an_epoch_is_short() -> None:
    assert [GRID.size(step) for step in range(1, 7)] == [10, 10, 3, 10, 10, 3]


@pytest.mark.parametrize("step", [-1, 0, 7])
def test_a_step_outside_the_job_has_no_size_and_no_slots(step: int) -> None:
    for ask in (GRID.size, GRID.filled, lambda step: GRID.slot(step, 0)):
        with pytest.raises(BadInput, match=f"steps 1 to 6, not {step}"):
            ask(step)


def test_the_slots_of_a_full_step_differ_by_at_most_one_sample() -> None:
    assert [GRID.slot(1, slot) for slot in range(4)] == [range(2), range(2, 5), range(5, 7), range(7, 10)]
    assert [GRID.slot(5, slot) for slot in range(4)] == [
        range(10, 12),
        range(12, 15),
        range(15, 17),
        range(17, 20),
    ]


@pytest.mark.parametrize("slot", [-1, 4])
def test_a_slot_outside_the_grid_is_refused(slot: int) -> None:
    with pytest.raises(BadInput, match=f"slots 0 to 3, not {slot}"):
        GRID.slot(1, slot)


@pytest.mark.parametrize(
    ("size", "widths"),
    [
        (10, [2, 3, 2, 3]),
        (9, [2, 3, 2, 2]),
        (8, [2, 3, 3, 0]),  # one sample would be left in slot 3
        (7, [2, 3, 2, 0]),
        (6, [2, 4, 0, 0]),  # one sample would be left in slot 2
        (5, [2, 3, 0, 0]),
        (4, [2, 2, 0, 0]),
        (3, [3, 0, 0, 0]),  # one sample would be left in slot 1
        (2, [2, 0, 0, 0]),
        (1, [1, 0, 0, 0]),  # there is no slot before slot 0
    ],
)
def test_the_epochs_end_cuts_the_slots_and_leaves_no_sample_alone(size: int, widths: list[int]) -> None:
    grid = Grid(samples=20 + size, batch=10, slots=4, epochs=1)
    slots = [grid.slot(3, slot) for slot in range(4)]
    assert [len(slot) for slot in slots] == widths
    assert [position for slot in slots for position in slot] == list(range(20, 20 + size))
    assert grid.filled(3) == tuple(slot for slot in range(4) if widths[slot])


def test_an_empty_slot_lies_at_the_end_of_its_step() -> None:
    assert GRID.slot(3, 1) == GRID.slot(3, 3) == range(23, 23)
    assert (GRID.slot(3, 1).start, GRID.slot(3, 3).stop) == (23, 23)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_slots_of_one_sample_each_stay_as_they_are(size: int) -> None:
    grid = Grid(samples=4 + size, batch=4, slots=4, epochs=1)
    assert [len(grid.slot(2, slot)) for slot in range(4)] == [1] * size + [0] * (4 - size)


def test_a_lone_sample_of_a_wider_slot_joins_even_a_slot_of_one() -> None:
    grid = Grid(samples=5, batch=3, slots=2, epochs=1)
    assert [len(grid.slot(1, slot)) for slot in range(2)] == [1, 2]
    assert [len(grid.slot(2, slot)) for slot in range(2)] == [2, 0]


@pytest.mark.parametrize(
    ("slots", "weights", "runs"),
    [
        (8, [1], [range(8)]),
        (8, [1, 1], [range(4), range(4, 8)]),
        (8, [1, 1, 1], [range(2), range(2, 5), range(5, 8)]),
        (8, [3, 1], [range(6), range(6, 8)]),
        (8, [1, 0, 1], [range(4), range(4, 4), range(4, 8)]),
        (8, [0, 5], [range(0), range(8)]),
        (2, [1, 1, 1], [range(0), range(1), range(1, 2)]),
        (1, [1, 1], [range(0), range(1)]),
    ],
)
def test_slots_are_dealt_out_in_runs_by_weight(slots: int, weights: list[int], runs: list[range]) -> None:
    dealt = deal_slots(slots, weights)
    assert dealt == tuple(runs)
    assert [(run.start, run.stop) for run in dealt if run] == [(run.start, run.stop) for run in runs if run]


def test_a_member_must_own_the_slots() -> None:
    for weights in ([], [0], [0, 0]):
        with pytest.raises(BadInput, match="all weights are 0"):
            deal_slots(8, weights)


def test_a_weight_below_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="0 or more, not -1"):
        deal_slots(8, [2, -1])


def test_there_must_be_a_slot_to_deal_out() -> None:
    with pytest.raises(BadInput, match="at least 1 slot"):
        deal_slots(0, [1])


def test_missing_slots_are_those_no_member_kept() -> None:
    kept = [frozenset({5, 0, 1}), frozenset[int](), frozenset({3})]
    assert missing_slots(range(8), kept) == (2, 4, 6, 7)
    assert missing_slots((64, 10, 1), []) == (1, 10, 64)
    assert missing_slots(range(3), [frozenset({0, 1, 2})]) == ()


def test_a_kept_slot_without_samples_in_this_step_is_not_missing_nor_needed() -> None:
    assert missing_slots(GRID.filled(3), [frozenset({0, 3})]) == ()


def test_kept_sets_are_disjoint_if_no_slot_is_in_two() -> None:
    assert are_disjoint([])
    assert are_disjoint([frozenset({1, 2}), frozenset(), frozenset({0})])
    assert not are_disjoint([frozenset({1, 2}), frozenset({3}), frozenset({2})])
    assert are_disjoint(frozenset({rank}) for rank in range(3))


def test_missing_slots_are_dealt_out_one_by_one_in_rank_order() -> None:
    assert assign_missing((2, 4, 6, 7), (0, 1, 2)) == {0: (2, 7), 1: (4,), 2: (6,)}
    assert assign_missing((7, 2, 6, 4), (2, 0, 1)) == {0: (2, 7), 1: (4,), 2: (6,)}


def test_every_rank_has_an_entry_when_slots_are_redone() -> None:
    assert assign_missing((5,), (0, 3)) == {0: (5,), 3: ()}
    assert assign_missing((), (1,)) == {1: ()}


def test_a_slot_kept_by_one_member_is_not_computed_again_by_another() -> None:
    """H13: A kept 0-3, B 4-7, C (8-11) died; contiguous reassignment would count 4 and 5 twice."""
    kept = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
    again = assign_missing(missing_slots(range(12), kept.values()), tuple(kept))
    assert again == {0: (8, 10), 1: (9, 11)}
    assert are_disjoint(kept[rank].union(again[rank]) for rank in kept)


def test_a_member_must_be_there_to_redo_the_missing_slots() -> None:
    with pytest.raises(BadInput, match="at least one rank"):
        assign_missing((1, 2), ())


@pytest.mark.parametrize(("slots", "ranks"), [((1, 1), (0,)), ((1,), (0, 0))])
def test_nothing_is_redone_twice(slots: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="named once"):
        assign_missing(slots, ranks)


def test_a_member_without_samples_is_given_a_slot_that_has_some() -> None:
    assert [idle_slot(GRID, 1, rank) for rank in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [idle_slot(GRID, 3, rank) for rank in range(6)] == [0] * 6
    with pytest.raises(BadInput, match="ranks are counted from 0, not -1"):
        idle_slot(GRID, 1, -1)
