"""Scenarios found by reading the rules again beside the code: each was wrong once."""

from dataclasses import replace

from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose
from pliant.core.member.signals import Exit, GraceOver
from pliant.core.model.job import JobState
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, gathered, training
from unit.core.member.test_join import admitted


def test_a_leaver_whose_operation_failed_goes_when_the_others_went_on() -> None:
    """Rule 9: A and B completed, entered 2 and worked there; C's own reduction came to nothing."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.compute()
    crew.returns(A, B)
    crew.boundary(A, B)
    crew.compute(A, B)
    crew.returns(A, B)
    crew.fails(C, peer=A)
    assert crew[C].phase is Phase.STOPPED
    crew.view = replace(crew.view, current=2, worlds=(world(2, A, B),), revision=crew.view.revision + 1)
    assert crew.tell(C)[-1] == Exit(0, "left as planned")


def test_a_member_that_stopped_in_the_current_world_stays() -> None:
    crew = training(A, B)
    crew.compute()
    crew.fails(A)
    crew.view = replace(crew.view, current=1, revision=crew.view.revision + 1)
    crew.tell(A)
    assert crew[A].phase is Phase.STOPPED


def test_who_was_told_the_end_while_restoring_goes() -> None:
    crew = gathered(A, B)
    crew.tell(A, state=JobState.CANCELLED, why="x")
    crew.answer(A)
    assert crew[A].phase is Phase.GONE


def test_who_was_fenced_while_it_compared_goes() -> None:
    crew = training(A, B)
    crew.compute()
    crew.fails()
    crew.recover(2, A, B)
    crew.wire(2)
    crew.tell(A, known=False)
    crew.returns(A)
    assert crew[A].phase is Phase.GONE


def test_without_the_state_no_member_ends_as_complete() -> None:
    crew = training(A, B, step=LAST)
    crew.add(D)
    crew.propose(world(2, A, B, D))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.returns()
    assert (crew[D].phase, crew[D].holds_state) == (Phase.DONE, False)
    assert crew.feed(D, GraceOver())[-1] == Exit(0, "the grace period is over", complete=False)


def test_a_follower_crosses_into_the_closing_collective_with_the_others() -> None:
    """It has no step of its own to go by: what it heard says where the others are."""
    crew = admitted(step=LAST - 2)
    crew.propose(world(3, A, B, D))
    crew.wire(3, D)
    crew.step()
    crew.wire(3, A, B)
    crew.step()
    assert [crew[name].generation for name in (A, B, D)] == [3, 3, 3]
    assert [crew.word(name).purpose for name in (A, B, D)] == [Purpose.CLOSE] * 3


def test_a_laggard_takes_the_state_only_from_who_is_ahead() -> None:
    """Rule 13: two laggards must not take one another for donors."""
    crew = training(A, B, C, D, step=3)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.step()
    for _ in range(3):
        crew.step()
    crew.compute()
    crew.fails(A, B)
    crew.view = replace(crew.view, current=1)
    crew.recover(3, A, B, C, D)
    crew.wire(3)
    crew.returns()
    assert crew[C].phase is Phase.CATCHING_UP
    assert crew[C].donors == (A, B)
