from dataclasses import replace

import pytest

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import (
    GENESIS,
    LedgerLine,
    Lineage,
    add_digests,
    can_follow,
    expected_digest,
    expected_slot_digest,
    is_sealed,
    make_line,
    slot_digest,
)
from pliant.core.data.sample_order import Cursor, Order
from pliant.errors import BadInput

GRID = Grid(samples=23, batch=10, slots=4, epochs=2)
ORDER = Order(seed=5, samples=23)
PARENT = Lineage(generation=3, step=4, digest=99)
LINE = make_line(PARENT, generation=3, step=5, cursor=Cursor(1, 10), samples=10, digest=77)


def test_the_later_generation_wins_and_within_one_the_later_step() -> None:
    assert Lineage(2, 1, 0).newer_than(Lineage(1, 9, 0))
    assert not Lineage(1, 9, 0).newer_than(Lineage(2, 1, 0))
    assert Lineage(2, 5, 0).newer_than(Lineage(2, 4, 0))
    assert not Lineage(2, 4, 0).newer_than(Lineage(2, 5, 0))


def test_of_two_lineages_with_one_key_neither_is_newer_and_they_still_differ() -> None:
    here, there = Lineage(2, 5, 1), Lineage(2, 5, 9)
    assert not here.newer_than(there)
    assert not there.newer_than(here)
    assert here != there
    assert here.key() == there.key() == (2, 5)


def test_nothing_is_older_than_genesis() -> None:
    assert (GENESIS.generation, GENESIS.step, GENESIS.digest) == (0, 0, 0)
    assert Lineage(0, 1, 0).newer_than(GENESIS)


def test_a_slot_digest_is_pinned() -> None:
    """A change of these would make every ledger written before it look forged."""
    assert slot_digest(1, 0, [0]) == 0x672BF35EE2B5923E
    assert slot_digest(7, 3, [5, 2, 2**63]) == 0xE1B5ABF5035F460D
    assert expected_digest(GRID, ORDER, 1) == 0x50033443F45F2B03


def test_a_slot_digest_depends_on_step_slot_samples_and_their_order() -> None:
    digests = [
        slot_digest(1, 2, [3, 4]),
        slot_digest(2, 1, [3, 4]),
        slot_digest(2, 2, [3, 4]),
        slot_digest(1, 2, [4, 3]),
        slot_digest(1, 2, [3, 5]),
        slot_digest(1, 2, [3]),
        slot_digest(1, 2, [3, 4, 4]),
    ]
    assert len(set(digests)) == len(digests)
    assert all(0 <= digest < 2**64 for digest in digests)


def test_a_slot_without_samples_adds_nothing() -> None:
    assert slot_digest(9, 3, []) == 0


def test_samples_may_come_from_any_iterable() -> None:
    assert slot_digest(1, 0, iter([8, 9])) == slot_digest(1, 0, (8, 9))


@pytest.mark.parametrize(("step", "slot", "sample"), [(1, 0, -1), (1, 0, 2**64), (-1, 0, 5), (1, -1, 5), (2**64, 0, 5)])
def test_a_digest_is_made_of_unsigned_numbers(step: int, slot: int, sample: int) -> None:
    with pytest.raises(BadInput, match=f"step {step}, slot {slot} and every sample must be integers"):
        slot_digest(step, slot, [sample])


def test_digests_add_up_in_any_order_within_64_bits() -> None:
    assert add_digests(2**64 - 1, 3) == 2
    assert add_digests(3, 2**64 - 1) == 2
    assert add_digests(2, 3) == 5


@pytest.mark.parametrize("step", [1, 3, 6])
def test_a_step_that_reads_what_the_order_promises_has_the_expected_digest(step: int) -> None:
    total = 0
    for slot in reversed(range(GRID.slots)):
        read = ORDER.take(GRID.cursor(step).epoch, GRID.slot(step, slot))
        assert expected_slot_digest(GRID, ORDER, step, slot) == slot_digest(step, slot, read)
        total = add_digests(total, slot_digest(step, slot, read))
    assert expected_digest(GRID, ORDER, step) == total


def test_the_same_place_of_two_epochs_has_two_digests() -> None:
    assert expected_digest(GRID, ORDER, 1) != expected_digest(GRID, ORDER, 4)


def test_grid_and_order_must_be_of_the_same_data() -> None:
    other = Order(seed=5, samples=24)
    with pytest.raises(BadInput, match="the grid has 23 samples and the order 24"):
        expected_digest(GRID, other, 1)
    with pytest.raises(BadInput, match="the grid has 23 samples and the order 24"):
        expected_slot_digest(GRID, other, 1, 0)


