"""Parts of a step and the samples they hold (P3, rules 21 and 22)."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data import ledger
from pliant.core.data.grid import Grid, change_batch, deal_slots
from pliant.core.data.sample_order import Order
from pliant.errors import BadInput
from pliant.train.data import order as arrays
from pliant.train.data.loader import (
    BLOCKS_KEPT,
    EPOCHS_KEPT,
    MicroBatch,
    SampleError,
    SampleIndices,
    check_micro_batch,
    cut_micro_batches,
    digest_read,
    epoch_seeds,
    micro_batch_seeds,
    sample_seeds,
)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    batch = draw(st.integers(1, 40))
    slots, turns = draw(st.integers(1, batch)), draw(st.integers(1, 3))
    return Grid(draw(st.integers(1, 150)), batch, slots, draw(st.integers(1, 3)), turns)


def sizes(grid: Grid, parts: Iterable[MicroBatch]) -> list[int]:
    return [sum(len(grid.slot(part.step, slot)) for slot in part.slots) for part in parts]


def test_without_a_cap_all_slots_are_one_part() -> None:
    assert cut_micro_batches(Grid(64, 16, 16, 1), 2, [5, 3, 4], None) == (MicroBatch(2, (3, 4, 5)),)


def test_parts_are_as_equal_as_the_cap_allows() -> None:
    grid = Grid(640, 64, 64, 1)
    parts = cut_micro_batches(grid, 1, range(10), 4)
    assert sizes(grid, parts) == [3, 4, 3]
    assert [slot for part in parts for slot in part.slots] == list(range(10))


def test_slots_of_many_samples_are_cut_between_them() -> None:
    grid = Grid(2560, 256, 16, 1)
    assert [part.slots for part in cut_micro_batches(grid, 1, range(4, 9), 40)] == [(4, 5), (6,), (7, 8)]


def test_any_set_of_slots_can_be_cut() -> None:
    grid = Grid(640, 64, 64, 1)
    assert [part.slots for part in cut_micro_batches(grid, 1, {60, 1, 30, 2}, 2)] == [(1, 2), (30, 60)]


def test_slots_without_samples_are_left_out() -> None:
    grid = Grid(10, 8, 8, 1)
    assert cut_micro_batches(grid, 2, range(8), 8) == (MicroBatch(2, (0, 1)),)
    assert cut_micro_batches(grid, 2, range(4, 8), 8) == ()
    assert cut_micro_batches(grid, 2, [], None) == ()


@given(grids(), st.data())
def test_parts_hold_every_owned_slot_once_and_keep_the_cap(grid: Grid, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    owned = data.draw(st.sets(st.integers(0, grid.slots - 1)))
    widest = max(len(grid.slot(at, slot)) for at in (1, grid.steps_per_epoch) for slot in range(grid.slots))
    cap = data.draw(st.integers(widest, grid.batch + 1))
    parts = cut_micro_batches(grid, step, owned, cap)
    assert [slot for part in parts for slot in part.slots] == sorted(owned & set(grid.filled(step)))
    assert all(1 <= size <= cap for size in sizes(grid, parts))
    if grid.slots == grid.batch and parts:
        found = sizes(grid, parts)
        assert len(found) == -(-sum(found) // cap)
        assert max(found) - min(found) <= 1


@given(grids())
def test_parts_of_all_members_are_the_whole_step(grid: Grid) -> None:
    for members in (1, 2, 3):
        runs = deal_slots(grid.slots, [1] * members)
        for step in (1, grid.total_steps):
            owned = [slot for run in runs for part in cut_micro_batches(grid, step, run, None) for slot in part.slots]
            assert owned == list(grid.filled(step))


def test_a_slot_wider_than_the_cap_is_refused_with_what_to_do() -> None:
    grid = Grid(100, 32, 4, 1)
    with pytest.raises(BadInput, match=r"up to 8 samples .* micro_batch=7 .* raise micro_batch to 8, or raise slots"):
        check_micro_batch(grid, 7)
    with pytest.raises(BadInput, match="cannot be split"):
        cut_micro_batches(grid, 1, range(4), 7)
    check_micro_batch(grid, 8)
    check_micro_batch(grid, None)


def test_the_lone_last_sample_counts_for_the_widest_slot() -> None:
    grid = Grid(32 + 17, 32, 4, 1)  # the last step's third slot would hold one sample: its second holds nine
    assert len(grid.slot(2, 1)) == 9
    with pytest.raises(BadInput, match="up to 9 samples"):
        check_micro_batch(grid, 8)


@pytest.mark.parametrize("micro_batch", [0, -3])
def test_a_cap_below_one_is_refused(micro_batch: int) -> None:
    with pytest.raises(BadInput, match="at least 1"):
        check_micro_batch(Grid(10, 5, 5, 1), micro_batch)


@pytest.mark.parametrize("slots", [[-1, 0], [4], [0, 9]])
def test_slots_beyond_the_grid_are_refused(slots: list[int]) -> None:
    with pytest.raises(BadInput, match="slots 0 to 3"):
        cut_micro_batches(Grid(16, 4, 4, 1), 1, slots, None)


@pytest.mark.parametrize("slots", [(), (1, 1), (2, 1)])
def test_a_part_has_ascending_slots(slots: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="in ascending order"):
        MicroBatch(1, slots)


@given(grids(), st.integers(-5, 5), st.data())
def test_shuffled_samples_are_those_of_the_canonical_order(grid: Grid, seed: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    slots = data.draw(st.sets(st.sampled_from(grid.filled(step)), min_size=1))
    part = MicroBatch(step, tuple(sorted(slots)))
    order = Order(seed, grid.samples)
    epoch = grid.cursor(step).epoch
    plan = SampleIndices(grid, seed=seed).plan_read(part)
    wanted = [order.take(epoch, grid.slot(step, slot)) for slot in part.slots]
    assert plan.samples.dtype == np.int64
    assert plan.samples.tolist() == [sample for samples in wanted for sample in samples]
    assert list(plan.sizes) == [len(samples) for samples in wanted]
    assert (plan.micro_batch, plan.epoch) == (part, epoch)


@given(grids(), st.integers(0, 3))
def test_what_is_expected_of_a_step_is_what_the_audit_expects(grid: Grid, seed: int) -> None:
    indices = SampleIndices(grid, seed=seed)
    for step in {1, grid.total_steps}:
        assert indices.expected(step) == ledger.expected_digest(grid, Order(seed, grid.samples), step)
        assert indices.expected(step) == arrays.expected_digest(grid, Order(seed, grid.samples), step)


@given(grids(), st.data())
def test_the_digests_of_parts_add_up_to_what_is_expected(grid: Grid, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, grid.total_steps))
    cap = data.draw(st.integers(len(grid.slot(step, 0)) + 2, grid.batch + 2))
    indices = SampleIndices(grid, seed=1)
    total = 0
    for part in cut_micro_batches(grid, step, range(grid.slots), max(cap, -(-grid.batch // grid.slots) + 1)):
        plan = indices.plan_read(part)
        total += digest_read(part, plan.samples, np.cumsum(plan.sizes).tolist())
    assert total % 2**64 == indices.expected(step)


def test_one_slot_is_the_same_alone_as_in_a_part() -> None:
    indices = SampleIndices(Grid(100, 24, 8, 1), seed=3)
    together = indices.of_micro_batch(MicroBatch(2, (1, 3, 4)))
    assert together.tolist() == [sample for slot in (1, 3, 4) for sample in indices.of(2, slot).tolist()]


def test_sequential_samples_come_in_sequence_in_every_epoch() -> None:
    indices = SampleIndices(Grid(10, 4, 2, 2), seed=9, order="sequential")
    for first in (1, 4):
        parts = [MicroBatch(first, (0, 1)), MicroBatch(first + 1, (0, 1)), MicroBatch(first + 2, (0,))]
        assert [indices.of_micro_batch(part).tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert indices.fingerprint == "sequential"


def backwards(epoch: int) -> Iterable[int]:
    return np.roll(np.arange(10)[::-1], epoch)


@pytest.mark.parametrize("form", [np.asarray, list, tuple, iter, lambda given: np.asarray(given, dtype=np.uint8)])
def test_a_function_orders_each_epoch(form: Callable[[Iterable[int]], Iterable[int]]) -> None:
    indices = SampleIndices(Grid(10, 5, 5, 2), seed=9, order=lambda epoch: form(backwards(epoch)))
    whole = [indices.of_micro_batch(MicroBatch(step, (0, 1, 2, 3, 4))).tolist() for step in (1, 2, 3, 4)]
    assert whole == [[9, 8, 7, 6, 5], [4, 3, 2, 1, 0], [0, 9, 8, 7, 6], [5, 4, 3, 2, 1]]


def test_a_function_is_called_once_for_an_epoch() -> None:
    calls: list[int] = []

    def order(epoch: int) -> Iterable[int]:
        calls.append(epoch)
        return backwards(epoch)

    indices = SampleIndices(Grid(10, 2, 2, EPOCHS_KEPT), seed=0, order=order)
    for step in range(1, 5 * EPOCHS_KEPT + 1):
        indices.of(step, 0)
        indices.of(step, 1)
    assert calls == list(range(EPOCHS_KEPT))


def test_a_long_run_forgets_what_it_passed() -> None:
    indices = SampleIndices(Grid(10, 2, 2, 40), seed=0, order=backwards)
    for step in range(1, 201):
        indices.of(step, 0)
    assert len(indices._blocks) == BLOCKS_KEPT
    assert len(indices._epochs) == EPOCHS_KEPT
    assert indices.of(1, 0).tolist() == [9]


def test_the_fingerprint_tells_orders_apart() -> None:
    grid = Grid(10, 5, 5, 2)
    shuffled = SampleIndices(grid, seed=1).fingerprint
    function = SampleIndices(grid, seed=1, order=backwards).fingerprint
    other = SampleIndices(grid, seed=1, order=lambda epoch: backwards(epoch + 1)).fingerprint
    assert (shuffled, function.split()[0]) == ("shuffled", "function")
    assert function != other
    assert function == SampleIndices(grid, seed=2, order=backwards).fingerprint
    assert SampleIndices(grid, seed=1, order=backwards).epoch_fingerprint(1) == other.split()[1]


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        ([0, 1, 2], r"order\(0\) returned 3 indices, but an epoch of this job has 4: return 4 for every epoch"),
        ([0, 1, 2, 3, 0], "returned 5 indices, but an epoch of this job has 4"),
        ([0, 1, 2, 4], "returned index 4, but samples are numbered 0 to 3"),
        ([0, -1, 2, 3], "returned index -1"),
        ([0.0, 1.0, 2.0, 3.0], "array of float64"),
        (["a", "b", "c", "d"], "must return integers"),
        ([[0, 1], [2, 3]], r"shape \(2, 2\)"),
        ([[0], [1, 2], [3]], "must return integers"),
        ([True, False, True, False], "array of bool"),
    ],
    ids=str,
)
def test_a_function_that_gives_no_order_of_the_data_is_refused(gives: list[int], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        SampleIndices(Grid(4, 2, 2, 1), seed=0, order=lambda epoch: gives).of(1, 0)


def test_a_function_may_repeat_samples_and_leave_some_out() -> None:
    indices = SampleIndices(Grid(6, 3, 3, 2), seed=0, order=lambda epoch: [9, 9, 0, epoch, 4, 4], data=10)
    assert indices.of_micro_batch(MicroBatch(1, (0, 1, 2))).tolist() == [9, 9, 0]
    assert indices.of_micro_batch(MicroBatch(4, (0, 1, 2))).tolist() == [1, 4, 4]
    part = MicroBatch(1, (0, 1, 2))
    assert indices.expected(1) == digest_read(part, [9, 9, 0], [1, 2, 3])
    assert indices.expected(1) != digest_read(part, [9, 0, 9], [1, 2, 3])
    with pytest.raises(BadInput, match="index 10, but samples are numbered 0 to 9"):
        SampleIndices(Grid(6, 3, 3, 2), seed=0, order=lambda epoch: [10] * 6, data=10).of(1, 0)


def test_a_sample_that_occurs_twice_is_planned_with_its_positions() -> None:
    indices = SampleIndices(
        Grid(4, 3, 3, 2), seed=0, order=lambda epoch: [5, 5, 1, 0] if epoch else [0, 1, 2, 3], data=6
    )
    assert indices.plan_read(MicroBatch(1, (0, 2))).positions is None
    found = indices.plan_read(MicroBatch(3, (0, 2))).positions
    assert found is not None
    assert found.tolist() == [0, 2]
    found = indices.plan_read(MicroBatch(4, (0,))).positions
    assert found is not None
    assert found.tolist() == [3]


@pytest.mark.parametrize("samples", [4, 25])
def test_epochs_of_another_length_go_on_through_the_data_pass_after_pass(samples: int) -> None:
    grid = Grid(samples, 4, 2, 10)
    for order in ("shuffled", "sequential"):
        indices = SampleIndices(grid, seed=3, order=order, data=10)
        read = [
            indices.of_micro_batch(MicroBatch(step, tuple(grid.filled(step))))
            for step in range(1, grid.total_steps + 1)
        ]
        row = np.concatenate(read).tolist()
        passes = [row[at : at + 10] for at in range(0, len(row), 10)]
        assert all(sorted(each) == list(range(10)) for each in passes)
        assert (passes[0] == passes[1]) == (order == "sequential")
    assert indices.plan_read(MicroBatch(1, (0, 1))).positions is not None


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(BadInput, match='"shuffled", "sequential" or a function'):
        SampleIndices(Grid(4, 2, 2, 1), seed=0, order="random")


@pytest.mark.parametrize("slots", [(-1, 0), (1, 2), (5,)])
def test_a_part_of_slots_without_samples_is_refused(slots: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="step 2 has samples in slots 0 to 1"):
        SampleIndices(Grid(6, 4, 4, 1), seed=0).plan_read(MicroBatch(2, slots))


def test_a_step_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(BadInput, match="steps 1 to 2"):
        SampleIndices(Grid(6, 4, 4, 1), seed=0).plan_read(MicroBatch(3, (0,)))


def test_the_digest_is_that_of_the_ledger() -> None:
    part = MicroBatch(3, (1, 4))
    wanted = ledger.add_digests(ledger.slot_digest(3, 1, [7, 8]), ledger.slot_digest(3, 4, [9]))
    assert digest_read(part, [7, 8, 9], [2, 3]) == wanted
    assert digest_read(part, np.array([7, 8, 9]), [2, 3]) == wanted
    assert digest_read(part, [7, 8], [2, 2]) == ledger.slot_digest(3, 1, [7, 8])
    assert digest_read(part, [], [0, 0]) == 0


@pytest.mark.parametrize(
    ("read", "ends"), [([7, 8], [2, 2]), ([8, 7, 9], [2, 3]), ([7, 8, 9], [1, 3]), ([7, 8, 9, 9], [2, 4])]
)
def test_any_other_reading_has_another_digest(read: list[int], ends: list[int]) -> None:
    part = MicroBatch(3, (1, 4))
    assert digest_read(part, read, ends) != digest_read(part, [7, 8, 9], [2, 3])


@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("slots", [(0, 1, 2), (1,), (0, 2)])
@pytest.mark.parametrize("kind", [list, np.asarray])
def test_the_digest_of_the_order_is_that_of_any_reading(step: int, slots: tuple[int, ...], kind: Any) -> None:
    indices = SampleIndices(Grid(13, 7, 3, 3), seed=4)
    part = MicroBatch(step, slots)
    plan = indices.plan_read(part)
    read, ends = plan.samples.tolist(), np.cumsum(plan.sizes).tolist()
    assert indices.digest_read(part, kind(read), ends) == digest_read(part, read, ends)
    for other_read, other_ends in (
        ([*read[1:], read[0]], ends),
        ([*read, 3], [*ends[:-1], ends[-1] + 1]),
        (read, [ends[0] - 1, *ends[1:]]),
    ):
        found = indices.digest_read(part, kind(other_read), other_ends)
        assert found == digest_read(part, other_read, other_ends)


def test_the_digest_follows_a_change_of_the_batch() -> None:
    indices = SampleIndices(Grid(12, 4, 2, 3), seed=4)
    for step in (1, 2, 3, 4):
        if step == 3:
            indices.set_grid(change_batch(indices.grid, 2, 2))
        part = MicroBatch(step, (0, 1))
        plan = indices.plan_read(part)
        read, ends = plan.samples.tolist(), np.cumsum(plan.sizes).tolist()
        assert indices.digest_read(part, read, ends) == digest_read(part, read, ends) == indices.expected(step)


def test_keys_depend_on_everything_they_are_made_of_and_are_pinned() -> None:
    part = MicroBatch(5, (2, 3))
    keys = {
        sample_seeds(1, 2, 3),
        sample_seeds(1, 3, 2),
        sample_seeds(2, 1, 3),
        sample_seeds(1, 2, 3, 0),
        sample_seeds(1, 2, 3, 1),
        epoch_seeds(1, 2),
        epoch_seeds(2, 1),
        sample_seeds(-1, 2, 3),
        sample_seeds(2**100, 2, 3),
        micro_batch_seeds(1, part),
        micro_batch_seeds(2, part),
        micro_batch_seeds(1, MicroBatch(6, (2, 3))),
        micro_batch_seeds(1, MicroBatch(5, (3,))),
    }
    assert len(keys) == 13
    assert all(0 <= word < 2**64 for key in keys for word in key)
    # A resumed job must augment as it did before: these values are a promise.
    assert sample_seeds(7, 1, 42)[0] == 2234856463806198584


def test_a_failed_sample_is_named_with_its_place_and_its_traceback() -> None:
    error = SampleError(MicroBatch(4, (1, 2)), (2,), (77,), "Traceback ...\nKeyError: 3\n")
    assert error.why == "sample 77 of step 4, slot 2, could not be read:\nTraceback ...\nKeyError: 3"
    assert (error.slot, error.sample) == (2, 77)


def test_samples_that_failed_together_are_all_named() -> None:
    error = SampleError(MicroBatch(4, (1, 2)), (1, 2), (77, 78, 79), "KeyError: 3")
    assert error.why.startswith("3 samples (first: 77) of step 4, 2 slots from 1 on, could not be read:")
    assert (error.slots, error.samples) == ((1, 2), (77, 78, 79))
