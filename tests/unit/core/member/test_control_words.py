"""Control words, and what follows from hearing every member's (rules 1, 2, 6, 8, 12, 16)."""

from dataclasses import replace
from itertools import permutations

import pytest

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.member.control_words import (
    CALM,
    LEAVING,
    OUT_OF_TIME,
    Purpose,
    Word,
    Words,
    agreed,
    all_out_of_time,
    disagreement,
    diverged,
    generation_to_enter,
    holders,
    minority,
    slot_checksum,
    step_checksum,
    winner,
)

GRID = Grid(samples=23, batch=10, slots=5, epochs=1)  # steps of 10, 10 and 3 samples; the last has 2 slots
SIX = Lineage(3, 5, 111)  # what every member enters step 6 with, in another grid than the one above


def word(step: int = 1, *, lineage: Lineage = GENESIS, holds: bool = True, slots: tuple[int, ...] = ()) -> Word:
    """One rank's word in a step of generation 4, with the slots it computed."""
    return Word(
        Purpose.STEP,
        generation=4,
        step=step,
        lineage=lineage,
        holds=holds,
        state=50,
        slots=len(slots),
        samples=sum(len(GRID.slot(step, slot)) for slot in slots),
        slot_checksum=sum(map(slot_checksum, slots)) % 2**64,
    )


def whole(step: int = 1) -> Words:
    """Three ranks that computed the whole step together."""
    filled = GRID.filled(step)
    return tuple(word(step, slots=filled[rank::3]) for rank in range(3))


def changed(words: Words, rank: int, **changes: object) -> Words:
    new = replace(words[rank], **changes)  # type: ignore[arg-type]
    return (*words[:rank], new, *words[rank + 1 :])


def wrong(words: Words, purpose: Purpose = Purpose.STEP) -> str:
    return disagreement(words, 4, purpose, GRID)


def test_a_word_says_nothing_that_it_was_not_told_to_say() -> None:
    bare = Word(Purpose.STEP, 4, 1, GENESIS, True)
    zeros = {
        "state": 0,
        "wired": 0,
        "wired_needed": 0,
        "drain_urgency": CALM,
        "slots": 0,
        "samples": 0,
        "slot_checksum": 0,
        "digest": 0,
    }
    said = Word(
        Purpose.STEP, 4, 1, GENESIS, holds=True, failed=False, wants_checkpoint=False, can_save=True, kept=frozenset()
    )
    assert bare == replace(said, **zeros)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- disagreement


def test_words_that_agree_and_add_up_let_the_step_be_applied() -> None:
    for step in (1, 2, 3):
        assert wrong(whole(step)) == ""


def test_one_rank_alone_may_compute_everything() -> None:
    assert wrong((word(slots=GRID.filled(1)),)) == ""


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_word_of_another_generation_or_purpose_lets_nothing_be_applied(rank: int) -> None:
    """H2: gradients of different worlds are never summed silently."""
    assert wrong(changed(whole(), rank, generation=5)) == f"rank {rank} is in a step of 5, not a step of 4"
    assert wrong(changed(whole(), rank, purpose=Purpose.HELLO)) == f"rank {rank} is in a hello of 4, not a step of 4"


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_failed_lets_nothing_be_applied(rank: int) -> None:
    for purpose in Purpose:
        words = tuple(replace(one, purpose=purpose) for one in whole())
        assert wrong(changed(words, rank, failed=True), purpose) == f"rank {rank} failed"


def test_a_rank_that_failed_counts_though_it_holds_nothing() -> None:
    assert wrong(changed(whole(), 1, failed=True, holds=False)) == "rank 1 failed"


