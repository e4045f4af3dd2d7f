"""Guards that no signal leads to: the machine is asked for what its own order of events rules out."""

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.member import Machine, react
from pliant.core.member.common import Out, admit_joiners, confirm_save, wire_next_world, world_of
from pliant.core.member.signals import ViewReceived, Wired
from unit.core.build import A, B
from unit.core.member.drive import TERMS, lines, training

STEPS = lines(GENESIS, 1, 4)


def test_a_member_in_no_world_has_none_to_give() -> None:
    with pytest.raises(AssertionError, match="a is in no world"):
        world_of(Machine(A, TERMS))


def test_who_came_from_nowhere_has_no_member_to_let_in() -> None:
    out: Out = []
    admit_joiners(training(A, B)[A], out)
    assert out == []


def test_what_was_not_begun_is_not_wanted() -> None:
    out: Out = []
    confirm_save(training(A, B)[A], out)
    assert out == []


def test_who_was_told_nothing_wires_nothing() -> None:
    out: Out = []
    wire_next_world(Machine(A, TERMS), out)
    assert out == []
    machine = Machine(A, TERMS, wiring_generation=2)
    assert react(machine, Wired(2)) == (machine, ())


def test_an_older_view_than_the_last_is_not_believed() -> None:
    """Rule 5: messages overtake one another, and what was open may be sealed since."""
    crew = training(A, B)
    old = crew[A].view
    assert old is not None
    crew.tell(A, holders=frozenset({A}))
    newer = crew[A].view
    assert newer is not None
    assert newer.revision > old.revision
    assert crew.feed(A, ViewReceived(old)) == ()
    assert crew[A].view == newer
