"""A recovery world with a member that holds nothing: all wait until it holds, and compare again (rules 12, 15)."""

from dataclasses import replace

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import (
    Apply,
    Break,
    CatchUp,
    Collect,
    Compute,
    Fetch,
    GraceShort,
    Gradient,
    Install,
    Returned,
    Save,
    Send,
    Snapshot,
    Stripe,
    Tick,
    TransferBroken,
    Wire,
)
from pliant.core.member.state import KeptGradients
from pliant.core.messages import Stopped
from pliant.core.model.world import World
from unit.core.build import A, B, C, E, world
from unit.core.member.drive import EMPTY, GRID, LAST, Crew, gathered, lines, rollback, these, training, wrote

STEPS = lines(GENESIS, 1, LAST)
SECOND, THIRD = STEPS[1].lineage, STEPS[2].lineage


def replaced() -> Crew:
    """A, B and C computed step 3; C died before the reduction. E, without state, is in the recovery world for it."""
    crew = training(A, B, C)
    crew.compute()
    crew.crash(C)
    crew.fails(A, B, peer=C)
    crew.add(E)
    crew.recover(2, A, B, E)
    crew.wire(2)
    crew.hush()
    return crew


def waiting() -> Crew:
    """As `replaced`, after the first comparison: A and B wait for E, which is to receive the state of step 2."""
    crew = replaced()
    crew.returns()
    return crew


def halved() -> Crew:
    """As `waiting`, but step 3 had reached A: B is behind, and E has nothing."""
    crew = training(A, B, C)
    crew.compute()
    crew.returns(A)
    crew.boundary(A)
    crew.crash(C)
    crew.fails(B, peer=C)
    crew.add(E)
    crew.recover(2, A, B, E)
    crew.compute(A)
    crew.wire(2)
    crew.hush()
    crew.returns()
    return crew


# ------------------------------------------------------------------------------------------- no member goes on alone


def test_who_has_the_winning_state_says_hello_again_and_computes_nothing() -> None:
    crew = replaced()
    words = crew.words(A)
    crew.returns()
    for name in (A, B):
        said = crew.said(name)
        assert [action for action in said if isinstance(action, Compute)] == []
        assert (crew[name].phase, crew[name].compare_again, crew[name].slots_to_compute) == (
            Phase.COLLECTING,
            True,
            EMPTY,
        )
        assert crew.word(name) == words[crew[name].rank]  # nothing happened in between: what it kept is in it, too
    assert crew.word(A).kept == these(0, 1)
    assert crew.said(E) == (Fetch(2, (A, B)),)


def test_who_holds_nothing_installs_what_it_received_and_compares() -> None:
    """Rule 15: nothing is replayed, since no member went on."""
    crew = waiting()
    crew.hush()
    crew.receive(E)
    assert crew.said(E) == (Install(SECOND, ()),)
    assert (crew[E].phase, crew[E].holds_state, crew[E].catch_up_to) == (Phase.INSTALLING, False, None)
    crew.install(E)
    word = Word(Purpose.HELLO, 2, 0, SECOND, holds=True, state=crew.state(A).hash)
    assert crew.said(E) == (Collect(crew.view.worlds[0], word),)
    assert crew.state(E) == crew.state(A)


def test_the_last_comparison_deals_out_what_no_member_kept_to_the_newcomer_as_well() -> None:
    """Rule 14: A kept 0 and 1, B kept 2 and 3; C's slots go to every member that holds by now."""
    crew = waiting()
    crew.receive(E)
    crew.install(E)
    crew.hush()
    crew.returns()
    assert [crew.said(name)[0] for name in (A, B, E)] == [
        Compute(3, (4,), idle=False),
        Compute(3, (5,), idle=False),
        Compute(3, (2,), idle=True),
    ]
    assert [(crew[name].compare_again, crew[name].holders) for name in (A, B, E)] == [(False, these(0, 1, 2))] * 3
    crew.compute()
    crew.returns()
    crew.boundary()
    assert crew.state(A) == crew.state(B) == crew.state(E)
    assert crew[E].lineage == lines(SECOND, 2, 1)[0].lineage


def test_at_the_beginning_the_slots_are_dealt_out_by_weight_once_all_hold() -> None:
    """The first rank alone would need room for the whole global batch."""
    crew = Crew(A, B, C)
    first = rollback(1, A, B, C)
    crew.seal(World(1, first.kind, first.members, (1, 3, 2), GENESIS))
    crew.wire(1)
    crew.run(lambda: all(crew[name].phase is Phase.COMPUTING for name in (A, B, C)))
    assert [crew[name].slots_to_compute for name in (A, B, C)] == [these(0), these(1, 2, 3), these(4, 5)]
    crew.run(lambda: all(crew[name].phase is Phase.DONE for name in (A, B, C)))
    assert crew.state(A) == crew.state(B) == crew.state(C)


