"""The shares of slots in a reduction: all members compute the same, those without state too (rule 23).

That all are told the same, and each slot once, is held to in every test of a crew (`drive.Crew`); here is what it is.
"""

from pliant.core.data.ledger import Lineage
from pliant.core.member.signals import Admission, Collect, SendToPeer, Shares, Wired
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import Crew, training

NEXT = world(2, A, B, D)


def shares(crew: Crew, name: str) -> Shares:
    """Return what that member was told last of who brings what."""
    seat = next(seat for member, seat in crew.seats.items() if member == name)
    return [action for action in seat.said if isinstance(action, Collect)][-1].shares


def test_the_slots_that_hold_samples_are_dealt_out_to_the_holders() -> None:
    crew = training(A, B, C)
    crew.step()
    assert shares(crew, A) == shares(crew, C) == ((0, 1), (2, 3), (4, 5))
    crew.compute()
    assert shares(crew, A) == shares(crew, C) == ((0, 1), (), ())  # step 4 is short


def test_after_a_failure_each_brings_what_it_kept_and_what_was_dealt_to_it() -> None:
    """Rule 14: C died with slots 4 and 5."""
    crew = training(A, B, C)
    crew.compute()
    crew.crash(C)
    crew.fails(A, B, peer=C)
    crew.recover(2, A, B)
    crew.wire(2)
    crew.returns()
    crew.compute()
    assert shares(crew, A) == shares(crew, B) == ((0, 1, 4), (2, 3, 5))


def test_a_joiner_takes_the_donors_for_those_who_bring() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.wire(2, D)
    crew.feed(D, Admission(2, crew[A].lineage, (B,)))
    assert shares(crew, D) == ((), (0, 1, 2, 3, 4, 5), ())


def test_a_joiner_told_of_no_member_that_holds_expects_nothing_of_any_member() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.wire(2, D)
    crew.feed(D, Admission(2, crew[A].lineage, ()))
    assert shares(crew, D) == ((), (), ())


def test_a_joiner_told_of_a_step_there_is_not_only_closes() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(NEXT, D)
    crew.feed(D, Wired(2))
    crew.feed(D, Admission(2, Lineage(1, 99, 5), (A, B)))
    assert shares(crew, D) == ()


def test_a_member_without_state_tells_joiners_where_the_others_are() -> None:
    """It crosses with them before its own state is there, and an admitted member must not start at the beginning."""
    crew = training(A, step=5)
    crew.add(B)
    crew.add(D)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.propose(world(3, A, B, D))
    crew.wire(3)
    crew.step()
    crew.hush()
    crew.compute(A)
    crew.returns()
    told = [action for action in crew.said(B) if isinstance(action, SendToPeer)]
    assert told == [SendToPeer(D, Admission(3, crew[A].lineage, (A,)))]
    assert crew[A].lineage.step == 7
