"""The findings of the audit: each test breaks a sound ledger in one way."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pliant.core.data import audit as whole_audit
from pliant.core.data import ledger_check
from pliant.core.data.audit import Audit
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import (
    GENESIS,
    LedgerLine,
    Lineage,
    add_digests,
    expected_digest,
    expected_slot_digest,
    make_line,
    slot_digest,
)
from pliant.core.data.ledger_check import LedgerCheck
from pliant.core.data.sample_order import Cursor, Order
from pliant.errors import BadInput

# Steps of 10, 10 and 3 samples in each of two epochs; slots of 2, 3, 2 and 3, and in a short step one of 3.
GRID = Grid(samples=23, batch=10, slots=4, epochs=2)
ORDER = Order(seed=5, samples=23)


def audit(
    grid: Grid,
    order: Order,
    lines: Sequence[LedgerLine],
    *,
    head: Lineage | None = None,
    finished: bool = False,
    expected: Callable[[Grid, Order, int], int] = expected_digest,
) -> Audit:
    """Audit a ledger whole and line by line: the check of lines confirms what is sound, and nothing else."""
    found = whole_audit.audit(grid, order, lines, head=head, finished=finished, expected=expected)
    checked = check(grid, order, lines, head=head, finished=finished, expected=expected)
    assert checked == (found if found.ok else None)
    return found


def check(
    grid: Grid,
    order: Order,
    lines: Sequence[LedgerLine],
    *,
    head: Lineage | None = None,
    finished: bool = False,
    expected: Callable[[Grid, Order, int], int] = expected_digest,
) -> Audit | None:
    under = LedgerCheck(grid, lambda now, steps: [expected(now, order, step) for step in steps])
    for line in lines:
        under.add(line)
    return under.result(head=head, finished=finished)


def promised(step: int) -> int:
    return expected_digest(GRID, ORDER, step)


def slot(step: int, number: int) -> int:
    return expected_slot_digest(GRID, ORDER, step, number)


def written(
    parent: Lineage, generation: int, step: int, *, digest: int | None = None, samples: int | None = None
) -> LedgerLine:
    """Write a line as a member would; a digest or a count may be wrong, as a bug would have it."""
    return make_line(
        parent,
        generation,
        step,
        GRID.cursor(step),
        GRID.size(step) if samples is None else samples,
        promised(step) if digest is None else digest % 2**64,
    )


def history(steps: Sequence[int], *, parent: Lineage = GENESIS, generation: int = 1) -> list[LedgerLine]:
    """Write the lines of these steps, one after the other, as honest members would."""
    lines: list[LedgerLine] = []
    for step in steps:
        lines.append(written(parent, generation, step))
        parent = lines[-1].lineage
    return lines


def with_step(step: int, *, digest: int | None = None, samples: int | None = None) -> Audit:
    """Audit a finished job in which one step was counted like this and the rest as promised."""
    lines = history(range(1, step))
    lines.append(written(lines[-1].lineage, 1, step, digest=digest, samples=samples))
    lines += history(range(step + 1, 7), parent=lines[-1].lineage)
    return audit(GRID, ORDER, lines, finished=True)


def test_each_turn_on_a_batch_counts_its_samples() -> None:
    grid, lines, parent = replace(GRID, turns=2), list[LedgerLine](), GENESIS
    for step in range(1, 13):
        digest = expected_digest(grid, ORDER, step)
        lines.append(make_line(parent, 1, step, grid.cursor(step), grid.size(step), digest))
        parent = lines[-1].lineage
    assert audit(grid, ORDER, lines, finished=True) == Audit(92, 0, 0, 12, 0, ())
    assert audit(grid, ORDER, lines[:-1], finished=True).lost == 3
    assert audit(GRID, ORDER, lines[:6], finished=True).lost > 0


def test_a_whole_history_is_sound() -> None:
    assert audit(GRID, ORDER, history(range(1, 7)), finished=True) == Audit(46, 0, 0, 6, 0, ())


@pytest.mark.parametrize(("steps", "samples"), [(0, 0), (1, 10), (2, 20), (3, 23), (4, 33), (6, 46)])
def test_a_history_is_sound_as_far_as_it_goes(steps: int, samples: int) -> None:
    found = audit(GRID, ORDER, history(range(1, steps + 1)))
    assert found == Audit(samples, lost=0, repeated=0, steps=steps, rolled_back=0, problems=())
    assert found.ok


def test_a_finished_job_must_have_all_its_steps() -> None:
    found = audit(GRID, ORDER, history(range(1, 5)), finished=True)
    assert (found.samples, found.lost, found.steps, found.ok) == (46, 13, 4, False)
    assert found.problems == ("steps 5 to 6 are not in the committed history: 13 samples lost",)
    assert audit(GRID, ORDER, [], finished=True).lost == 46


def test_generations_may_follow_one_another_in_one_history() -> None:
    lines = history([1, 2])
    lines += history([3, 4], parent=lines[-1].lineage, generation=4)
    assert audit(GRID, ORDER, lines).ok


@pytest.mark.parametrize(
    ("slots", "lost", "where"),
    [
        ((0,), 2, "slots 0 to 0 (epoch 1, positions 10 to 11)"),
        ((3,), 3, "slots 3 to 3 (epoch 1, positions 17 to 19)"),
        ((1, 2), 5, "slots 1 to 2 (epoch 1, positions 12 to 16)"),
        ((0, 1, 2, 3), 10, "slots 0 to 3 (epoch 1, positions 10 to 19)"),
    ],
)
def test_a_run_of_slots_left_out_is_lost(slots: tuple[int, ...], lost: int, where: str) -> None:
    """H15: the victim's slots are forgotten while the cursor advances."""
    digest = promised(5) - sum(slot(5, number) for number in slots)
    found = with_step(5, digest=digest, samples=10 - lost)
    assert (found.samples, found.lost, found.repeated, found.ok) == (46, lost, 0, False)
    assert found.problems == (f"step 5: {where} were left out: {lost} samples lost",)


