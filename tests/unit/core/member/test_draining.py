"""Going with notice: drains, grace periods, and a world in which every member must go (rule 16)."""

from dataclasses import replace

import pytest

from pliant.core.data.ledger import GENESIS, Lineage
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Phase
from pliant.core.member.control_words import CALM, LEAVING, OUT_OF_TIME, Purpose, Word
from pliant.core.member.signals import (
    Break,
    Collect,
    CollectGarbage,
    Compute,
    DrainNotice,
    Exit,
    GraceOver,
    GraceShort,
    Released,
    Save,
    Send,
    Snapshot,
    StartGrace,
    Tick,
    Wire,
)
from pliant.core.messages import Drain, Leave, Report
from pliant.core.model.checkpoint import Checkpoint
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, Crew, computed, lines, recovery, rollback, training

STEPS = lines(GENESIS, 1, LAST)
OVER = "the grace period is over"


def short_of_time(*names: MemberId) -> Crew:
    """A and B in step 3; the grace periods of these members are all but over."""
    crew = training(A, B)
    for name in names:
        crew.feed(name, DrainNotice(30.0, "spot"))
        crew.feed(name, GraceShort())
    crew.hush()
    return crew


def closed() -> Crew:
    """A and B both had to go: their world closed after step 3, and each writes its part of the checkpoint."""
    crew = short_of_time(A, B)
    crew.step()
    crew.returns()
    crew.hush()
    return crew


# -------------------------------------------------------------------------------------------------- the notice


def test_a_notice_starts_the_grace_period_and_is_passed_on() -> None:
    crew = training(A, B)
    assert crew.feed(A, DrainNotice(30.0, "spot")) == (StartGrace(30.0), Send(Drain(A, 30.0, "spot")))
    assert (crew[A].drain_urgency, crew[A].phase) == (LEAVING, Phase.COMPUTING)
    crew.compute(A)
    assert crew.word(A).drain_urgency == LEAVING


def test_a_second_notice_does_not_stretch_the_grace_period() -> None:
    crew = training(A, B)
    crew.feed(A, DrainNotice(30.0, "spot"))
    assert crew.feed(A, DrainNotice(99.0, "again")) == ()
    assert crew.feed(A, GraceShort()) == ()
    assert crew.feed(A, DrainNotice(99.0, "again")) == ()
    assert crew[A].drain_urgency == OUT_OF_TIME


def test_a_shorter_grace_period_replaces_a_longer_one() -> None:
    crew = training(A, B)
    crew.feed(A, DrainNotice(30.0, "spot"))
    assert crew.tell(A, draining=True, grace_s=9.0) == (StartGrace(9.0),)
    assert crew.feed(A, DrainNotice(2.0, "now")) == (StartGrace(2.0), Send(Drain(A, 2.0, "now")))


def test_the_coordinators_word_to_drain_starts_the_grace_period_once() -> None:
    crew = training(A, B)
    assert crew.tell(A, draining=True, grace_s=12.0) == (StartGrace(12.0),)
    assert crew[A].drain_urgency == LEAVING
    assert crew.tell(A, draining=True, grace_s=12.0) == ()
    assert crew.tell(B, draining=False, grace_s=12.0) == ()
    assert crew[B].drain_urgency == CALM


def test_who_had_a_notice_needs_no_word_to_drain() -> None:
    crew = training(A, B)
    crew.feed(A, DrainNotice(30.0, "spot"))
    assert crew.tell(A, draining=True, grace_s=30.0) == ()
    crew.feed(A, GraceShort())
    assert crew.tell(A, draining=True, grace_s=30.0) == ()
    assert crew[A].drain_urgency == OUT_OF_TIME


def test_who_is_in_no_world_goes_at_once_on_a_notice() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(world(2, A, B, D), D)
    crew.hush()
    assert crew.feed(D, DrainNotice(30.0, "spot")) == (
        StartGrace(30.0),
        Send(Drain(D, 30.0, "spot")),
        Break(2),
        Send(Leave(D, 0, "spot")),
        Exit(0, "spot"),
    )
    assert crew[D].phase is Phase.GONE


def test_who_is_in_no_world_goes_at_once_on_the_coordinators_word() -> None:
    crew = training(A, B)
    crew.add(D)
    why = "drained before it was needed"
    assert crew.tell(D, draining=True, grace_s=5.0) == (StartGrace(5.0), Send(Leave(D, 0, why)), Exit(0, why))


def test_a_drained_member_leaves_by_the_next_world() -> None:
    """P2: at a boundary, and nothing is lost."""
    crew = training(A, B, C)
    crew.feed(C, DrainNotice(30.0, "spot"))
    crew.propose(world(2, A, B))
    crew.run(lambda: crew[C].phase is Phase.GONE)
    assert crew.said(C)[-1] == Exit(0, "left as planned")
    crew.run(lambda: all(crew[name].phase is Phase.DONE for name in (A, B)))
    assert [line.lineage.step for line in crew.history] == list(range(1, LAST + 1))
    assert {line.lineage.generation for line in crew.history} == {1, 2}


# ------------------------------------------------------------------------------------------------ every member goes


