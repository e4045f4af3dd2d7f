"""Too few to train: the members of a world that holds commit what they applied, save it, and wait (rule 16)."""

from dataclasses import replace

import pytest

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.leave import grace_margin_s
from pliant.core.member.signals import (
    Break,
    Collect,
    DrainNotice,
    Exit,
    GraceOver,
    GraceShort,
    Released,
    Returned,
    Save,
    Send,
    SendToPeer,
    Snapshot,
    Tick,
    Wire,
)
from pliant.core.messages import Leave, Report
from pliant.core.model.checkpoint import Checkpoint
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import EMPTY, LAST, Crew, lines, recovery, these, training

STEPS = lines(GENESIS, 1, LAST)
HOLD = world(2, A, B, hold=True)


def closing() -> Crew:
    """C leaves, and the two that stay are too few: they have entered generation 2, which holds."""
    crew = training(A, B, C)
    crew.propose(HOLD)
    crew.wire(2)
    crew.step()
    return crew


def holding() -> Crew:
    crew = closing()
    crew.returns()
    crew.hush()
    return crew


def test_a_world_that_holds_begins_with_the_closing_collective() -> None:
    """It takes no step: its words commit the last one."""
    crew = closing()
    word = Word(Purpose.CLOSE, 2, 0, STEPS[2].lineage, holds=True, state=crew.state(A).hash)
    assert crew.said(A)[-1] == Collect(HOLD, word)
    assert crew.said(B)[-1] == Collect(HOLD, word)
    assert (crew[A].applied_line, crew[A].phase) == (STEPS[2], Phase.COLLECTING)


def test_who_holds_commits_reports_and_writes_a_checkpoint_at_once() -> None:
    """Rule 16: below min, checkpoint at once, each its part."""
    crew = closing()
    crew.hush()
    crew.returns()
    committed = (STEPS[1], STEPS[2])
    third = STEPS[2].lineage
    said = tuple(dict.fromkeys(crew.said(A)))
    assert said == (
        SendToPeer(C, Released(2)),
        Break(1),
        Send(Report(A, 0, 2, committed, frozenset({A, B}))),
        Snapshot(third, checkpoint_name(third, 2), 0, 2, waits=True),
        Save(checkpoint_name(third, 2)),
    )
    said = tuple(dict.fromkeys(crew.said(B)))
    assert said == (
        SendToPeer(C, Released(2)),
        Break(1),
        Send(Report(B, 1, 2, committed, frozenset({A, B}))),
        Snapshot(third, checkpoint_name(third, 2), 1, 2, waits=True),
        Save(checkpoint_name(third, 2)),
    )
    for name in (A, B):
        m = crew[name]
        assert (m.phase, m.applied_line, tuple(m.committed_lines)) == (Phase.HOLDING, None, committed)
        assert m.part_in_progress is not None
        assert m.part_in_progress.confirmed
        assert (m.holds_state, m.holders, m.in_flight) == (True, these(0, 1), False)


def test_who_holds_says_so_and_takes_no_step() -> None:
    crew = holding()
    crew.tell()
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 2, (), None)),)
    assert crew.answer(B)  # its part of the checkpoint
    assert not any(crew.answer(name) for name in (B, C))


def test_the_wait_ends_with_a_recovery_world() -> None:
    """Without steps there are no words to switch by."""
    crew = holding()
    crew.add(D)
    after = crew.recover(3, A, B, D)
    assert crew.said(A) == (Break(2), Wire(after))
    assert (crew[A].phase, crew[A].stop_reason) == (Phase.STOPPED, "generation 2 is sealed")
    crew.wire(3)
    assert (crew.word(A).purpose, crew.word(A).lineage) == (Purpose.HELLO, STEPS[2].lineage)
    crew.run(lambda: all(crew[name].phase is Phase.DONE for name in (A, B, D)))
    assert [crew.state(name) for name in (B, D)] == [crew.state(A)] * 2
    assert [line.lineage.step for line in crew.history] == list(range(1, LAST + 1))


def test_a_planned_world_is_not_for_who_holds() -> None:
    """Rule 10."""
    crew = holding()
    crew.propose(world(3, A, B, D), A)
    assert crew.said(A) == ()
    assert crew[A].wiring_generation == 0


def test_who_hears_while_it_closes_that_the_world_is_over_stops_after_it() -> None:
    crew = closing()
    after = recovery(3, A, B, D)
    assert crew.tell(A, sealed=2, worlds=(after,)) == (Break(2), Wire(after))
    crew.hush()
    crew.returns(A)
    assert crew.said(A)[-1] == Break(2)
    assert (crew[A].phase, crew[A].applied_line, crew[A].stop_reason) == (Phase.STOPPED, None, "generation 2 is sealed")


