"""Reports of committed steps, their sender, and repetition in case one was lost (rules 1, 17, 24)."""

import pytest

from pliant.core.data.ledger import GENESIS, LedgerLine, make_line
from pliant.core.data.line_run import LineRun
from pliant.core.data.sample_order import Cursor
from pliant.core.member import Phase
from pliant.core.member.common import LINES_MAX, REPORTERS, STALE_TICKS, unreported_lines
from pliant.core.member.signals import DrainNotice, Durable, Send, Tick, TransferBroken
from pliant.core.messages import Report
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, D, world
from unit.core.member.drive import LAST, Crew, commands, gathered, lines, these, training

STEPS = lines(GENESIS, 1, LAST)


def reports(crew: Crew) -> list[bool]:
    """Return who reports on a tick."""
    return [any(isinstance(command, Report) for command in commands(*crew.feed(name, Tick()))) for name in crew.seats]


def test_two_members_report_and_the_others_rely_on_them() -> None:
    """Rule 24: the ledger's line comes from two members where there are two."""
    assert REPORTERS == 2
    crew = training(A, B, C, D)
    crew.step()
    crew.step()
    assert reports(crew) == [True, True, False, False]
    assert crew.feed(B, Tick()) == (Send(Report(B, 1, 1, STEPS[1:3], None)),)


def test_the_reporters_are_the_lowest_ranks_that_hold_the_state() -> None:
    """A joiner has nothing to report."""
    crew = training(A, B, C)
    crew.add(D)
    crew.propose(world(2, D, A, B, C))
    crew.wire(2)
    crew.step()
    crew.deliver()
    crew.compute()
    crew.returns()
    assert crew[A].holders == these(1, 2, 3)
    assert reports(crew) == [True, True, False, False]  # A, B, C, D


def test_a_report_says_who_holds_the_state_when_the_coordinator_does_not_know() -> None:
    crew = training(A, B)
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (), None)),)
    crew.tell(A, holders=frozenset({A}))
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (), frozenset({A, B}))),)
    crew.tell(A, holders=frozenset({A, B}), current=0)
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (), frozenset({A, B}))),)


def test_the_first_collective_of_a_world_is_reported_at_once() -> None:
    """Rule 5: the first accepted report makes a generation the current one."""
    crew = training(A, B, C)
    crew.propose(world(2, C, B, A))
    crew.wire(2)
    crew.step()
    crew.compute()
    crew.hush()
    crew.returns()
    all_three = frozenset({A, B, C})
    assert commands(*crew.said(C)) == (Report(C, 0, 2, STEPS[1:3], all_three),)
    assert commands(*crew.said(B)) == (Report(B, 1, 2, STEPS[1:3], all_three),)
    assert commands(*crew.said(A)) == ()
    crew.boundary()
    crew.tell()
    crew.compute()
    crew.hush()
    crew.returns()
    assert [commands(*crew.said(name)) for name in (A, B, C)] == [(), (), ()]


def test_a_new_holder_is_reported_at_once() -> None:
    """The coordinator decides by it who may leave (rule 16)."""
    crew = gathered(A, B, C)
    crew.answer(A)
    crew.returns()
    assert commands(*crew.said(A)) == (Report(A, 0, 1, (), frozenset({A})),)
    crew.tell()
    crew.receive(B, C)
    crew.install(B, C)
    crew.hush()
    crew.returns()
    assert commands(*crew.said(A)) == (Report(A, 0, 1, (), frozenset({A, B, C})),)
    assert commands(*crew.said(B)) == (Report(B, 1, 1, (), frozenset({A, B, C})),)
    assert commands(*crew.said(C)) == ()
    crew.tell(A)
    crew.compute()
    crew.hush()
    crew.returns()
    assert commands(*crew.said(A)) == ()


def test_what_is_durable_is_not_reported_again() -> None:
    crew = training(A, B)
    crew.step()
    crew.step()
    assert crew[A].committed_lines == STEPS[1:3]
    crew.tell(A, durable=STEPS[1].lineage)
    assert crew[A].committed_lines == STEPS[2:3]
    crew.tell(A, durable=STEPS[2].lineage)
    assert crew[A].committed_lines == ()
    assert crew[A].applied_line == STEPS[3]
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, (), None)),)


def test_a_step_not_yet_durable_stays() -> None:
    crew = training(A, B)
    crew.step()
    crew.tell(A, durable=STEPS[0].lineage)
    assert crew[A].committed_lines == (STEPS[1],)


def newest(crew: Crew) -> int:
    view = crew[A].view
    assert view is not None
    return view.revision


def test_what_an_answer_says_is_durable_is_not_reported_again() -> None:
    """Progress wakes no watch: between two views the answers alone say what the coordinator has."""
    crew = training(A, B, C)
    crew.step()
    crew.step()
    crew[A].stale_ticks = 2
    assert crew.feed(A, Durable(newest(crew), STEPS[1].lineage)) == ()
    assert (tuple(crew[A].committed_lines), crew[A].stale_ticks) == (STEPS[2:3], 0)
    view = crew[A].view
    assert view is not None
    assert view.durable == STEPS[1].lineage


