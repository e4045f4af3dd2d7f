"""Members that compare their whole states: what one of them does when they differ, and what it saves."""

from dataclasses import replace

import pytest

from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose
from pliant.core.member.signals import Break, CatchUp, Collect, Fetch, Gradient, Returned, Save, Send, TransferBroken
from pliant.core.member.state import KeptGradients
from pliant.core.messages import Stopped
from pliant.core.model.job import Dispute
from unit.core.build import A, B, C, D, E, world
from unit.core.member.drive import (
    EMPTY,
    LAST,
    TERMS,
    Crew,
    commands,
    computed,
    lines,
    recovery,
    these,
    training,
)

STEPS = lines(GENESIS, 1, LAST)
SECOND, THIRD = STEPS[1].lineage, STEPS[2].lineage
EVERY = replace(TERMS, verify=1)
OTHER = "rank 1 holds another state than the ranks before it"


def spoilt() -> Crew:
    """A bit of B's state flipped before it computed its last slot of step 3."""
    crew = training(A, B, C, terms=EVERY)
    crew.compute(A, C)
    crew.feed(B, replace(computed(3, 2, 3), state=77))
    crew.hush()
    return crew


def begun(crew: Crew) -> Lineage | None:
    """The state that A has begun to save."""
    saving = crew[A].part_in_progress
    return saving.lineage if saving is not None else None


# ------------------------------------------------------------------------------------------------------- suspects


def test_a_replica_that_differs_is_named_by_every_member_and_nothing_is_applied() -> None:
    crew = spoilt()
    crew.returns()
    for name, kept in ((A, these(0, 1)), (C, these(4, 5))):
        stopped = Stopped(name, 1, SECOND, kept, OTHER, None, diverged=True, suspects=(B,))
        assert crew.said(name) == (Break(1), Send(stopped))
    assert [crew[name].lineage for name in (A, B, C)] == [SECOND] * 3


def test_a_member_that_is_outvoted_drops_what_it_computed_from_that_state() -> None:
    crew = spoilt()
    crew.returns()
    stopped = Stopped(B, 1, SECOND, EMPTY, OTHER, None, diverged=True, suspects=(B,))
    assert crew.said(B) == (Break(1), Send(stopped))
    assert crew[B].kept_gradients == KeptGradients(base=SECOND)


def test_the_others_go_on_with_what_they_kept_and_redo_its_slots() -> None:
    """P2: no step is lost, and nothing of the suspect's is in it."""
    crew = spoilt()
    crew.returns()
    crew.crash(B)
    crew.recover(2, A, C)
    crew.wire(2)
    crew.returns()
    crew.compute()
    words = [crew.word(name) for name in (A, C)]
    assert [word.slots for word in words] == [3, 3]
    crew.returns()
    assert [crew[name].lineage.step for name in (A, C)] == [3, 3]


def test_without_a_majority_no_member_is_suspect() -> None:
    crew = training(A, B, terms=EVERY)
    crew.compute(A)
    crew.feed(B, replace(computed(3, 3, 4, 5), state=77))
    crew.hush()
    crew.returns()
    stopped = Stopped(B, 1, SECOND, these(3, 4, 5), OTHER, None, diverged=True)
    assert crew.said(B) == (Break(1), Send(stopped))


def test_a_comparison_shows_it_too() -> None:
    """Rule 12: a member's collective failed before it heard of the difference, and all meet again."""
    crew = spoilt()
    crew.fails()
    crew.recover(2, A, B, C)
    crew.seats[B].state = replace(crew.state(B), weights=5)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert [crew[name].suspects for name in (A, B, C)] == [(B,)] * 3
    assert crew[B].kept_gradients == KeptGradients(base=SECOND)


