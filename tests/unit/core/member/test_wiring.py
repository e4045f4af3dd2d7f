"""Wiring the groups of worlds to come, in the background and one at a time (rules 7, 10, 11)."""

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.member import Machine, Phase, react
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import (
    Break,
    Collect,
    Compute,
    Failed,
    Send,
    Tick,
    ViewReceived,
    Wire,
    Wired,
    WireFailed,
)
from pliant.core.messages import WiringFailed
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import TERMS, Crew, computed, gathered, recovery, rollback, training


def outside() -> Crew:
    """D has joined and is in no world yet."""
    crew = training(A, B, C)
    crew.add(D)
    crew.tell(D)
    return crew


def test_a_member_wires_the_newest_world_it_is_in() -> None:
    crew = outside()
    assert crew.tell(D, worlds=(*crew.view.worlds, world(2, A, B, D), world(3, A, B, C, D))) == (
        Wire(world(3, A, B, C, D)),
    )
    assert (crew[D].wiring_generation, crew[D].phase) == (3, Phase.OUTSIDE)


def test_a_world_without_it_is_none_of_its_business() -> None:
    crew = outside()
    assert crew.tell(D, worlds=(*crew.view.worlds, world(2, A, B, D), world(3, A, B))) == (Wire(world(2, A, B, D)),)


def test_a_spare_wires_nothing() -> None:
    crew = outside()
    assert crew.said(D) == ()
    assert (crew[D].phase, crew[D].wiring_generation) == (Phase.OUTSIDE, 0)


def test_a_newer_world_takes_the_wirings_place() -> None:
    """Rule 7: one wiring at a time, and it can be broken."""
    crew = outside()
    crew.propose(world(2, A, B, C, D), D)
    assert crew.tell(D) == ()
    crew.hush()
    crew.propose(world(3, A, B, C, D), D)
    assert crew.said(D) == (Break(2), Wire(world(3, A, B, C, D)))
    assert crew[D].wiring_generation == 3
    assert crew.feed(D, Wired(2)) == ()
    assert (crew[D].wiring_generation, crew[D].wired_worlds) == (3, ())
    assert crew.feed(D, WireFailed(2, A)) == ()
    assert (crew[D].wiring_generation, crew[D].unwirable_generation) == (3, 0)


def test_what_is_wired_is_kept_beside_what_is_newer() -> None:
    crew = outside()
    second, third = world(2, A, B, C, D), world(3, A, B, C, D)
    crew.propose(second, D)
    crew.wire(2, D)
    assert (crew[D].wiring_generation, crew[D].wired_worlds) == (0, (second,))
    assert crew.tell(D) == ()
    crew.hush()
    crew.propose(third, D)
    assert crew.said(D) == (Wire(third),)
    crew.wire(3, D)
    assert crew[D].wired_worlds == (second, third)


def test_a_world_that_could_not_be_wired_is_accused_and_not_tried_again() -> None:
    """Rule 11: the peer is named, so that a bad pair can be told."""
    crew = outside()
    crew.propose(world(2, A, B, C, D), D)
    assert crew.feed(D, WireFailed(2, B)) == (Send(WiringFailed(D, 2, B)),)
    assert (crew[D].wiring_generation, crew[D].unwirable_generation, crew[D].unwirable_peer) == (0, 2, B)
    assert crew.tell(D) == ()
    crew.hush()
    crew.propose(world(3, A, C, D), D)
    assert crew.said(D) == (Wire(world(3, A, C, D)),)


def test_a_world_sealed_while_it_was_wired_is_given_up() -> None:
    """The barrier returns, but the coordinator has gone on."""
    crew = outside()
    crew.propose(world(2, A, B, C, D), D)
    crew.tell(D, worlds=(recovery(3, A, B, C),), sealed=2)
    assert crew[D].wiring_generation == 2
    assert crew.feed(D, Wired(2)) == ()
    assert (crew[D].wiring_generation, crew[D].wired_worlds) == (0, ())


def test_an_older_view_is_ignored() -> None:
    crew = outside()
    old = crew.view
    crew.propose(world(2, A, B, C, D), D)
    machine = crew[D]
    assert crew.feed(D, ViewReceived(old)) == ()
    assert crew.feed(D, ViewReceived(crew.view)) == ()
    assert crew[D] == machine


@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.HOLDING, Phase.LINGERING])
def test_who_stopped_wires_recovery_worlds_only(phase: Phase) -> None:
    """Rule 10."""
    crew = training(A, B, C)
    crew[A].phase = phase
    assert crew.tell(A, worlds=(*crew.view.worlds, world(2, A, B, C))) == ()
    assert crew[A].wiring_generation == 0


def test_who_is_about_to_stop_wires_recovery_worlds_only() -> None:
    """Rule 10: its user code still runs, its world is over."""
    crew = training(A, B, C)
    assert crew.tell(A, gone_in_open_worlds=frozenset({C}), worlds=(*crew.view.worlds, world(2, A, B))) == ()
    assert (crew[A].phase, crew[A].stop_reason) == (Phase.COMPUTING, "c is gone")
    after = recovery(3, A, B, base=crew.view.durable)
    assert crew.tell(A, gone_in_open_worlds=frozenset(), worlds=(after,), sealed=2) == (Wire(after),)
    assert crew.feed(A, Wired(3)) == ()
    assert (crew[A].phase, crew[A].generation) == (Phase.COMPUTING, 1)


