"""Control words in floating-point numbers: exact, whatever they are added to."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core.data.ledger import Lineage
from pliant.core.member.control_words import Purpose, Word
from pliant.errors import BadInput
from pliant.train.reduce.control_row import (
    LOGGED_MAX,
    ROW_FLOATS,
    ControlRow,
    Floats,
    pack,
    pack_cells,
    unpack,
    unpack_cells,
    weighted_means,
)

cell = st.integers(0, 2**64 - 1)
small = st.integers(0, 2**32)
words = st.builds(
    Word,
    purpose=st.sampled_from([Purpose.STEP, Purpose.CLOSE]),
    generation=small,
    step=small,
    lineage=st.builds(Lineage, small, small, cell),
    holds=st.booleans(),
    state=cell,
    wired=small,
    wired_needed=small,
    drain_urgency=st.integers(0, 2),
    failed=st.booleans(),
    slots=small,
    samples=small,
    slot_checksum=cell,
    digest=cell,
)
numbers = st.floats(allow_nan=False, allow_infinity=False)
rows = st.builds(
    ControlRow, words, numbers, cell, numbers, st.lists(numbers, min_size=LOGGED_MAX, max_size=LOGGED_MAX).map(tuple)
)
WORD = Word(Purpose.STEP, 3, 17, Lineage(2, 16, 0xFFFF_FFFF_FFFF_FFFF), holds=True, slot_checksum=2**64 - 1, samples=8)


def side_by_side(each: list[ControlRow]) -> Floats:
    """Return what the collective makes of every member's rows: a sum, in which the others' places are zeros."""
    total = np.zeros(len(each) * ROW_FLOATS, dtype=np.float32)
    for rank, row in enumerate(each):
        mine = np.zeros_like(total)
        mine[rank * ROW_FLOATS : (rank + 1) * ROW_FLOATS] = pack(row)
        total += mine
    return total


@given(st.lists(rows, min_size=1, max_size=4))
def test_every_member_reads_every_row_as_it_was_written(each: list[ControlRow]) -> None:
    assert unpack(side_by_side(each), len(each)) == tuple(each)


def cells_of(row: ControlRow) -> bytes:
    """Return a row as it is sent, cell by cell. Members of different versions may meet in one job."""
    word = row.word
    flags = [word.holds, word.failed, word.drain_urgency & 1, word.drain_urgency >> 1, word.wants_checkpoint]
    flags += [not word.can_save, word.ending & 1, word.ending >> 1, word.purpose is Purpose.STEP]
    whole = [word.generation, word.step, word.lineage.generation, word.lineage.step, word.lineage.digest]
    whole += [sum(flag << at for at, flag in enumerate(flags)), word.state, word.wired, word.wired_needed, word.slots]
    whole += [word.samples, word.slot_checksum, word.digest, row.names_hash]
    logged = [*row.logged, *[0.0] * (LOGGED_MAX - len(row.logged))]
    return np.array(whole, np.uint64).tobytes() + np.array([row.weight, row.log_weight, *logged]).tobytes()


@given(rows, st.integers(0, LOGGED_MAX))
def test_a_row_is_sent_in_the_same_bytes_as_ever(row: ControlRow, count: int) -> None:
    row = dataclasses.replace(row, logged=row.logged[:count])
    assert pack_cells(row).tobytes() == cells_of(row)
    (same,) = unpack_cells(pack_cells(row).reshape(1, -1))
    assert (same.word, same.names_hash, same.weight) == (row.word, row.names_hash, row.weight)


def test_every_field_of_a_word_travels_except_the_kept_slots() -> None:
    """A field that is added to the word and forgotten here would read as its default on every member."""
    (row,) = unpack(side_by_side([ControlRow(WORD)]), 1)
    for field in dataclasses.fields(Word):
        if field.name != "kept":
            assert getattr(row.word, field.name) == getattr(WORD, field.name), field.name


def test_pieces_are_exact_in_single_precision() -> None:
    packed = pack(ControlRow(WORD, 1e300))
    assert packed.dtype == np.float32
    assert packed.min() >= 0
    assert packed.max() <= 65535
    assert np.array_equal(packed, np.rint(packed))


def test_a_row_of_another_size_of_world_does_not_pass_for_one() -> None:
    """Two collectives that should never have met: what comes out must disagree, not crash."""
    garbage = np.full(2 * ROW_FLOATS, np.nan, dtype=np.float32)
    garbage[3] = np.inf
    garbage[5] = -7.0
    garbage[9] = 1e9
    first, second = unpack(garbage, 2)
    assert first.word.generation != WORD.generation
    assert second.word.lineage != WORD.lineage


def test_more_values_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(BadInput, match=f"at most {LOGGED_MAX}"):
        pack(ControlRow(WORD, 1.0, 5, 1.0, (0.0,) * (LOGGED_MAX + 1)))


def test_means_are_weighted_by_the_samples_behind_them() -> None:
    each = [
        ControlRow(WORD, 6.0, 9, 6.0, (6 * 0.5, 6 * 2.0)),
        ControlRow(WORD, 2.0, 9, 2.0, (2 * 1.5, 2 * 4.0)),
        ControlRow(WORD),
    ]
    means = weighted_means(unpack(side_by_side(each), 3))
    assert list(means[:2]) == pytest.approx([0.75, 2.5])


def test_parts_in_which_nothing_was_logged_do_not_count() -> None:
    """Logging in the first micro-batch alone is a mean over that one, not over all."""
    assert list(weighted_means([ControlRow(WORD, 8.0, 9, 2.0, (2 * 1.5,))])) == pytest.approx([1.5])


def test_members_that_log_other_names_are_found() -> None:
    with pytest.raises(BadInput, match="different names"):
        weighted_means([ControlRow(WORD, 1.0, 9, 1.0, (1.0,)), ControlRow(WORD, 1.0, 10, 1.0, (1.0,))])


def test_nothing_logged_means_nothing() -> None:
    assert weighted_means([ControlRow(WORD, 4.0)]) == ()
