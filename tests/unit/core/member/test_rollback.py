"""Back to a checkpoint, or to the very beginning, when no member holds a state to go on from (rules 4, 12)."""

from dataclasses import replace

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import (
    Break,
    Collect,
    Compute,
    Fetch,
    Restore,
    Restored,
    RestoreFailed,
    Send,
    Wire,
    WriteDone,
)
from pliant.core.member.state import KeptGradients
from pliant.core.messages import NotReadable, Report, Stopped
from pliant.core.model.checkpoint import Checkpoint
from unit.core.build import A, B, C
from unit.core.member.drive import (
    EMPTY,
    KNOWN,
    LAST,
    Crew,
    State,
    commands,
    lines,
    recovery,
    rollback,
    these,
    training,
)

STEPS = lines(GENESIS, 1, LAST)
BASE = STEPS[1].lineage
PUBLISHED = Checkpoint(BASE, "published", State(BASE, 5, 2).hash)


def rolled_back() -> Crew:
    """A, B and C were in step 6 when they were told to go back to the checkpoint of step 2."""
    crew = training(A, B, C, step=6)
    crew.files["published"] = State(BASE, 5, 2)
    crew.states[BASE] = PUBLISHED.state
    crew.compute()
    crew.feed(A, WriteDone(Checkpoint(STEPS[4].lineage, "never published", 1)))
    crew.fails()
    crew.hush()
    crew.view = replace(crew.view, checkpoint=PUBLISHED)
    crew.seal(rollback(2, A, B, C, base=BASE))
    crew.wire(2)
    return crew


def test_the_first_rank_brings_the_checkpoint_back_for_every_member() -> None:
    crew = rolled_back()
    world = rollback(2, A, B, C, base=BASE)
    assert crew.said(A)[1:] == (Wire(world), Restore(PUBLISHED))
    m = crew[A]
    assert (m.phase, m.generation, m.in_flight) == (Phase.RESTORING, 2, False)
    assert crew.said(B) == (Wire(world), Collect(world, Word(Purpose.HELLO, 2, 0, GENESIS, holds=False)))


def test_what_a_member_had_is_not_on_the_history_any_more() -> None:
    """Rule 18: state, steps, snapshots and manifests of the branch that was given up."""
    crew = rolled_back()
    for name in (A, B):
        m = crew[name]
        assert (m.holds_state, m.lineage, m.applied_line, tuple(m.committed_lines)) == (False, GENESIS, None, ())
        assert (m.part_in_progress, m.unpublished_part, m.unreported_failure, m.kept_gradients) == (
            None,
            None,
            None,
            KeptGradients(),
        )


def test_what_was_restored_is_what_the_comparison_finds() -> None:
    crew = rolled_back()
    crew.hush()
    crew.answer(A)
    world = rollback(2, A, B, C, base=BASE)
    word = Word(Purpose.HELLO, 2, 0, BASE, holds=True, state=PUBLISHED.state)
    assert crew.said(A) == (Collect(world, word),)
    m = crew[A]
    assert (m.holds_state, m.lineage, m.state_hash, m.kept_gradients) == (
        True,
        BASE,
        PUBLISHED.state,
        KeptGradients(base=BASE),
    )
    crew.returns()
    assert crew.said(A) == (Collect(world, word), Send(Report(A, 0, 2, (), frozenset({A}))))
    assert crew.said(B) == (Fetch(2, (A,)),)
    assert crew[A].holders == these(0)


def test_no_member_computes_before_every_member_holds_what_was_restored() -> None:
    """Rule 12: the first rank alone may not have the memory for every member's slots."""
    crew = rolled_back()
    crew.answer(A)
    crew.returns()
    crew.receive(B, C)
    crew.install(B)
    assert [crew[name].phase for name in (A, B, C)] == [Phase.COLLECTING, Phase.COLLECTING, Phase.INSTALLING]
    crew.install(C)
    crew.hush()
    crew.returns()
    assert [crew.said(name)[0] for name in (A, B, C)] == [
        Compute(3, (0, 1), idle=False),
        Compute(3, (2, 3), idle=False),
        Compute(3, (4, 5), idle=False),
    ]
    assert crew[A].holders == these(0, 1, 2)