def test_who_follows_without_state_names_the_step_of_the_others() -> None:
    crew = training(A, B, C, terms=EVERY)
    crew.add(D)
    crew.propose(world(2, A, B, C, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.compute(A, C)
    crew.feed(B, replace(computed(4), state=77))
    crew.hush()
    crew.returns(D)
    stopped = Stopped(D, 2, THIRD, EMPTY, OTHER, None, diverged=True, suspects=(B,))
    assert crew.said(D) == (Break(2), Send(stopped))


def test_a_suspicion_is_over_in_the_next_world() -> None:
    crew = spoilt()
    crew.returns()
    crew.recover(2, A, C)
    crew.wire(2, A)
    assert (crew[A].suspects, crew[A].diverged) == ((), False)


# ----------------------------------------------------------------------------------------- what is compared, and when


@pytest.mark.parametrize("verify", [0, 1, 5])
def test_outside_of_steps_the_whole_state_is_hashed_anew(verify: int) -> None:
    """The state compared there may be saved or handed on right after."""
    crew = training(A, B, step=LAST, terms=replace(TERMS, verify=verify))
    crew.step()
    [close] = [action for action in crew.said(A) if isinstance(action, Collect) and not action.shares]
    assert (close.word.purpose, close.whole_state_hash) == (Purpose.CLOSE, verify > 0)


def test_in_a_step_the_state_is_the_one_it_was_computed_from() -> None:
    crew = training(A, B, terms=EVERY)
    crew.compute()
    [step] = [action for action in crew.said(A) if isinstance(action, Collect)]
    assert not step.whole_state_hash


def test_who_holds_nothing_hashes_nothing() -> None:
    crew = training(A, B, terms=EVERY)
    crew.add(D)
    crew.compute()
    crew.fails()
    crew.recover(2, A, B, D)
    crew.wire(2)
    hellos = {name: crew.said(name)[-1] for name in (A, D)}
    assert [hello.whole_state_hash for hello in hellos.values() if isinstance(hello, Collect)] == [True, False]


def test_a_snapshot_is_not_written_when_its_state_turns_out_to_differ() -> None:
    crew = training(A, B, C, terms=replace(EVERY, checkpoint_every=3))
    crew.step()
    assert begun(crew) == THIRD
    crew.compute(A, B, C)
    first, second, third = crew.words(A)
    crew.hush()
    crew.feed(A, Returned(1, (first, replace(second, state=3), third)))
    assert not any(isinstance(action, Save) for action in crew.said(A))


@pytest.mark.parametrize("verify", [0, 1])
def test_what_a_laggard_began_of_a_state_it_did_not_see_compared_is_not_written(verify: int) -> None:
    """The words of step 4, which compare the states after step 3, returned to the others and not to A."""
    crew = training(A, B, C, terms=replace(TERMS, verify=verify, checkpoint_every=3))
    crew.step()
    assert begun(crew) == THIRD
    crew.compute()
    crew.returns(B, C)
    crew.boundary(B, C)
    crew.compute(B, C)
    crew.fails()
    crew.recover(2, A, B, C)
    crew.wire(2)
    crew.hush()
    crew.returns(A)
    assert any(isinstance(action, CatchUp) for action in crew.said(A))
    said = crew.feed(A, Gradient(STEPS[3]))
    assert any(isinstance(action, Save) for action in said) == (verify == 0)


# ------------------------------------------------------------------------------------------- states that are handed on


def joined(*holding: str, verify: int = 1) -> Crew:
    """A recovery of A, B and two without state: of those who hold it, only these are at the newest step."""
    crew = training(A, B, terms=replace(TERMS, verify=verify))
    crew.add(D)
    crew.add(E)
    crew.compute()
    if B not in holding:
        crew.returns(A)
        crew.boundary(A)
        crew.compute(A)
    crew.fails()
    crew.recover(2, A, B, D, E)
    crew.wire(2)
    crew.hush()
    crew.returns()
    return crew


def test_a_state_that_only_one_holds_is_compared_before_it_is_handed_on() -> None:
    """B is a step behind, and can soon tell whether A's state is right; D's copy of it could only agree."""
    crew = joined(A)
    assert isinstance(crew.said(B)[0], CatchUp)
    assert [type(crew.said(name)[0]) for name in (D, E)] == [Collect, Collect]
    crew.run(lambda: crew[D].holds_state and crew[E].holds_state)
    assert crew[D].lineage.step >= 3


@pytest.mark.parametrize(("holding", "verify"), [((A, B), 1), ((A,), 0)])
def test_else_it_is_handed_on_at_once(holding: tuple[str, ...], verify: int) -> None:
    crew = joined(*holding, verify=verify)
    assert isinstance(crew.said(D)[0], Fetch)


def test_a_state_that_is_not_what_its_donors_said_ends_the_world_and_they_compare_again() -> None:
    crew = joined(A, B)
    crew.feed(D, TransferBroken(wrong_state=True))
    [stopped] = [command for command in commands(*crew.said(D)) if isinstance(command, Stopped)]
    assert (stopped.why, stopped.stateless) == ("the received state does not match its label", False)


def test_where_only_one_had_it_there_is_no_state_to_go_on_from() -> None:
    crew = training(A, terms=EVERY)
    crew.add(D)
    crew.compute()
    crew.fails(A)
    crew.recover(2, A, D)
    crew.wire(2)
    crew.returns()
    crew.hush()
    crew.feed(D, TransferBroken(wrong_state=True))
    [stopped] = [command for command in commands(*crew.said(D)) if isinstance(command, Stopped)]
    assert stopped.stateless


def follower() -> Crew:
    """D follows A and B in a planned world, and receives the state from both."""
    crew = training(A, B, terms=EVERY)
    crew.add(D)
    crew.propose(world(2, A, B, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    return crew


def test_a_joiner_that_follows_ends_the_world_so_that_all_compare() -> None:
    crew = follower()
    assert crew.feed(D, TransferBroken(wrong_state=True)) == (Break(2),)
    crew.fails(D)
    [stopped] = [command for command in commands(*crew.said(D)) if isinstance(command, Stopped)]
    assert (stopped.why, stopped.stateless) == ("the donors' states differ", False)


def test_a_joiner_whose_donor_is_gone_just_starts_again() -> None:
    crew = follower()
    assert crew.feed(D, TransferBroken()) == (Fetch(2, (A, B)),)


# ------------------------------------------------------------------------------------- a rollback no member entered


def test_who_was_not_in_a_rollback_world_holds_nothing_of_the_history() -> None:
    """Generation 2 went back, could not be wired, and a recovery follows: what is left of generation 1 is void."""
    crew = training(A, B, C, terms=EVERY)
    crew.compute()
    crew.fails()
    crew.seal(replace(recovery(3, A, B, C), rollback_generation=2))
    crew.wire(3)
    assert [crew.word(name).holds for name in (A, B, C)] == [False] * 3
    assert (crew[A].lineage, tuple(crew[A].committed_lines), crew[A].kept_gradients) == (GENESIS, (), KeptGradients())
    crew.hush()
    crew.returns(A)
    [stopped] = commands(*crew.said(A))
    assert isinstance(stopped, Stopped)
    assert stopped.stateless


# ------------------------------------------------------------------------------------------------------- disputes


def test_with_disputes_nothing_is_applied_and_who_is_in_one_drops_what_it_kept() -> None:
    crew = training(A, B, C, terms=EVERY)
    crew.compute()
    crew.hush()
    disputes = (Dispute(2, B, C),)
    why = "slot 2 of step 3 has different gradients on b and on c"
    for name, kept in ((A, these(0, 1)), (B, EMPTY), (C, EMPTY)):
        said = crew.feed(name, Returned(1, crew.words(name), disputes))
        assert said == (Break(1), Send(Stopped(name, 1, SECOND, kept, why, disputes=disputes)))
        assert (crew[name].phase, crew[name].lineage, crew[name].applied_line) == (Phase.STOPPED, SECOND, STEPS[1])
    assert (crew[A].kept_gradients.slots, crew[B].kept_gradients) == (these(0, 1), KeptGradients(base=SECOND))


def test_who_follows_without_state_stops_too() -> None:
    crew = training(A, B, terms=EVERY)
    crew.add(D)
    crew.propose(world(2, A, B, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.compute()
    said = crew.feed(D, Returned(2, crew.words(D), (Dispute(1, A, B),)))
    assert commands(*said)[0] == Stopped(
        D, 2, THIRD, EMPTY, "slot 1 of step 4 has different gradients on a and on b", disputes=(Dispute(1, A, B),)
    )


def test_states_that_differ_explain_a_dispute() -> None:
    """Other states give other gradients: who holds the wrong state is the question, and the words answer it."""
    crew = spoilt()
    crew.feed(A, Returned(1, crew.words(A), (Dispute(2, B, C),)))
    assert (crew[A].suspects, crew[A].disputes) == ((B,), ())


def test_a_dispute_is_over_in_the_next_world_and_its_slots_are_computed_again() -> None:
    crew = training(A, B, C, terms=EVERY)
    crew.compute()
    for name in (A, B, C):
        crew._settle_order(name, Collect)
        crew.feed(name, Returned(1, crew.words(name), (Dispute(2, B, C),)))
    crew.recover(2, A, B, C)
    crew.wire(2)
    crew.returns()
    assert crew[A].disputes == ()
    assert crew[A].shares == ((0, 1, 2, 5), (3,), (4,))
    crew.step()
    assert [crew[name].lineage.step for name in (A, B, C)] == [3, 3, 3]