def test_a_recovery_world_is_entered_as_soon_as_the_last_operation_returned() -> None:
    """Rules 9, 10: it was wired while the reduction hung; the hello waits for that to return."""
    crew = training(A, B, C)
    crew.compute(A)
    crew.crash(C)
    after = recovery(2, A, B, base=crew.view.durable)
    assert crew.tell(A, worlds=(after,), sealed=1) == (Break(1), Wire(after))
    assert crew.feed(A, Wired(2)) == ()
    assert (crew[A].generation, crew[A].in_flight, crew[A].wired_worlds) == (1, True, (after,))
    actions = crew.feed(A, Failed(1, C))
    hello = Word(
        Purpose.HELLO,
        2,
        0,
        crew[A].lineage,
        holds=True,
        state=crew.state(A).hash,
        kept=frozenset({0, 1}),
    )
    assert actions == (Break(1), Collect(after, hello))
    assert (crew[A].generation, crew[A].phase, crew[A].wired_worlds) == (2, Phase.COLLECTING, ())


def test_a_recovery_world_is_entered_when_the_user_code_is_done() -> None:
    crew = training(A, B, C)
    after = crew.recover(2, A, B, C)
    crew.wire(2)
    assert [crew[name].generation for name in (A, B, C)] == [1, 1, 1]
    crew.hush()
    crew.feed(A, computed(3, 1))
    word = Word(Purpose.HELLO, 2, 0, crew[A].lineage, True, crew.state(A).hash, kept=frozenset({1}))
    assert crew.said(A) == (Break(1), Collect(after, word))


def test_of_two_recovery_worlds_the_newer_one_is_entered() -> None:
    crew = training(A, B, C)
    crew.recover(2, A, B, C)
    crew.wire(2, A)
    crew.recover(3, A, B, C)
    crew.wire(3, A)
    assert [one.number for one in crew[A].wired_worlds] == [2, 3]
    crew.feed(A, computed(3, 0))
    assert (crew[A].generation, crew[A].wired_worlds) == (3, ())


def test_a_recovery_world_that_is_sealed_already_is_not_entered() -> None:
    """Rule 10: only one with a number above all it knows. 2 was wired in user code, 3 is still being wired."""
    crew = training(A, B, C)
    crew.recover(2, A, B, C)
    crew.wire(2, A)
    crew.recover(3, A, B, C)
    crew.feed(A, computed(3, 0))
    assert (crew[A].phase, crew[A].generation, crew[A].wiring_generation) == (Phase.STOPPED, 1, 3)
    crew.wire(3, A)
    assert (crew[A].generation, crew[A].wired_worlds, crew[A].phase) == (3, (), Phase.COLLECTING)


def test_what_was_told_before_a_world_is_entered_holds_for_it_too() -> None:
    """Rule 10: B died while A's user code ran; the hello that would wait for it is broken at once."""
    crew = training(A, B, C)
    crew.recover(2, A, B, C)
    crew.wire(2, A)
    crew.tell(A, gone_in_open_worlds=frozenset({B}))
    crew.hush()
    crew.feed(A, computed(3, 0))
    assert crew.said(A)[-1] == Break(2)
    assert (crew[A].generation, crew[A].in_flight, crew[A].stop_reason) == (2, True, "b is gone")
    crew.fails(A)
    assert (crew[A].generation, crew[A].phase) == (2, Phase.STOPPED)


def test_a_failure_is_said_again_until_the_coordinator_is_further() -> None:
    crew = outside()
    crew.propose(world(2, A, B, C, D), D)
    crew.feed(D, WireFailed(2, B))
    again = (Send(WiringFailed(D, 2, B)),)
    assert crew.feed(D, Tick()) == again
    crew.tell(D, sealed=1)
    assert crew.feed(D, Tick()) == again
    crew.tell(D, sealed=2)
    assert crew.feed(D, Tick()) == ()


def test_a_failure_is_not_said_again_once_a_later_world_was_entered() -> None:
    crew = training(A, B)
    crew.propose(world(2, A, B))
    crew.feed(A, WireFailed(2, B))
    assert crew.feed(A, Tick())[0] == Send(WiringFailed(A, 2, B))
    crew.propose(world(3, A, B))
    crew.wire(3)
    crew.step()
    assert crew[A].generation == 3
    assert Send(WiringFailed(A, 2, B)) not in crew.feed(A, Tick())


def test_a_finished_member_wires_nothing_more() -> None:
    crew = training(A, B)
    crew[A].phase = Phase.DONE
    assert crew.tell(A, worlds=(*crew.view.worlds, world(2, A, B))) == ()


def test_a_job_begins_outside_every_world() -> None:
    machine = Machine(A, TERMS)
    assert (machine.phase, machine.generation, machine.rank) == (Phase.OUTSIDE, 0, -1)
    assert (machine.lineage, machine.holds_state) == (GENESIS, False)
    assert react(machine, Tick()) == (machine, ())
    assert react(machine, Wired(0)) == (machine, ())


def test_the_first_world_is_entered_as_soon_as_it_is_wired() -> None:
    crew = Crew(A, B)
    first = rollback(1, A, B)
    crew.seal(first)
    assert crew.said(B) == (Wire(first),)
    crew.wire(1)
    assert crew.said(B) == (Collect(first, Word(Purpose.HELLO, 1, 0, GENESIS, holds=False)),)
    assert (crew[B].generation, crew[B].rank, crew[B].phase) == (1, 1, Phase.COLLECTING)


def test_a_planned_world_is_not_entered_because_it_is_wired() -> None:
    """Rule 4: planned worlds are entered by the switch alone."""
    crew = gathered(A)
    crew.answer(A)
    crew.returns()
    crew.propose(world(2, A))
    crew.hush()
    crew.wire(2)
    assert crew.said(A) == ()
    assert (crew[A].generation, crew[A].phase) == (1, Phase.COMPUTING)
    crew.step()
    assert crew.said(A)[-1] == Compute(2, (0, 1, 2, 3, 4, 5), idle=False)
    assert crew[A].generation == 2