def test_the_steps_after_the_base_are_taken_again() -> None:
    """Rule 24: in another generation, and so with another lineage."""
    crew = rolled_back()
    crew.run(lambda: all(crew[name].phase is Phase.DONE for name in (A, B, C)))
    assert [crew.state(name) for name in (B, C)] == [crew.state(A)] * 2
    KNOWN[BASE] = crew.files[PUBLISHED.name]
    assert crew[A].lineage == lines(BASE, 2, LAST - 2)[-1].lineage


@pytest.mark.parametrize("damaged", [True, False])
def test_who_cannot_read_the_checkpoint_says_so_and_stops(damaged: bool) -> None:
    """The coordinator says where to go back to instead, or who else may try."""
    crew = rolled_back()
    crew.hush()
    said = commands(*crew.feed(A, RestoreFailed("a bit flipped", damaged)))
    assert said[0] == NotReadable(A, 2, "published", "a bit flipped", damaged)
    assert isinstance(said[1], Stopped)
    assert (said[1].stateless, crew[A].phase, crew[A].holds_state) == (True, Phase.STOPPED, False)
    assert crew.feed(A, RestoreFailed("a bit flipped", damaged)) == ()


def test_who_cannot_read_the_checkpoint_of_a_world_that_is_over_waits_for_the_next() -> None:
    crew = rolled_back()
    crew.tell(A, gone_in_open_worlds=frozenset({C}))
    assert crew[A].phase is Phase.RESTORING
    said = commands(*crew.feed(A, RestoreFailed("a bit flipped", damaged=True)))
    assert [type(each) for each in said] == [NotReadable, Stopped]
    assert crew[A].phase is Phase.STOPPED


def test_a_rollback_to_the_beginning_needs_no_checkpoint() -> None:
    """The one in the store may be of a history that was given up: the base says which state, not the newest file."""
    crew = Crew(A, B)
    crew.tell(checkpoint=PUBLISHED)
    crew.seal(rollback(1, A, B))
    crew.wire(1)
    assert crew.said(A)[-1] == Restore(None)


def test_rank_0_is_no_member_special_beyond_that() -> None:
    crew = Crew(A, B)
    crew.seal(rollback(1, B, A))
    crew.wire(1)
    assert crew.said(B)[-1] == Restore(None)
    assert crew[A].phase is Phase.COLLECTING


def test_a_recovery_world_restores_nothing() -> None:
    crew = training(A, B)
    crew.compute()
    crew.fails()
    crew.recover(2, A, B)
    crew.hush()
    crew.wire(2)
    assert not any(isinstance(action, Restore) for action in crew.said(A))
    assert crew[A].holds_state


def test_a_restoration_is_not_interrupted() -> None:
    """Rule 10: the next safe moment is when it is done."""
    crew = rolled_back()
    crew.hush()
    assert crew.tell(A, sealed=2) == ()
    assert (crew[A].phase, crew[A].stop_reason) == (Phase.RESTORING, "generation 2 is sealed")
    assert crew.feed(A, Restored(4)) == (Break(2),)
    assert (crew[A].phase, crew[A].holds_state, crew[A].lineage) == (Phase.STOPPED, True, BASE)


def test_a_restored_state_that_no_member_asked_for_changes_nothing() -> None:
    crew = rolled_back()
    crew.answer(A)
    machine = crew[A]
    assert crew.feed(A, Restored(4)) == ()
    assert crew[A] == machine


def test_a_rollback_forgets_what_was_on_its_way() -> None:
    """A joiner half way through a transfer starts anew."""
    crew = training(A, B)
    crew.compute()
    crew.fails()
    crew.seal(recovery(2, A, B, base=crew.view.durable))
    crew.wire(2)
    crew.seal(rollback(3, B, A))
    crew.fails()
    crew.wire(3)
    assert [(crew[name].holds_state, crew[name].holders) for name in (A, B)] == [(False, EMPTY)] * 2
    assert (crew[B].phase, crew[A].phase) == (Phase.RESTORING, Phase.COLLECTING)