def test_when_every_holder_is_out_of_time_the_world_closes() -> None:
    """Rule 16, H11: a spot storm. No member would be left to hold the state, so it is written down."""
    crew = short_of_time(A, B)
    crew.compute()
    assert [crew.word(name).drain_urgency for name in (A, B)] == [OUT_OF_TIME, OUT_OF_TIME]
    crew.returns()
    assert [crew[name].closing for name in (A, B)] == [True, True]
    crew.hush()
    crew.boundary()
    third = STEPS[2].lineage
    word = Word(Purpose.CLOSE, 1, 0, third, holds=True, state=crew.state(A).hash, drain_urgency=OUT_OF_TIME)
    assert crew.said(A) == (Collect(rollback(1, A, B), word),)
    crew.returns()
    committed = (STEPS[1], STEPS[2])
    assert crew.said(A) == (
        Send(Report(A, 0, 1, committed, None)),
        Snapshot(third, checkpoint_name(third, 1), 0, 2, waits=True),
        Save(checkpoint_name(third, 1)),
    )
    assert crew.said(B)[1:] == (
        Send(Report(B, 1, 1, committed, None)),
        Snapshot(third, checkpoint_name(third, 1), 1, 2, waits=True),
        Save(checkpoint_name(third, 1)),
    )
    assert crew[A].committed_lines == committed
    assert [crew[name].phase for name in (A, B)] == [Phase.LINGERING, Phase.LINGERING]


def test_who_is_to_go_at_once_saves_the_state_at_the_next_boundary() -> None:
    """A member waits for it to be gone, and no member is there to take the state over."""
    crew = training(A, B)
    crew.tell(draining=True, grace_s=30.0, immediate=True)
    crew.compute()
    assert [crew.word(name).drain_urgency for name in (A, B)] == [OUT_OF_TIME, OUT_OF_TIME]
    crew.returns()
    assert crew[A].closing


@pytest.mark.parametrize("hurried", [(), (A,), (B,)])
def test_while_one_holder_has_time_the_world_goes_on(hurried: tuple[MemberId, ...]) -> None:
    crew = short_of_time(*hurried)
    crew.step()
    assert [crew[name].closing for name in (A, B)] == [False, False]
    assert crew[A].phase is Phase.COMPUTING


def test_who_is_leaving_but_has_time_does_not_close_the_world() -> None:
    crew = training(A, B)
    for name in (A, B):
        crew.feed(name, DrainNotice(30.0, "spot"))
    crew.step()
    assert crew[A].phase is Phase.COMPUTING


def test_a_switch_is_better_than_closing() -> None:
    """D holds the state in the next world: the others may go without a checkpoint."""
    crew = short_of_time(A, B)
    crew.propose(world(2, B))
    crew.wire(2)
    crew.compute()
    crew.returns()
    assert (crew[B].switch_to, crew[B].closing) == (2, False)
    crew.boundary()
    assert (crew[A].phase, crew[B].generation) == (Phase.LINGERING, 2)


def test_a_closed_world_is_left_when_its_checkpoint_is_published() -> None:
    """Rule 16: no holder exits before its deadline unless a checkpoint of that step is published."""
    crew = closed()
    third = STEPS[2].lineage
    name = checkpoint_name(third, 1)
    assert crew.answer(A)
    assert crew.answer(B)
    [first, publish] = crew.said(A)
    assert first == Send(Report(A, 0, 1, (STEPS[1], STEPS[2]), None))
    assert isinstance(publish, Send)
    assert crew.tell(B, checkpoint=Checkpoint(STEPS[1].lineage, "older", 1)) == ()
    assert crew.tell(B, checkpoint=Checkpoint(Lineage(1, 3, 9), "of another history", 1)) == ()
    assert [crew[member].phase for member in (A, B)] == [Phase.LINGERING, Phase.LINGERING]
    why = "left as planned"
    for member in (A, B):
        crew.hush()
        crew.tell(member, checkpoint=Checkpoint(third, name, crew.state(A).hash))
        tidies = (
            (CollectGarbage(crew.view.checkpoint, (A, B), (), 0, 1, 1),) if member == A and crew.view.checkpoint else ()
        )
        assert crew.said(member) == (*tidies, Break(1), Send(Leave(member, 0, why)), Exit(0, why))


def test_who_lingers_takes_no_step_and_reports_nothing() -> None:
    crew = closed()
    assert crew.feed(B, Tick()) == ()


def test_a_checkpoint_that_is_there_already_is_not_waited_for() -> None:
    crew = short_of_time(A, B)
    crew.step()
    crew.tell(B, checkpoint=Checkpoint(STEPS[2].lineage, "published", 1))
    crew.hush()
    crew.returns(B)
    assert crew.said(B)[-1] == Exit(0, "left as planned")