def test_steps_five_six_seven_disagree_though_they_add_up_to_three_times_six() -> None:
    """H3: sums are not enough for equality; the middle one would see agreement."""
    grid = Grid(samples=80, batch=10, slots=5, epochs=1)
    share = [grid.filled(6)[rank::3] for rank in range(3)]

    def entering(steps: tuple[int, ...]) -> Words:
        return tuple(
            replace(word(1, lineage=SIX, slots=slots), step=step) for step, slots in zip(steps, share, strict=True)
        )

    assert disagreement(entering((6, 6, 6)), 4, Purpose.STEP, grid) == ""
    for steps in permutations((5, 6, 7)):
        said = disagreement(entering(steps), 4, Purpose.STEP, grid)
        assert said == f"rank 1 is at step {steps[1]} of another history than the ranks before it"


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("other", [Lineage(1, 0, 0), Lineage(0, 1, 0), Lineage(0, 0, 1)])
def test_every_part_of_the_lineage_counts(rank: int, other: Lineage) -> None:
    said = f"rank {rank} is at step 1 of another history than the ranks before it"
    assert wrong(changed(whole(), rank, lineage=other)) == said


@pytest.mark.parametrize("rank", [1, 2])
def test_holders_with_another_state_let_nothing_be_applied(rank: int) -> None:
    said = f"rank {rank} holds another state than the ranks before it"
    assert wrong(changed(whole(), rank, state=51)) == said
    closing = tuple(replace(one, purpose=Purpose.CLOSE) for one in whole())
    assert wrong(changed(closing, rank, state=51), Purpose.CLOSE) == said


def test_who_holds_nothing_may_be_anywhere() -> None:
    """Rule 15: a joiner's word says nothing about the state."""
    joiner = word(7, lineage=SIX, holds=False)
    for words in ((joiner, *whole()), (*whole(), replace(joiner, state=3))):
        assert wrong(words) == ""


def test_a_step_without_a_holder_is_no_member_s() -> None:
    stateless = tuple(replace(one, holds=False) for one in whole())
    assert wrong(stateless) == "no member holds the state"


def test_a_hello_compares_later_and_a_close_adds_nothing_up() -> None:
    hellos = tuple(replace(word(step, lineage=Lineage(1, step, 0)), purpose=Purpose.HELLO) for step in (1, 2))
    assert wrong(hellos, Purpose.HELLO) == ""
    assert wrong(tuple(replace(one, holds=False) for one in hellos), Purpose.HELLO) == ""
    closes = tuple(replace(word(1), purpose=Purpose.CLOSE) for _ in range(2))
    assert wrong(closes, Purpose.CLOSE) == ""
    apart = changed(closes, 1, step=2)
    assert wrong(apart, Purpose.CLOSE) == "rank 1 is at step 2 of another history than the ranks before it"
    assert wrong(tuple(replace(one, holds=False) for one in closes), Purpose.CLOSE) == ""


# -------------------------------------------------------------------------------------------------- totals


@pytest.mark.parametrize(("samples", "total"), [(5, 11), (3, 9)])
def test_a_sample_too_many_or_too_few_lets_nothing_be_applied(samples: int, total: int) -> None:
    """H15: the cursor would move on perfectly."""
    words = whole()
    assert words[0].samples == 4
    said = f"{total} samples were counted in step 1, which has 10"
    assert wrong(changed(words, 0, samples=samples)) == said


def test_the_short_last_step_is_held_to_its_own_size() -> None:
    assert wrong(changed(whole(3), 0, samples=4)) == "4 samples were counted in step 3, which has 3"
    full = changed(whole(1), 0, step=3)
    full = changed(changed(full, 1, step=3), 2, step=3)
    assert wrong(full) == "10 samples were counted in step 3, which has 3"


def test_a_slot_counted_twice_in_place_of_another_is_found_by_its_mark() -> None:
    """H13: the samples add up, and so does the number of slots."""
    twice = (word(slots=(0, 1)), word(slots=(1, 2)), word(slots=(4,)))
    assert sum(one.samples for one in twice) == 10
    assert sum(one.slots for one in twice) == 5
    assert wrong(twice) == "a slot of step 1 was counted twice or left out"


def test_the_number_of_slots_must_be_right_too() -> None:
    said = "a slot of step 1 was counted twice or left out"
    assert wrong(changed(whole(), 0, slots=1)) == said
    assert wrong(changed(whole(), 0, slots=3)) == said


