"""A member at work: compute, reduce, apply, boundary (rules 1, 3, 6, 21, 22)."""

from dataclasses import replace
from typing import Any

import pytest

from pliant.core.data.grid import idle_slot
from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word, slot_checksum
from pliant.core.member.signals import Apply, Boundary, Break, Collect, Compute, Returned, Save, Send, Snapshot, Tick
from pliant.core.member.state import KeptGradients
from pliant.core.messages import Report, Stopped
from pliant.core.model.world import World
from unit.core.build import A, B, C
from unit.core.member.drive import GRID, IDLE, LAST, Crew, commands, computed, lines, rollback, these, training

STEPS = lines(GENESIS, 1, LAST)  # the history of a job that generation 1 trains from beginning to end
WORLD = rollback(1, A, B, C)


def at(step: int) -> Lineage:
    return STEPS[step - 1].lineage


def test_each_rank_computes_its_run_of_slots() -> None:
    """Rule 21: ownership comes from the world record."""
    crew = training(A, B, C, step=2)
    crew.step()
    assert crew.said(A)[-1] == Compute(3, (0, 1), idle=False)
    assert crew.said(B)[-1] == Compute(3, (2, 3), idle=False)
    assert crew.said(C)[-1] == Compute(3, (4, 5), idle=False)
    assert [crew[name].slots_to_compute for name in (A, B, C)] == [{0, 1}, {2, 3}, {4, 5}]
    assert crew[B].kept_gradients == KeptGradients(base=at(2))


def test_ownership_follows_the_weights_of_the_world_record() -> None:
    """H27: nothing a member measures by itself goes into it."""
    crew = Crew(A, B)
    crew.seal(World(1, rollback(1).kind, (A, B), (1, 2), GENESIS))
    crew.run(lambda: all(crew[name].lineage.step == 2 and crew[name].slots_to_compute for name in (A, B)))
    assert crew.said(A)[-1] == Compute(3, (0, 1), idle=False)
    assert crew.said(B)[-1] == Compute(3, (2, 3, 4, 5), idle=False)


def test_the_state_said_in_the_words_is_the_one_the_slots_were_computed_from() -> None:
    """A bit that flips between the boundary and the reduction shows in the very step it may have spoilt."""
    crew = training(A, B, C)
    crew.feed(B, computed(3, 2))
    crew.feed(B, replace(computed(3, 3), state=77))
    assert crew.word(B).state == 77
    assert crew[B].state_hash == crew.state(B).hash  # what a comparison says, however far this step got
    crew.compute(A, C)
    assert crew.word(A).state == crew.state(A).hash


def test_a_member_enters_the_reduction_with_what_it_counted() -> None:
    """Rule 6: slots, samples, marks and digest are counted where a gradient enters the buffer (H15)."""
    crew = training(A, B, C)
    assert crew.feed(B, computed(3, 3)) == ()
    assert crew[B].phase is Phase.COMPUTING
    assert crew[B].slots_to_compute == {2}
    assert crew[B].kept_gradients == KeptGradients(at(2), frozenset({3}), 2, slot_checksum(3), computed(3, 3).digest)
    digest = computed(3, 2, 3).digest
    word = Word(
        purpose=Purpose.STEP,
        generation=1,
        step=3,
        lineage=at(2),
        holds=True,
        state=crew.state(B).hash,
        slots=2,
        samples=4,
        slot_checksum=(slot_checksum(2) + slot_checksum(3)) % 2**64,
        digest=digest,
    )
    assert crew.feed(B, computed(3, 2)) == (Collect(WORLD, word, ((0, 1), (2, 3), (4, 5))),)
    assert crew[B].kept_gradients == KeptGradients(at(2), frozenset({2, 3}), 4, word.slot_checksum, digest)
    assert (crew[B].phase, crew[B].in_flight, crew[B].slots_to_compute) == (Phase.COLLECTING, True, frozenset())


def test_what_is_counted_stays_within_64_bits() -> None:
    part = KeptGradients(slot_checksum=2**64 - 1, digest=2**64 - 1).with_slots(frozenset({4}), 2, 5)
    assert part == KeptGradients(slots=frozenset({4}), samples=2, slot_checksum=slot_checksum(4) - 1, digest=4)