@pytest.mark.parametrize(
    ("slots", "repeated", "where"),
    [
        ((0,), 2, "slots 0 to 0 (epoch 0, positions 10 to 11)"),
        ((2, 3), 5, "slots 2 to 3 (epoch 0, positions 15 to 19)"),
        ((0, 1, 2, 3), 10, "slots 0 to 3 (epoch 0, positions 10 to 19)"),
    ],
)
def test_a_run_of_slots_counted_twice_is_repeated(slots: tuple[int, ...], repeated: int, where: str) -> None:
    """H13: slots that a survivor had kept are computed again."""
    digest = promised(2) + sum(slot(2, number) for number in slots)
    found = with_step(2, digest=digest, samples=10 + repeated)
    assert (found.samples, found.lost, found.repeated, found.ok) == (46, 0, repeated, False)
    assert found.problems == (f"step 2: {where} were counted twice: {repeated} samples repeated",)


def test_slots_that_read_one_anothers_samples_are_not_what_was_promised() -> None:
    epoch, zero, two = GRID.cursor(4).epoch, GRID.slot(4, 0), GRID.slot(4, 2)
    digest = promised(4) - slot(4, 0) - slot(4, 2)
    digest += slot_digest(4, 0, ORDER.take(epoch, two)) + slot_digest(4, 2, ORDER.take(epoch, zero))
    found = with_step(4, digest=digest)
    assert (found.lost, found.repeated) == (10, 0)
    assert list(found.problems) == [
        (
            "step 4 has a wrong digest: the samples really read are not those promised, "
            "so its 10 samples count as lost (its line counts 10)"
        )
    ]


def test_slots_left_out_apart_from_one_another_cannot_be_told_and_lose_the_step() -> None:
    found = with_step(4, digest=promised(4) - slot(4, 0) - slot(4, 2), samples=6)
    assert (found.lost, found.repeated) == (10, 0)
    assert "its line counts 6" in found.problems[0]


def test_one_sample_read_in_place_of_another_is_seen() -> None:
    read = list(ORDER.take(0, GRID.slot(3, 0)))
    read[-1] = read[0]
    found = with_step(3, digest=slot_digest(3, 0, read))
    assert (found.lost, len(found.problems)) == (3, 1)


def test_the_samples_of_another_seed_are_all_lost() -> None:
    found = audit(GRID, Order(seed=6, samples=23), history(range(1, 7)), finished=True)
    assert (found.lost, found.repeated, len(found.problems)) == (46, 0, 6)