def test_a_closed_world_may_yet_be_recovered() -> None:
    """Rule 11: lingering members are members. A replacement arrived in time.

    The parts they were writing are void with the generation, so each begins to save alone.
    """
    crew = closed()
    crew.add(D)
    after = crew.recover(2, A, B, D)
    third, alone = STEPS[2].lineage, checkpoint_name(STEPS[2].lineage, 1, A)
    assert crew.said(A) == (Break(1), Wire(after), Snapshot(third, alone, 0, 1, waits=True), Save(alone))
    assert (crew[A].phase, crew[A].closing) == (Phase.STOPPED, False)
    crew.wire(2)
    crew.returns()
    crew.receive(D)
    crew.install(D)
    crew.returns()
    assert [crew[name].phase for name in (A, B, D)] == [Phase.COMPUTING] * 3


def beside_a_joiner() -> Crew:
    """A took step 3 alone and let B into generation 2, which holds no state yet."""
    crew = training(A)
    crew.add(B)
    crew.propose(world(2, A, B))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    return crew


def test_a_member_without_state_closes_with_the_others_and_stays() -> None:
    """It has time, and what is published is not its own: it waits for a world to take it."""
    crew = beside_a_joiner()
    crew.feed(A, DrainNotice(30.0, "spot"))
    crew.feed(A, GraceShort())
    crew.step()
    assert (crew.word(B).purpose, crew[B].closing) == (Purpose.CLOSE, True)
    crew.returns()
    assert (crew[A].phase, crew[B].phase) == (Phase.LINGERING, Phase.LINGERING)
    assert crew.tell(B, checkpoint=Checkpoint(crew[A].lineage, "x", 1)) == ()
    assert crew[B].phase is Phase.LINGERING


def test_the_hurry_of_a_member_without_state_does_not_close_the_world() -> None:
    crew = beside_a_joiner()
    crew.feed(B, GraceShort())
    crew.step()
    crew.step()
    assert crew[A].phase is Phase.COMPUTING
    assert crew[A].lineage.step == 5


def test_who_installs_while_the_world_closes_closes_with_it() -> None:
    crew = beside_a_joiner()
    crew.feed(A, GraceShort())
    crew.receive(B)
    crew.step()
    crew.install(B)
    [fourth] = lines(STEPS[2].lineage, 2, 1)
    word = crew.word(B)
    assert (word.purpose, word.holds, word.lineage) == (Purpose.CLOSE, True, fourth.lineage)
    crew.returns()
    assert (crew[B].phase, crew[B].applied_line, tuple(crew[B].committed_lines)) == (
        Phase.LINGERING,
        None,
        (*STEPS[1:3], fourth),
    )


# ------------------------------------------------------------------------------------------ the end of the grace


@pytest.mark.parametrize("complete", [False, True])
def test_when_the_grace_period_is_over_a_member_goes(complete: bool) -> None:
    """H26: too late for a boundary, so this counts as a crash; unless the run is over."""
    crew = training(A, B, step=LAST if complete else 3)
    crew.feed(A, DrainNotice(1.0, "spot"))
    if complete:
        crew.step()
        crew.returns()
        assert crew[A].phase is Phase.DONE
    assert crew.feed(A, GraceOver()) == (Break(1), Send(Leave(A, 0, OVER)), Exit(0, OVER, complete))
    assert crew[A].phase is Phase.GONE


def test_a_member_whose_grace_is_over_in_mid_step_loses_its_own_slots_only() -> None:
    """H26, P2: the others redo what it had."""
    crew = training(A, B, C)
    crew.compute()
    crew.feed(C, GraceOver())
    crew.fails(A, B, peer=C)
    crew.recover(2, A, B)
    crew.wire(2)
    crew.hush()
    crew.returns()
    assert crew.said(A)[0] == Compute(3, (4,), idle=False)


def test_a_lingering_leaver_goes_when_its_grace_is_over() -> None:
    crew = training(A, B)
    crew.propose(world(2, A), A)
    crew.wire(2)
    crew.step()
    assert crew[B].phase is Phase.LINGERING
    assert crew.feed(B, GraceOver()) == (Break(1), Send(Leave(B, 0, OVER)), Exit(0, OVER))


def test_a_wiring_under_way_is_broken_by_who_goes() -> None:
    """H22: no member must hang in a constructor because a member left."""
    crew = training(A, B)
    crew.propose(world(2, A, B), A)
    crew.feed(A, computed(3, 0))
    assert crew.feed(A, GraceOver()) == (Break(2), Break(1), Send(Leave(A, 0, OVER)), Exit(0, OVER))


def test_a_leaver_that_a_recovery_counts_on_stays() -> None:
    """Rule 16: the member that took over may be lost since; then the one on its way out has the last state."""
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.wire(2, A, B)
    crew.step()
    assert crew[C].phase is Phase.LINGERING
    crew.tell(C, worlds=(recovery(3, C, B),), current=2, sealed=2)
    assert crew[C].phase is Phase.STOPPED
    crew.feed(C, Released(2))
    assert crew[C].phase is Phase.STOPPED


def test_a_leaver_is_not_let_go_by_a_peer_once_a_recovery_counts_on_it() -> None:
    crew = training(A, B, C)
    crew.propose(world(2, A, B))
    crew.wire(2, A, B)
    crew.step()
    view = crew[C].view
    assert view is not None
    crew[C].view = replace(view, worlds=(recovery(3, C, B),))
    assert crew.feed(C, Released(2)) == ()
    assert crew[C].phase is Phase.LINGERING