def test_a_reduction_that_returns_is_applied() -> None:
    """Rule 1: applied here; the line is the same on every member, whichever made it."""
    crew = training(A, B, C)
    crew.compute()
    crew.hush()
    crew.returns()
    for name in (A, B, C):
        assert crew.said(name) == (Apply(STEPS[2]),)
        m = crew[name]
        assert (m.phase, m.in_flight, m.lineage, m.applied_line) == (Phase.APPLIED, False, at(3), STEPS[2])
        assert m.kept_gradients == KeptGradients(base=at(3))
        assert (m.holders, m.switch_to, m.closing) == (these(0, 1, 2), 0, False)
        assert m.world == WORLD


def test_an_applied_step_is_committed_by_a_later_collective_alone() -> None:
    """H1: the next reduction shows that every member entered it with this step applied."""
    crew = training(A, B, C)
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[1], ())
    crew.compute()
    crew.returns(A)
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[2], (STEPS[1],))
    assert (crew[B].applied_line, tuple(crew[B].committed_lines)) == (STEPS[1], ())
    crew.boundary(A)
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[2], (STEPS[1],))
    crew.returns(B, C)
    crew.boundary(B, C)
    crew.compute()
    crew.returns(A)
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[3], (STEPS[1], STEPS[2]))


def test_only_committed_steps_are_reported() -> None:
    """H1: A applied step 3 and might die with it; no member is told of it before the others are known to have it."""
    crew = training(A, B, C)
    crew.compute()
    crew.returns(A)
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (STEPS[1],), None)),)
    crew.boundary(A)
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (STEPS[1],), None)),)
    crew.returns(B, C)
    crew.boundary(B, C)
    crew.compute()
    crew.returns(A)
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (STEPS[1], STEPS[2]), None)),)


def test_a_world_of_one_commits_as_it_applies() -> None:
    """Rule 1: there is no other member who could have another step."""
    crew = training(A)
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (None, (STEPS[1],))
    crew.compute()
    crew.returns()
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[2], (STEPS[1],))
    crew.boundary()
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (None, (STEPS[1], STEPS[2]))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"step": 4}, "rank 2 is at step 4 of another history than the ranks before it"),
        ({"lineage": at(1)}, "rank 2 is at step 3 of another history than the ranks before it"),
        ({"state": 1}, "rank 2 holds another state than the ranks before it"),
        ({"failed": True}, "rank 2 failed"),
        ({"generation": 2}, "rank 2 is in a step of 2, not a step of 1"),
        ({"purpose": Purpose.CLOSE}, "rank 2 is in a close of 1, not a step of 1"),
        ({"samples": 3}, "11 samples were counted in step 3, which has 12"),
        ({"slots": 1}, "a slot of step 3 was counted twice or left out"),
        ({"slot_checksum": 0}, "a slot of step 3 was counted twice or left out"),
    ],
)
def test_nothing_is_applied_when_the_words_disagree(said: dict[str, Any], why: str) -> None:
    """Rule 6, H2, H15: the member stops with its state and its gradients as they were, and says why."""
    crew = training(A, B, C)
    crew.compute()
    first, second, third = crew.words(A)
    actions = crew.feed(A, Returned(1, (first, second, replace(third, **said))))
    split = "state" in said
    assert actions == (Break(1), Send(Stopped(A, 1, at(2), frozenset({0, 1}), why, None, diverged=split)))
    m = crew[A]
    assert (m.phase, m.stop_reason, m.lineage) == (Phase.STOPPED, why, at(2))
    assert (m.applied_line, tuple(m.committed_lines)) == (STEPS[1], ())
    assert m.kept_gradients.slots == {0, 1}


