"""Alone, a member goes through the same decisions as in a crowd, made in its own process."""

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.member import signals as s
from pliant.core.messages import Join, Leave, Report
from pliant.core.model.job import JobState, Terms
from pliant.core.model.view import View
from pliant.errors import Refused
from pliant.train.standalone import StandaloneCoordinator
from pliant.wire.views import PeerKey
from unit.core.build import GRID, TERMS, A, X, lines


class Listening:
    """The messages that a session would receive."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.signals: list[s.Signal] = []

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        assert keys == ()
        self.views.append(view)

    def feed(self, signal: s.Signal) -> None:
        self.signals.append(signal)

    def fenced(self, revision: int, why: str) -> None:
        raise AssertionError(why)


def alone() -> tuple[StandaloneCoordinator, Listening]:
    contact, listening = StandaloneCoordinator("demo", A), Listening()
    contact.join(Join(A, X, TERMS))
    contact.start(listening)
    return contact, listening


def test_a_world_of_one_is_formed_at_once() -> None:
    _, listening = alone()
    (world,) = listening.views[-1].worlds
    assert world.members == (A,)
    assert listening.views[-1].known


def test_what_is_reported_is_durable_and_the_last_step_finishes_the_job() -> None:
    contact, listening = alone()
    number = listening.views[-1].worlds[-1].number
    all_lines = lines(GENESIS, number, GRID.total_steps)
    contact.send(Report(A, 0, number, all_lines[:5], frozenset({A})))
    assert listening.views[-1].durable == all_lines[4].lineage
    states = [listening.views[-1].state]
    contact.send(Report(A, 0, number, all_lines[5:], None))
    states.append(listening.views[-1].state)
    assert states == [JobState.RUNNING, JobState.FINISHED]
    contact.send(Leave(A, 0, "left as planned"))
    contact.close()


def test_every_view_is_newer_than_the_one_before() -> None:
    contact, listening = alone()
    number = listening.views[-1].worlds[-1].number
    for step in lines(GENESIS, number, 3):
        contact.send(Report(A, 0, number, (step,), frozenset({A})))
    revisions = [view.revision for view in listening.views]
    assert revisions == sorted(set(revisions))


def test_what_the_decision_has_against_it_is_raised() -> None:
    with pytest.raises(Refused):
        alone()[0].join(Join(A, X, Terms(GRID, seed=8)))


def test_a_command_that_leads_to_another_is_decided_first() -> None:
    """The session sends from within what it is told."""
    contact = StandaloneCoordinator("demo", A)
    sent: list[int] = []

    class Answering(Listening):
        def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
            super().view_received(view, keys)
            if view.durable.step < 3 and view.worlds:
                sent.append(view.durable.step)
                number = view.worlds[-1].number
                contact.send(Report(A, 0, number, lines(view.durable, number, 1), frozenset({A})))

    listening = Answering()
    contact.join(Join(A, X, TERMS))
    contact.start(listening)
    assert sent == [0, 1, 2]
    assert listening.views[-1].durable.step == 3