@pytest.mark.parametrize(("samples", "lost", "repeated"), [(8, 2, 0), (11, 0, 1)])
def test_a_count_that_disagrees_with_its_digest_is_a_problem(samples: int, lost: int, repeated: int) -> None:
    found = with_step(2, samples=samples)
    assert (found.lost, found.repeated) == (lost, repeated)
    assert found.problems == (f"step 2 holds 10 samples, but its line counts {samples}",)


@pytest.mark.parametrize("cursor", [Cursor(0, 10), Cursor(1, 0)])
def test_a_wrong_cursor_is_a_problem_though_the_samples_are_right(cursor: Cursor) -> None:
    found = audit(GRID, ORDER, [make_line(GENESIS, 1, 1, cursor, 10, promised(1))])
    assert (found.lost, found.repeated, found.ok) == (0, 0, False)
    says = f"its line has epoch {cursor.epoch}, position {cursor.position}"
    assert found.problems == (f"step 1 starts at epoch 0, position 0, but {says}",)


def test_a_missing_step_is_lost() -> None:
    found = audit(GRID, ORDER, history([1, 2, 5, 6]), finished=True)
    assert (found.lost, found.repeated, found.steps) == (13, 0, 4)
    assert found.problems == (
        "the line of step 5 in generation 1 has a parent at step 2: steps must follow one another",
        "steps 3 to 4 are not in the committed history: 13 samples lost",
    )


def test_a_first_step_that_is_missing_is_lost_too() -> None:
    found = audit(GRID, ORDER, history([2, 3]))
    assert (found.samples, found.lost) == (23, 10)
    assert found.problems[-1] == "steps 1 to 1 are not in the committed history: 10 samples lost"


def test_runs_of_missing_steps_are_told_in_sequence() -> None:
    grid = Grid(samples=100, batch=1, slots=1, epochs=1)
    order = Order(seed=5, samples=100)
    lines: list[LedgerLine] = []
    parent = GENESIS
    for step in (1, 2, 64, 90):
        lines.append(make_line(parent, 1, step, grid.cursor(step), 1, expected_digest(grid, order, step)))
        parent = lines[-1].lineage
    found = audit(grid, order, lines)
    assert (found.samples, found.lost, found.steps) == (90, 86, 4)
    assert found.problems[-2:] == (
        "steps 3 to 63 are not in the committed history: 61 samples lost",
        "steps 65 to 89 are not in the committed history: 25 samples lost",
    )


def test_a_step_committed_twice_is_repeated() -> None:
    found = audit(GRID, ORDER, history([1, 2, 3, 3, 4]))
    assert (found.samples, found.lost, found.repeated, found.steps) == (33, 0, 3, 5)
    assert found.problems == (
        "the line of step 3 in generation 1 has a parent at step 3: steps must follow one another",
        "step 3 is committed twice: 3 samples repeated",
    )


def test_steps_beyond_the_jobs_end_are_repeated() -> None:
    lines = history(range(1, 7))
    lines.append(make_line(lines[-1].lineage, 1, 7, Cursor(2, 0), 10, 1))
    found = audit(GRID, ORDER, lines)
    assert (found.samples, found.lost, found.repeated, found.steps) == (46, 0, 10, 7)
    assert found.problems == ("step 7 is committed, but the job has steps 1 to 6: 10 samples were used beyond its end",)


def test_a_step_before_the_first_is_no_step() -> None:
    found = audit(GRID, ORDER, [make_line(GENESIS, 1, 0, Cursor(0, 0), 10, 1)])
    assert (found.samples, found.lost, found.repeated, found.steps) == (0, 0, 10, 1)
    assert not found.ok


def test_a_negative_step_is_reported_and_not_tripped_over() -> None:
    found = audit(GRID, ORDER, [LedgerLine(Lineage(1, -3, 1), GENESIS, 0, 0, 10, 1)])
    assert (found.samples, found.lost, found.repeated) == (0, 0, 10)
    assert len(found.problems) == 3


def test_history_that_goes_back_to_an_earlier_step_is_reported() -> None:
    found = audit(GRID, ORDER, history([1, 2, 5, 3]))
    assert (found.samples, found.lost, found.steps) == (23, 0, 4)
    assert len(found.problems) == 2


def test_an_altered_line_is_a_problem() -> None:
    lines = history(range(1, 4))
    lines[1] = replace(lines[1], position=11)
    found = audit(GRID, ORDER, lines)
    assert (found.lost, found.repeated, found.steps) == (0, 0, 3)
    assert found.problems[0] == (
        "the line of step 2 in generation 1 was altered: its digest does not cover its content"
    )