def test_a_line_holds_what_it_was_made_of() -> None:
    expected = LedgerLine(
        lineage=Lineage(generation=3, step=5, digest=LINE.lineage.digest),
        parent=PARENT,
        epoch=1,
        position=10,
        samples=10,
        digest=77,
    )
    assert make_line(PARENT, 3, 5, Cursor(1, 10), 10, 77) == expected


def test_the_chain_is_pinned() -> None:
    assert LINE.lineage.digest == 0x076A71617CB58335
    first = make_line(GENESIS, 1, 1, Cursor(0, 0), 10, expected_digest(GRID, ORDER, 1))
    assert first.lineage.digest == 0xCD265A8FA0818735
    assert make_line(PARENT, 3, 5, Cursor(1, 10), 10, 77, state=5).lineage.digest == 0x4D383B9FC924254B


CHANGED = {
    "generation": replace(LINE, lineage=replace(LINE.lineage, generation=4)),
    "step": replace(LINE, lineage=replace(LINE.lineage, step=6)),
    "own digest": replace(LINE, lineage=replace(LINE.lineage, digest=LINE.lineage.digest ^ 1)),
    "parent's generation": replace(LINE, parent=replace(PARENT, generation=2)),
    "parent's step": replace(LINE, parent=replace(PARENT, step=3)),
    "parent's digest": replace(LINE, parent=replace(PARENT, digest=98)),
    "epoch": replace(LINE, epoch=0),
    "position": replace(LINE, position=0),
    "samples": replace(LINE, samples=9),
    "digest": replace(LINE, digest=78),
    "state": replace(LINE, state=1),
    "state left out": replace(make_line(PARENT, 3, 5, Cursor(1, 10), 10, 77, state=5), state=0),
    "another state": replace(make_line(PARENT, 3, 5, Cursor(1, 10), 10, 77, state=5), state=6),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_line_is_sealed_against_a_change_of_any_field(what: str) -> None:
    assert is_sealed(LINE)
    assert not is_sealed(CHANGED[what])
    assert not can_follow(CHANGED[what], CHANGED[what].parent)


def test_two_fields_that_trade_places_make_another_chain() -> None:
    made = [
        make_line(Lineage(1, 2, 3), 4, 5, Cursor(6, 7), 8, 9),
        make_line(Lineage(2, 1, 3), 4, 5, Cursor(6, 7), 8, 9),
        make_line(Lineage(1, 2, 4), 3, 5, Cursor(6, 7), 8, 9),
        make_line(Lineage(1, 2, 3), 5, 4, Cursor(6, 7), 8, 9),
        make_line(Lineage(1, 2, 3), 4, 5, Cursor(7, 6), 8, 9),
        make_line(Lineage(1, 2, 3), 4, 5, Cursor(6, 8), 7, 9),
        make_line(Lineage(1, 2, 3), 4, 5, Cursor(6, 7), 9, 8),
        make_line(Lineage(1, 2, 3), 4, 5, Cursor(6, 7), 8, 9, state=10),
        make_line(Lineage(1, 2, 3), 4, 5, Cursor(6, 7), 8, 10, state=9),
    ]
    assert len({one.lineage.digest for one in made}) == len(made)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_line_with_a_number_that_fits_no_word_is_never_made_nor_believed(value: int) -> None:
    with pytest.raises(BadInput, match="the line of step 5 must be an integer from 0"):
        make_line(PARENT, 3, 5, Cursor(1, 10), 10, value)
    assert not is_sealed(replace(LINE, digest=value))
    assert not is_sealed(replace(LINE, state=value))
    assert not can_follow(replace(LINE, samples=value), PARENT)


def test_a_line_follows_its_parent_and_nothing_else() -> None:
    assert can_follow(LINE, PARENT)
    assert not can_follow(LINE, GENESIS)
    assert not can_follow(LINE, replace(PARENT, digest=98))
    assert not can_follow(LINE, LINE.lineage)


def test_a_later_generation_may_go_on_where_an_earlier_one_stopped() -> None:
    assert can_follow(make_line(PARENT, 7, 5, Cursor(1, 10), 10, 77), PARENT)


def test_a_line_of_an_earlier_generation_does_not_follow() -> None:
    assert not can_follow(make_line(PARENT, 2, 5, Cursor(1, 10), 10, 77), PARENT)


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_line_that_is_not_of_the_next_step_does_not_follow(step: int) -> None:
    assert not can_follow(make_line(PARENT, 3, step, Cursor(1, 10), 10, 77), PARENT)