def test_an_answer_older_than_the_view_says_nothing() -> None:
    """A rollback may have come in between, and then less is durable than that."""
    crew = training(A, B)
    crew.step()
    kept, view = crew[A].committed_lines, crew[A].view
    assert crew.feed(A, Durable(newest(crew) - 1, STEPS[1].lineage)) == ()
    assert (crew[A].committed_lines, crew[A].view) == (kept, view)
    crew[A].view = None
    assert crew.feed(A, Durable(99, STEPS[1].lineage)) == ()
    assert crew[A].committed_lines == kept


def test_an_answer_that_says_nothing_new_changes_no_line() -> None:
    crew = training(A, B)
    assert crew.feed(A, Durable(newest(crew), GENESIS)) == ()
    crew.step()
    kept = crew[A].committed_lines
    assert crew.feed(A, Durable(newest(crew), GENESIS)) == ()
    assert crew[A].committed_lines == kept


def long_away(*names: MemberId) -> Crew:
    """A world whose coordinator was away for more steps than fit into one report."""
    crew = training(*names)
    many: tuple[LedgerLine, ...] = ()
    for _ in range(LINES_MAX + 5):
        before = many[-1].lineage if many else crew.view.durable
        many += (make_line(before, 1, before.step + 1, Cursor(0, 0), 1, 1),)
    for name in names:
        crew[name].committed_lines = LineRun(many)
    return crew


def test_a_report_has_so_many_lines_and_the_rest_comes_when_those_are_durable() -> None:
    crew = long_away(A, B, C)
    kept = crew[A].committed_lines
    assert crew.feed(A, Tick()) == (Send(Report(A, 0, 1, kept[:LINES_MAX], None)),)
    answer = Durable(newest(crew), kept[LINES_MAX - 1].lineage)
    assert crew.feed(A, answer) == (Send(Report(A, 0, 1, kept[LINES_MAX:], None)),)
    assert crew.feed(C, answer) == ()  # it is no reporter
    assert crew.feed(A, Durable(newest(crew), kept[-1].lineage)) == ()
    assert crew[A].committed_lines == ()


@pytest.mark.parametrize("spoil", ["phase", "greeted", "old"])
def test_the_rest_is_not_sent_where_nothing_would_be_reported(spoil: str) -> None:
    crew = long_away(A, B)
    answer = Durable(newest(crew), crew[A].committed_lines[0].lineage)
    if spoil == "phase":
        crew[A].phase = Phase.STOPPED
    elif spoil == "greeted":
        crew[A].entered = False
    else:
        answer = Durable(newest(crew), GENESIS)
    assert crew.feed(A, answer) == ()


def test_a_member_that_sees_steps_stay_undurable_reports_them_too() -> None:
    """Both reporters may be cut off from the coordinator; the others are not."""
    assert STALE_TICKS == 3
    crew = training(A, B, C)
    crew.step()
    for count in range(1, 4):
        assert crew.feed(C, Tick()) == ()
        assert crew[C].stale_ticks == count
    assert crew.feed(C, Tick()) == (Send(Report(C, 2, 1, (STEPS[1],), None)),)
    crew.tell(C, durable=GENESIS)
    assert crew[C].stale_ticks == 4
    crew.tell(C, durable=STEPS[1].lineage)
    assert (crew[C].stale_ticks, tuple(crew[C].committed_lines)) == (0, ())
    assert crew.feed(C, Tick()) == ()
    assert crew[C].stale_ticks == 0


def test_a_world_is_not_reported_before_a_collective_completed_in_it() -> None:
    """Rule 5: until then it may never be entered by every member."""
    crew = training(A, B)
    crew.propose(world(2, B, A))
    crew.wire(2)
    crew.step()
    assert (crew[A].generation, crew[A].entered) == (2, False)
    assert crew.feed(A, Tick()) == ()
    assert crew[A].stale_ticks == 1
    crew.compute()
    crew.returns(A)
    assert crew.feed(A, Tick()) == (Send(Report(A, 1, 2, STEPS[1:3], frozenset({A, B}))),)


@pytest.mark.parametrize(
    ("phase", "reported"),
    [
        (Phase.COMPUTING, True),
        (Phase.COLLECTING, True),
        (Phase.APPLIED, True),
        (Phase.CATCHING_UP, True),
        (Phase.INSTALLING, True),
        (Phase.HOLDING, True),
        (Phase.DONE, True),
        (Phase.RESTORING, False),
        (Phase.STOPPED, False),
        (Phase.LINGERING, False),
        (Phase.OUTSIDE, False),
    ],
)
def test_who_takes_part_in_a_world_reports_and_who_does_not_does_not(phase: Phase, reported: bool) -> None:
    """Rule 10: after Stopped, a member says nothing more of that generation but what it stopped with."""
    crew = training(A, B)
    crew[A].phase = phase
    said = commands(*crew.feed(A, Tick()))
    assert any(isinstance(command, Report) for command in said) == reported


def test_a_tick_says_nothing_twice_where_nothing_is_missing() -> None:
    crew = training(A, B, C)
    assert crew.feed(C, Tick()) == ()
    crew.feed(C, DrainNotice(5.0, "spot"))
    assert crew.feed(C, Tick()) == ()
    assert crew.feed(C, TransferBroken()) == ()


def test_the_tail_is_what_a_joiner_needs_to_report_in_our_place() -> None:
    crew = training(A, B)
    crew.step()
    assert unreported_lines(crew[A]) == STEPS[1:3]
    crew[A].applied_line = None
    assert unreported_lines(crew[A]) == STEPS[1:2]