def test_an_altered_line_is_a_problem_off_the_committed_history_too() -> None:
    lines = history(range(1, 4))
    lines[2] = replace(lines[2], samples=2)
    lines += history([3], parent=lines[1].lineage, generation=2)
    assert audit(GRID, ORDER, lines).problems == (
        "the line of step 3 in generation 1 was altered: its digest does not cover its content",
    )


def test_everything_below_a_broken_link_is_lost() -> None:
    lines = history(range(1, 7))
    del lines[2]
    found = audit(GRID, ORDER, lines, finished=True)
    assert (found.samples, found.lost, found.steps, found.rolled_back) == (46, 23, 3, 2)
    assert "the line of step 4 in generation 1 has a parent that was not accepted before it" in (found.problems[0])
    assert found.problems[-1] == "steps 1 to 3 are not in the committed history: 23 samples lost"


def test_a_parent_accepted_after_its_child_does_not_count() -> None:
    first, second = history([1, 2])
    found = audit(GRID, ORDER, [second, first])
    assert (found.samples, found.steps, found.rolled_back, found.ok) == (10, 1, 1, False)
    assert audit(GRID, ORDER, [second, first], head=second.lineage).lost == 10


def test_lines_that_are_one_anothers_parents_end_the_walk() -> None:
    here, there = Lineage(1, 1, 8), Lineage(1, 2, 9)
    lines = [LedgerLine(here, there, 0, 0, 10, promised(1)), LedgerLine(there, here, 0, 10, 10, promised(2))]
    found = audit(GRID, ORDER, lines)
    assert (found.steps, found.ok) == (2, False)


def test_a_line_accepted_twice_is_a_problem_but_repeats_no_sample() -> None:
    lines = history([1, 2])
    found = audit(GRID, ORDER, [*lines, lines[1]])
    assert (found.repeated, found.steps, found.rolled_back) == (0, 2, 0)
    assert found.problems == ("the line of step 2 in generation 1 was accepted twice",)


def test_rolled_back_steps_are_shown_apart() -> None:
    lines = history(range(1, 5))
    lines += history(range(3, 7), parent=lines[1].lineage, generation=2)
    assert audit(GRID, ORDER, lines, finished=True) == Audit(46, 0, 0, 6, rolled_back=2, problems=())


def test_what_a_rolled_back_step_read_is_no_member_s_loss() -> None:
    lines = history([1])
    lines.append(written(lines[0].lineage, 1, 2, digest=123))
    lines += history([2, 3], parent=lines[0].lineage, generation=2)
    assert audit(GRID, ORDER, lines) == Audit(23, 0, 0, 3, rolled_back=1, problems=())


def test_a_rollback_to_the_very_beginning_leaves_nothing_of_what_was() -> None:
    lines = history(range(1, 4))
    lines += history([1], generation=2)
    assert audit(GRID, ORDER, lines) == Audit(10, 0, 0, 1, rolled_back=3, problems=())


def test_a_rollback_over_a_rollback_keeps_the_chain_of_bases() -> None:
    lines = history(range(1, 5))
    lines += history(range(3, 6), parent=lines[1].lineage, generation=3)
    lines += history(range(4, 7), parent=lines[4].lineage, generation=7)
    assert audit(GRID, ORDER, lines, finished=True) == Audit(46, 0, 0, 6, rolled_back=4, problems=())


def test_after_a_rollback_without_a_step_the_head_is_its_base() -> None:
    lines = history(range(1, 5))
    assert audit(GRID, ORDER, lines, head=lines[1].lineage) == Audit(20, 0, 0, 2, rolled_back=2, problems=())
    assert audit(GRID, ORDER, lines, head=GENESIS) == Audit(0, 0, 0, 0, rolled_back=4, problems=())


def test_a_head_that_is_not_in_the_ledger_is_a_problem() -> None:
    found = audit(GRID, ORDER, history([1]), head=Lineage(9, 2, 1))
    assert (found.samples, found.lost, found.steps, found.rolled_back) == (20, 20, 0, 1)
    assert found.problems[0] == "the head, step 2 in generation 9, is not in the ledger"


def test_a_line_accepted_from_a_fenced_generation_is_a_problem() -> None:
    lines = history([1], generation=2)
    lines += history([2], parent=lines[0].lineage, generation=1)
    assert audit(GRID, ORDER, lines).problems == (
        "the line of step 2 in generation 1 was accepted after generation 2, which fences it (P6)",
    )