def test_where_every_member_holds_once_is_enough() -> None:
    crew = gathered(A)
    crew.answer(A)
    crew.returns()
    assert (crew[A].phase, crew[A].compare_again) == (Phase.COMPUTING, False)
    assert crew[A].slots_to_compute == frozenset(range(GRID.slots))


def test_what_a_comparison_committed_the_next_one_does_not_commit_again() -> None:
    """Rule 1: the first one shows that all holders had step 2; E takes its line over, and the second shows it to E."""
    crew = waiting()
    assert (crew[A].applied_line, tuple(crew[A].committed_lines)) == (None, (STEPS[1],))
    crew.receive(E)
    assert (crew[E].applied_line, tuple(crew[E].committed_lines)) == (STEPS[1], ())
    crew.install(E)
    crew.returns()
    assert [(crew[name].applied_line, tuple(crew[name].committed_lines)) for name in (A, B, E)] == [
        (None, (STEPS[1],))
    ] * 3


# ------------------------------------------------------------------------------------------------------- laggards


def test_a_laggard_catches_up_first_and_then_compares_again() -> None:
    """Rule 13: by the winner's gradient, as ever; what it kept was of the step it caught up with."""
    crew = halved()
    assert crew.said(B)[0] == CatchUp(A, THIRD)
    assert crew.feed(B, Gradient(STEPS[2])) == (Apply(STEPS[2]),)
    crew.hush()
    crew.boundary(B)
    word = crew.word(B)
    assert (word.purpose, word.lineage, word.kept, word.holds) == (Purpose.HELLO, THIRD, EMPTY, True)
    crew.receive(E)
    crew.install(E)
    crew.returns()
    assert [crew[name].slots_to_compute for name in (A, B, E)] == [
        EMPTY
    ] * 3  # the short step 4: A had computed all of it
    assert [crew[name].kept_gradients.base for name in (A, B, E)] == [THIRD] * 3
    assert [crew[name].applied_line for name in (A, B, E)] == [None] * 3  # by now it is shown that all have step 3
    crew.step()
    assert crew.state(A) == crew.state(B) == crew.state(E)


def test_a_laggard_that_installs_the_state_compares_again_too() -> None:
    crew = halved()
    crew.feed(B, Gradient(None))
    crew.receive(B)
    crew.install(B)
    assert (crew.word(B).purpose, crew.word(B).state) == (Purpose.HELLO, crew.state(A).hash)


def test_a_gradient_asked_for_in_another_world_is_nothing_to_who_holds_nothing() -> None:
    """Applied to whatever its model is by now it would be no state at all."""
    crew = waiting()
    machine = replace(crew[E], lineage=STEPS[0].lineage)
    crew.seats[E].machine = machine
    assert crew.feed(E, Gradient(STEPS[1])) == ()
    assert crew[E] == machine


# ----------------------------------------------------------------------------------------------------- disagreement


def test_where_all_hold_the_same_history_their_states_must_be_the_same() -> None:
    """Rule 15: the whole hash must equal the members' before E counts as one that holds."""
    crew = waiting()
    crew.receive(E)
    crew.install(E)
    first, second, third = crew.words(A)
    crew.hush()
    crew.feed(A, Returned(2, (first, second, replace(third, state=third.state + 1))))
    why = "rank 2 holds another state than the ranks before it"
    assert crew.said(A) == (Break(2), Send(Stopped(A, 2, SECOND, these(0, 1), why, None, diverged=True)))


@pytest.mark.parametrize("behind", [{"holds": False}, {"lineage": STEPS[0].lineage}])
def test_where_histories_differ_states_may(behind: dict[str, object]) -> None:
    crew = waiting()
    crew.receive(E)
    crew.install(E)
    first, second, third = crew.words(A)
    crew.feed(A, Returned(2, (first, replace(second, **behind, state=77), third)))  # type: ignore[arg-type]
    assert crew[A].phase is not Phase.STOPPED


# ------------------------------------------------------------------------------------------ what may happen meanwhile


def test_a_broken_transfer_starts_again_from_the_winners() -> None:
    """E alone is concerned: no other member's state or gradients are touched."""
    crew = waiting()
    assert crew.feed(E, TransferBroken()) == (Fetch(2, (A, B)),)
    assert (crew[E].phase, crew[E].fetching) == (Phase.CATCHING_UP, True)
    for _ in range(2):
        assert crew.feed(E, Tick()) == ()
    assert crew.feed(E, Tick()) == (Fetch(2, (A, B)),)