def test_a_member_without_samples_is_yielded_one_slot_all_the_same() -> None:
    """Rule 22, H8: the short step leaves ranks 1 and 2 without samples; their post-step code runs like the others'."""
    crew = training(A, B, C)
    crew.step()
    assert crew.said(A)[-1] == Compute(4, (0, 1), idle=False)
    assert crew.said(B)[-1] == Compute(4, (idle_slot(GRID, 4, 1),), idle=True)
    assert crew.said(C)[-1] == Compute(4, (idle_slot(GRID, 4, 2),), idle=True)
    assert crew[C].slots_to_compute == frozenset()
    [collect] = crew.feed(C, IDLE)
    assert isinstance(collect, Collect)
    assert (collect.word.slots, collect.word.samples, collect.word.slot_checksum, collect.word.digest) == (0, 0, 0, 0)
    assert collect.word.step == 4
    assert crew[C].kept_gradients == KeptGradients(base=at(3))
    crew.compute(A, B)
    crew.returns()
    assert [crew[name].applied_line for name in (A, B, C)] == [STEPS[3]] * 3
    assert STEPS[3].samples == 4
    crew.boundary()
    assert [crew.state(name).posts for name in (A, B, C)] == [4, 4, 4]


def test_the_boundary_brings_the_hash_that_the_next_words_carry() -> None:
    """Rule 3: the user's post-step code is part of the state."""
    crew = training(A, B, C)
    crew.compute()
    crew.returns()
    before = crew[A].state_hash
    assert crew.feed(A, Boundary(77)) == (Compute(4, (0, 1), idle=False),)
    assert crew[A].state_hash == 77 != before
    [collect] = crew.feed(A, computed(4, 0, 1))
    assert isinstance(collect, Collect)
    assert collect.word.state == 77


def test_the_last_step_is_committed_by_a_closing_collective() -> None:
    """Rule 1: no reduction comes after it, so words alone do."""
    crew = training(A, B, step=LAST)
    before = crew[A].committed_lines
    crew.compute()
    crew.returns()
    crew.hush()
    crew.boundary()
    world = rollback(1, A, B)
    word = Word(Purpose.CLOSE, 1, 0, at(LAST), holds=True, state=crew.state(A).hash)
    name = checkpoint_name(at(LAST), 1)
    assert crew.said(A) == (Snapshot(at(LAST), name, 0, 2, waits=True), Collect(world, word))
    assert crew.said(B) == (Snapshot(at(LAST), name, 1, 2, waits=True), Collect(world, word))
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (STEPS[-1], (*before, STEPS[-2]))
    crew.returns()
    committed = (*before, STEPS[-2], STEPS[-1])
    assert crew.said(A) == (Save(name), Send(Report(A, 0, 1, committed, None)))
    assert crew.said(B) == (Save(name), Send(Report(B, 1, 1, committed, None)))
    assert (crew[A].phase, crew[A].applied_line, tuple(crew[A].committed_lines)) == (Phase.DONE, None, committed)
    assert crew.history == list(STEPS)


def test_a_closing_collective_whose_words_disagree_commits_nothing() -> None:
    crew = training(A, B, step=LAST)
    crew.step()
    first, second = crew.words(A)
    why = "rank 1 holds another state than the ranks before it"
    actions = crew.feed(A, Returned(1, (first, replace(second, state=1))))
    assert actions == (Break(1), Send(Stopped(A, 1, at(LAST), frozenset(), why, None, diverged=True)))
    assert (crew[A].phase, crew[A].applied_line) == (Phase.STOPPED, STEPS[-1])


def test_signals_that_no_member_waits_for_change_nothing() -> None:
    crew = training(A, B, C)
    computing = crew[A]
    assert crew.feed(A, Boundary(1)) == ()
    assert crew.feed(A, Returned(1, ())) == ()
    assert crew[A] == computing
    crew.compute()
    collecting = crew[A]
    assert crew.feed(A, computed(3, 5)) == ()
    assert crew.feed(A, Boundary(1)) == ()
    assert crew.feed(A, Returned(2, crew.words(A))) == ()
    assert crew[A] == collecting
    words = crew.words(A)
    crew.returns()
    applied = crew[A]
    assert crew.feed(A, Returned(1, words)) == ()
    assert crew.feed(A, computed(3, 5)) == ()
    assert crew[A] == applied


def test_no_member_reports_what_the_coordinator_knows() -> None:
    crew = training(A, B, C)
    crew.step()
    assert [commands(*crew.said(name)) for name in (A, B, C)] == [(), (), ()]