def test_a_second_branch_within_a_generation_is_a_problem() -> None:
    lines = history([1, 2], generation=2)
    lines.append(make_line(lines[0].lineage, 2, 2, GRID.cursor(2), 9, promised(2)))
    assert audit(GRID, ORDER, lines).problems[0] == (
        "the line of step 2 in generation 2 is a second branch in its generation: only a rollback world may start one"
    )


def test_a_branch_of_a_later_generation_is_a_rollback_and_no_problem() -> None:
    lines = history([1, 2], generation=2)
    lines += history([2], parent=lines[0].lineage, generation=3)
    assert audit(GRID, ORDER, lines).ok


def test_a_quicker_expectation_may_be_passed_and_is_believed() -> None:
    asked: list[int] = []

    def quick(grid: Grid, order: Order, step: int) -> int:
        asked.append(step)
        return expected_digest(grid, order, step)

    assert audit(GRID, ORDER, history([1, 2]), expected=quick).ok
    assert asked == [1, 2] * 2


def test_an_expectation_that_disagrees_with_the_core_is_a_wrong_digest() -> None:
    found = audit(GRID, ORDER, history([1]), expected=lambda grid, order, step: 0)
    assert (found.lost, len(found.problems)) == (10, 1)
    assert "wrong digest" in found.problems[0]


def test_digests_are_summed_within_64_bits_when_they_are_explained() -> None:
    """Of six steps with four slots each some sums are past 64 bits, whatever the seed."""
    for step in (1, 2, 4, 5):
        for number in range(4):
            twice = audit(
                GRID,
                ORDER,
                [*history(range(1, step)), *_wrong(step, add_digests(promised(step), slot(step, number)))],
            )
            assert (twice.lost, twice.repeated) == (0, len(GRID.slot(step, number)))
            never = audit(GRID, ORDER, [*history(range(1, step)), *_wrong(step, promised(step) - slot(step, number))])
            assert (never.lost, never.repeated) == (len(GRID.slot(step, number)), 0)


def _wrong(step: int, digest: int) -> list[LedgerLine]:
    parent = history(range(1, step))[-1].lineage if step > 1 else GENESIS
    return [written(parent, 1, step, digest=digest)]


def test_grid_and_order_must_be_of_the_same_data() -> None:
    with pytest.raises(BadInput, match="the grid has 23 samples and the order 22"):
        audit(GRID, Order(5, 22), [])


# ------------------------------------------------------------------------------------- checked line by line


@pytest.mark.parametrize("at_once", [1, 2, 3, 4096])
def test_digests_are_compared_in_groups_of_any_size(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_check, "DIGESTS_AT_ONCE", at_once)
    sound = history(range(1, 7))
    assert check(GRID, ORDER, sound, finished=True) == whole_audit.audit(GRID, ORDER, sound, finished=True)
    for wrong in range(1, 7):
        lines = history(range(1, wrong))
        parent = lines[-1].lineage if lines else GENESIS
        lines.append(written(parent, 1, wrong, digest=7))
        lines += history(range(wrong + 1, 7), parent=lines[-1].lineage)
        assert check(GRID, ORDER, lines, finished=True) is None
        # Rolled back before its digest was compared, or after: then the whole audit decides.
        again = history(range(wrong, 7), parent=parent, generation=2)
        found = check(GRID, ORDER, [*lines, *again], finished=True)
        assert found in (None, whole_audit.audit(GRID, ORDER, [*lines, *again], finished=True))
        assert at_once < 4096 or found is not None


def test_an_order_that_cannot_be_recomputed_is_checked_without_digests() -> None:
    under = LedgerCheck(GRID, None)
    under.add(written(GENESIS, 1, 1, digest=7))
    assert under.result() == Audit(10, 0, 0, 1, 0, ())


def test_a_line_off_the_chain_as_parent_leaves_the_decision_to_the_whole_audit() -> None:
    first = history(range(1, 4))
    second = history([2], parent=first[0].lineage, generation=2)
    third = history([4], parent=first[2].lineage, generation=3)
    assert whole_audit.audit(GRID, ORDER, [*first, *second, *third]).ok
    assert check(GRID, ORDER, [*first, *second, *third]) is None