def test_a_member_that_holds_the_state_writes_its_part_of_the_checkpoint() -> None:
    """A joiner has nothing to write, whatever its rank."""
    crew = training(A, B)
    crew.add(D)
    crew.propose(world(2, D, A, B, hold=True))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.hush()
    crew.returns()
    wrote = [any(isinstance(action, Save) for action in crew.said(name)) for name in (D, A, B)]
    assert wrote == [False, True, True]
    assert (crew[D].phase, crew[D].holds_state) == (Phase.HOLDING, False)


def test_no_member_writes_a_checkpoint_of_a_state_no_member_holds() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(world(2, D, A, hold=True))
    crew.wire(2)
    crew.step()
    crew.deliver()
    words = tuple(replace(word, holds=False) for word in crew.words(D))
    actions = crew.feed(D, Returned(2, words))
    assert not any(isinstance(action, Save | Snapshot) for action in actions)
    assert (crew[D].phase, crew[D].holders, crew[D].applied_line) == (Phase.HOLDING, EMPTY, None)


def test_who_holds_and_is_to_go_waits_for_its_grace_period() -> None:
    """Rule 16: no holder exits before its deadline."""
    crew = holding()
    assert crew.feed(A, DrainNotice(30.0, "spot")) != ()
    assert crew[A].phase is Phase.HOLDING
    actions = crew.feed(A, GraceOver())
    assert actions == (
        Break(2),
        Send(Leave(A, 0, "the grace period is over")),
        Exit(0, "the grace period is over", complete=False),
    )


def saved(crew: Crew) -> Checkpoint:
    """The checkpoint of the state that every member in `holding` has."""
    return Checkpoint(crew[A].lineage, checkpoint_name(crew[A].lineage, 2), crew.state(A).hash)


def test_a_draining_member_that_holds_leaves_once_its_state_is_saved() -> None:
    """Rule 16: it keeps its state until the checkpoint of it is published."""
    crew = holding()
    crew.feed(A, DrainNotice(30.0, "spot"))
    crew.write(A, B)
    crew.hush()
    assert crew.tell(A) == ()
    assert crew.tell(A, checkpoint=saved(crew))[-3:] == (
        Break(2),
        Send(Leave(A, 0, "left as planned")),
        Exit(0, "left as planned"),
    )
    crew.tell(B)
    assert crew[B].phase is Phase.HOLDING  # it does not drain


def test_a_draining_member_that_holds_no_state_has_nothing_to_wait_for() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(world(2, D, A, B, hold=True))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.returns()
    crew.hush()
    assert crew[D].phase is Phase.HOLDING
    crew.tell(D)
    assert crew[D].phase is Phase.HOLDING
    crew.tell(D, draining=True, grace_s=30.0)
    assert crew[D].phase is Phase.GONE


def test_a_state_that_no_member_can_save_is_kept_for_a_replacement_until_the_grace_period_is_over() -> None:
    crew = holding()
    crew.seats[A].machine = replace(crew[A], cannot_save_ranks=these(0, 1), part_in_progress=None)
    crew.tell(A)
    crew.feed(A, DrainNotice(30.0, "spot"))
    crew.feed(A, GraceShort())
    crew.feed(A, Tick())
    assert crew[A].phase is Phase.HOLDING
    crew.feed(A, GraceOver())
    assert crew[A].phase is Phase.GONE


def test_a_state_that_no_member_can_save_is_given_up_at_once_where_the_whole_job_stops() -> None:
    crew = holding()
    crew.seats[A].machine = replace(crew[A], cannot_save_ranks=these(0, 1), part_in_progress=None)
    crew.tell(A, draining=True, grace_s=30.0, immediate=True)
    assert crew[A].phase is Phase.GONE


def test_survivors_below_min_commit_and_save_in_a_recovery_world_that_holds() -> None:
    """Rule 16: it says hello, as every recovery does, closes at once and takes no step."""
    crew = training(A, B, C)
    crew.crash(C)
    crew.seal(replace(recovery(2, A, B, base=crew.view.durable), hold=True))
    crew.run(lambda: crew[A].phase is crew[B].phase is Phase.HOLDING)
    assert [crew[name].applied_line for name in (A, B)] == [None, None]
    assert crew[A].lineage == crew[B].lineage == crew.history[-1].lineage
    begun = [action for action in crew.said(A) if isinstance(action, Snapshot)]
    assert [action.lineage for action in begun] == [crew[A].lineage]


@pytest.mark.parametrize(
    ("grace_s", "save_s", "margin_s"),
    [
        (30.0, 0.0, 3.0),  # no save was measured: a fifth of the grace period, 3 s at most
        (10.0, 0.0, 2.0),
        (30.0, 8.0, 13.0),  # a quarter more than the save before, and the usual margin
        (10.0, 0.1, 2.125),
        (10.0, 60.0, 10.0),  # there is not enough time: save at once
    ],
)
def test_a_member_starts_to_save_early_enough_for_a_save_as_long_as_the_last(
    grace_s: float, save_s: float, margin_s: float
) -> None:
    assert grace_margin_s(grace_s, save_s) == pytest.approx(margin_s)