def test_marks_add_up_in_64_bits_however_they_are_dealt() -> None:
    assert wrong(tuple(word(slots=(slot,)) for slot in GRID.filled(1))) == ""
    assert wrong((word(slots=GRID.filled(1)[::-1]), word(), word())) == ""


def test_the_total_is_taken_at_the_holders_step() -> None:
    joiner = word(3, lineage=SIX, holds=False)
    assert wrong((joiner, *whole(1))) == ""


def test_slot_marks_are_pinned_and_fit_into_64_bits() -> None:
    """They are SplitMix64's; members of two versions must agree on them."""
    assert [slot_checksum(slot) for slot in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert len({slot_checksum(slot) for slot in range(10_000)}) == 10_000
    assert max(slot_checksum(slot) for slot in range(1000)) < 2**64


def test_a_step_s_marks_are_those_of_its_filled_slots() -> None:
    assert step_checksum(GRID, 1) == sum(slot_checksum(slot) for slot in range(5)) % 2**64
    assert step_checksum(GRID, 3) == sum(slot_checksum(slot) for slot in GRID.filled(3)) % 2**64
    assert len(GRID.filled(3)) < 5


# -------------------------------------------------------------------------------------------------- switch


def wired(number: int, need: int, *, holds: bool = True) -> Word:
    return replace(word(holds=holds), wired=number, wired_needed=need)


SILENT = word()


def test_no_member_switches_to_what_no_member_wired() -> None:
    assert generation_to_enter((SILENT, SILENT)) == 0
    assert generation_to_enter(()) == 0


def test_the_switch_is_made_when_every_member_of_both_worlds_says_so() -> None:
    assert generation_to_enter((wired(5, 2), SILENT)) == 0
    assert generation_to_enter((wired(5, 2), wired(5, 2))) == 5
    assert generation_to_enter((wired(5, 1), SILENT)) == 5  # the other one leaves


def test_a_bare_count_does_not_split_the_world() -> None:
    """H3: A and B wired 5, C wired 6. Three words said "wired", and no member may move."""
    assert generation_to_enter((wired(5, 3), wired(5, 3), wired(6, 3))) == 0


def test_members_the_next_world_leaves_out_need_not_have_heard_of_it() -> None:
    """H17: the coordinator cannot see C and D; A and B say 5 and that two must, so C and D know 4 is over."""
    words = (wired(5, 2), wired(5, 2), SILENT, SILENT)
    assert generation_to_enter(words) == 5
    assert generation_to_enter((wired(5, 2), SILENT, SILENT, SILENT)) == 0


def test_every_rank_decides_alike_whatever_its_own_place() -> None:
    """Rule 8: a function of the words alone; the order of the ranks does not matter either."""
    words = (wired(5, 2), wired(5, 2), SILENT, wired(6, 2))
    assert {generation_to_enter(order) for order in permutations(words)} == {5}


def test_the_highest_that_all_say_is_taken() -> None:
    assert generation_to_enter((wired(5, 2), wired(5, 2), wired(7, 1))) == 7
    assert generation_to_enter((wired(7, 2), wired(5, 1), wired(7, 2))) == 7
    assert generation_to_enter((wired(7, 2), wired(5, 1))) == 5


def test_a_switch_needs_a_holder_on_the_other_side() -> None:
    """Rule 8 (H11)."""
    assert generation_to_enter((wired(5, 1, holds=False), SILENT)) == 0
    assert generation_to_enter((wired(5, 2, holds=False), wired(5, 2))) == 5
    assert generation_to_enter((wired(6, 1, holds=False), wired(5, 1))) == 5


@pytest.mark.parametrize("number", [0, 3, 4])
def test_what_was_wired_at_or_below_this_generation_is_no_news(number: int) -> None:
    assert generation_to_enter((wired(number, 1), wired(number, 1))) == 0


def test_more_voices_than_needed_are_enough() -> None:
    assert generation_to_enter((wired(5, 1), wired(5, 1))) == 5


# ----------------------------------------------------------------------- holders, the hurried, the winner


def test_holders_are_told_by_rank() -> None:
    words = (word(holds=False), word(), word(holds=False), word())
    assert holders(words) == {1, 3}
    assert holders(()) == frozenset()


def hurried(drains: int, *, holds: bool = True) -> Word:
    return replace(word(holds=holds), drain_urgency=drains)


def test_the_world_closes_when_every_holder_is_out_of_time() -> None:
    """Rule 16: it leaves a checkpoint behind."""
    assert all_out_of_time((hurried(OUT_OF_TIME), hurried(OUT_OF_TIME)))
    assert not all_out_of_time((hurried(OUT_OF_TIME), hurried(LEAVING)))
    assert not all_out_of_time((hurried(CALM), hurried(OUT_OF_TIME)))
    assert (CALM, LEAVING, OUT_OF_TIME) == (0, 1, 2)


def test_who_holds_nothing_does_not_keep_the_world_open() -> None:
    assert all_out_of_time((hurried(OUT_OF_TIME), hurried(CALM, holds=False)))
    assert not all_out_of_time((hurried(OUT_OF_TIME, holds=False),))
    assert not all_out_of_time(())


# ------------------------------------------------------------------------------------------- who is outvoted


def holding(state: int, step: int = 5, *, holds: bool = True) -> Word:
    return replace(word(lineage=Lineage(1, step, 9), holds=holds), state=state)


def judge(*words: Word) -> tuple[bool, list[int]]:
    return diverged(words), sorted(minority(words))


def test_a_member_that_holds_another_state_than_most_is_outvoted() -> None:
    assert judge(holding(7), holding(8), holding(7)) == (True, [1])
    assert judge(holding(6), holding(7), holding(7), holding(7), holding(8)) == (True, [0, 4])


def test_without_a_majority_no_member_is_outvoted() -> None:
    """Of two states nothing says which is the right one, and half is not most."""
    assert judge(holding(7), holding(8)) == (True, [])
    assert judge(holding(7), holding(7), holding(8), holding(8)) == (True, [])
    assert judge(holding(7), holding(7), holding(8), holding(9)) == (True, [])


def test_where_all_agree_there_is_no_minority() -> None:
    assert judge(holding(7), holding(7)) == (False, [])
    assert judge(holding(7)) == (False, [])
    assert judge() == (False, [])


def test_only_those_who_hold_the_history_that_wins_are_asked() -> None:
    """A laggard's state is another one, and a member without state has none."""
    assert judge(holding(7), holding(1, step=4), holding(8, holds=False), holding(7)) == (False, [])
    assert judge(holding(7), holding(1, step=4), holding(1, step=4), holding(8), holding(7)) == (True, [3])


def at(generation: int, step: int, digest: int = 0, *, holds: bool = True) -> Word:
    return word(lineage=Lineage(generation, step, digest), holds=holds)


def test_the_most_advanced_holder_wins_by_generation_then_step() -> None:
    """Rules 2, 12 (H10): never by step alone."""
    words = (at(1, 9), at(2, 4), at(2, 5), at(1, 8))
    for order in permutations(words):
        assert winner(order) == Lineage(2, 5, 0)


def test_a_member_that_holds_nothing_cannot_win() -> None:
    assert winner((at(1, 1), at(2, 9, holds=False))) == Lineage(1, 1, 0)
    assert winner((at(2, 9, holds=False),)) is None
    assert winner(()) is None


def test_of_two_with_one_key_the_first_rank_is_named() -> None:
    assert winner((at(1, 5, 7), at(1, 5, 8))) == Lineage(1, 5, 7)


def test_what_all_holders_entered_with_is_committed() -> None:
    """Rule 1: this collective shows that everyone applied it."""
    assert agreed((at(1, 5, 7), at(1, 5, 7), at(1, 4, holds=False))) == Lineage(1, 5, 7)
    assert agreed((at(1, 5, 7), at(1, 4, 7))) is None
    assert agreed((at(1, 5, 7), at(1, 5, 8))) is None
    assert agreed((at(1, 5, holds=False),)) is None
    assert agreed(()) is None