def test_a_state_of_another_step_is_not_taken() -> None:
    crew = waiting()
    assert crew.feed(E, Stripe(0, 1, STEPS[0].lineage, 5, ())) == (Fetch(2, (A, B)),)
    assert (crew[E].phase, crew[E].holds_state) == (Phase.CATCHING_UP, False)


def test_a_donor_that_dies_ends_the_world_and_what_was_kept_stays_kept() -> None:
    """Rule 12: no member drops kept gradients on account of a hello alone."""
    crew = waiting()
    crew.crash(B)
    crew.fails(A, peer=B)
    assert (crew[A].phase, crew[A].kept_gradients.slots) == (Phase.STOPPED, these(0, 1))
    crew.hush()
    after = crew.recover(3, A, E)
    assert crew.said(E) == (Break(2), Wire(after))
    assert (crew[E].phase, crew[E].fetching) == (Phase.STOPPED, False)
    crew.wire(3)
    assert [crew[name].compare_again for name in (A, E)] == [False, False]
    crew.run(lambda: all(crew[name].phase is Phase.COMPUTING for name in (A, E)))
    assert [crew[name].slots_to_compute for name in (A, E)] == [these(2, 4), these(3, 5)]
    crew.step()
    assert crew.state(A) == crew.state(E)


def test_the_only_holder_may_die_while_the_others_wait_for_its_state() -> None:
    """Rule 12: then no member is left to go on from, and they say so."""
    crew = gathered(A, B)
    crew.answer(A)
    crew.returns()
    crew.crash(A)
    crew.recover(2, B)
    crew.wire(2, B)
    crew.hush()
    crew.returns()
    assert (crew[B].phase, crew[B].stateless) == (Phase.STOPPED, True)


def test_who_is_told_to_stop_while_it_receives_stops_at_once() -> None:
    crew = waiting()
    crew.hush()
    assert crew.tell(E, sealed=2) == (Break(2),)
    assert (crew[E].phase, crew[E].fetching, crew[E].holds_state) == (Phase.STOPPED, False, False)
    assert crew.feed(E, Stripe(0, 1, SECOND, 5, ())) == ()


def test_who_is_told_to_stop_while_it_installs_keeps_the_state_for_the_next_world() -> None:
    crew = waiting()
    crew.receive(E)
    assert crew.tell(E, sealed=2) == ()
    crew.install(E)
    assert (crew[E].phase, crew[E].holds_state, crew[E].lineage) == (Phase.STOPPED, True, SECOND)


def test_who_hears_during_the_comparison_that_the_world_is_over_fetches_nothing() -> None:
    crew = replaced()
    crew.tell(E, sealed=2)
    crew.hush()
    crew.returns(E)
    assert crew.said(E) == (Break(2),)
    assert crew[E].phase is Phase.STOPPED


def test_after_the_last_step_they_close_once_every_member_holds_it() -> None:
    crew = training(A, B, C, step=LAST)
    crew.step()
    crew.crash(C)
    crew.fails(A, B, peer=C)
    crew.add(E)
    crew.recover(2, A, B, E)
    crew.wire(2)
    crew.run(lambda: all(crew[name].phase is Phase.DONE for name in (A, B, E)))
    assert [crew[name].phase for name in (A, B, E)] == [Phase.DONE] * 3
    assert crew.state(E) == crew.state(A)
    assert crew[E].kept_gradients == KeptGradients(base=STEPS[-1].lineage)


def test_a_planned_world_is_wired_meanwhile_and_entered_after_a_step() -> None:
    crew = waiting()
    crew.hush()
    crew.propose(world(3, A, B))
    assert crew.said(A) == (Wire(world(3, A, B)),)
    crew.run(lambda: crew[A].generation == 3)
    assert (crew[A].generation, crew[A].lineage.step) == (3, 3)


# ------------------------------------------------------------------------------------------------ hardly any time left


def test_a_holder_that_must_go_before_the_others_hold_leaves_a_checkpoint_behind() -> None:
    """Rule 16: no step is lost with the last holder, though no boundary will come in time."""
    crew = waiting()
    name = checkpoint_name(SECOND, 2, A)
    begun = Snapshot(SECOND, name, 0, 1, waits=True)
    assert crew.feed(A, GraceShort()) == (begun, Save(name))
    crew.answer(A)
    assert crew[A].unpublished_part == wrote(begun, crew.state(A).hash)


def test_without_a_place_for_checkpoints_none_is_left_behind() -> None:
    crew = waiting()
    crew[A].can_save = False
    assert crew.feed(A, GraceShort()) == ()


def test_what_is_not_committed_yet_is_not_written() -> None:
    """Rule 1: B does not have step 3 yet."""
    crew = halved()
    assert crew.feed(A, GraceShort()) == ()
    assert crew.feed(E, GraceShort()) == ()
