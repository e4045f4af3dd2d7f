"""Too few to train: the members of a world that holds commit what they applied, save it, and wait (rule 16)."""

from dataclasses import replace

from pliant.core.data.ledger import GENESIS
from pliant.core.job.checkpoints import checkpoint_name
from pliant.core.member import Phase
from pliant.core.member.control_words import Purpose, Word
from pliant.core.member.signals import (
    Break,
    Collect,
    DrainNotice,
    Exit,
    GraceOver,
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
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, NOBODY, Crew, lines, recovery, these, training

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
        assert (m.phase, m.applied_line, m.committed_lines) == (Phase.HOLDING, None, committed)
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


def test_whoever_holds_the_state_writes_its_part_of_the_checkpoint() -> None:
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


def test_nobody_writes_a_checkpoint_of_a_state_nobody_holds() -> None:
    crew = training(A, B)
    crew.add(D)
    crew.propose(world(2, D, A, hold=True))
    crew.wire(2)
    crew.step()
    crew.deliver()
    words = tuple(replace(word, holds=False) for word in crew.words(D))
    actions = crew.feed(D, Returned(2, words))
    assert not any(isinstance(action, Save | Snapshot) for action in actions)
    assert (crew[D].phase, crew[D].holders, crew[D].applied_line) == (Phase.HOLDING, NOBODY, None)


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
