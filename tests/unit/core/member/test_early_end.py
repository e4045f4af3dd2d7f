"""Loops that end before the last step: the words end the job for all members, or part with one that left alone."""

from dataclasses import replace

import pytest

from pliant.core.data.line_run import LineRun
from pliant.core.member import Phase
from pliant.core.member.common import LINES_MAX, LOOP_LEFT
from pliant.core.member.control_words import FINISH, GOING_ON, LEFT_LOOP, Purpose
from pliant.core.member.signals import Apply, Exit, LoopEnded, Returned, Save, Send, Snapshot, Tick
from pliant.core.messages import Leave, Report, Stopped
from pliant.core.model.job import Dispute, JobState
from unit.core.build import A, B, C
from unit.core.member.drive import Crew, rollback, training

FINISHES = LoopEnded(finish=True, why="good enough")
LEAVES = LoopEnded(finish=False)


def ended(crew: Crew, **signals: LoopEnded) -> Crew:
    """The loops of these members end; the others compute, and the collective of the step returns."""
    crew.hush()
    for name, signal in signals.items():
        crew.feed(next(member for member in crew.seats if member == name), signal)
    crew.compute()
    crew.returns()
    return crew


def reports(crew: Crew, name: str) -> list[Report]:
    said = crew.said(next(member for member in crew.seats if member == name))
    return [each.command for each in said if isinstance(each, Send) and isinstance(each.command, Report)]


def test_one_member_finishes_the_job_with_the_last_applied_step() -> None:
    crew = training(A, B)
    crew.step()
    before = crew[A].lineage
    ended(crew, a=FINISHES)
    assert [crew.word(name).purpose for name in (A, B)] == [Purpose.CLOSE, Purpose.CLOSE]
    assert not any(isinstance(each, Apply) for name in (A, B) for each in crew.seats[name].said)
    crew.returns()
    assert [(crew[name].phase, crew[name].lineage, crew[name].ending) for name in (A, B)] == [
        (Phase.DONE, before, FINISH),
        (Phase.DONE, before, FINISH),
    ]


def test_a_joiner_without_the_state_ends_with_the_others_and_commits_nothing() -> None:
    crew = training(A, B)
    crew.step()
    crew.feed(A, FINISHES)
    crew.compute()
    words = crew.words(B)
    crew.seats[B].machine = replace(crew[B], holds_state=False)
    crew.feed(B, Returned(1, (words[0], replace(words[1], holds=False))))
    assert (crew[B].ending, crew.word(B).purpose) == (FINISH, Purpose.CLOSE)


def test_the_member_that_knows_the_reason_reports_it_at_once_and_the_other_at_its_next_tick() -> None:
    crew = ended(training(A, B), a=FINISHES)
    crew.hush()
    crew.returns()
    assert [each.finished for each in reports(crew, "a")] == ["good enough"]
    assert reports(crew, "b") == []
    crew.feed(B, Tick())
    assert [each.finished for each in reports(crew, "b")] == [LOOP_LEFT]


def test_lines_that_do_not_fit_are_reported_before_the_end() -> None:
    crew = ended(training(A, B), a=FINISHES)
    crew.returns()
    crew.hush()
    machine = crew.seats[A].machine
    crew.seats[A].machine = replace(machine, committed_lines=LineRun([*machine.committed_lines] * (LINES_MAX + 1)))
    crew.feed(A, Tick())
    assert [each.finished for each in reports(crew, "a")] == [""]


def test_the_last_step_is_saved_by_all_holders_together() -> None:
    crew = ended(training(A, B), a=FINISHES, b=FINISHES)
    crew.hush()
    crew.returns()
    for name in (A, B):
        begun = [each for each in crew.said(name) if isinstance(each, Snapshot | Save)]
        assert [type(each) for each in begun] == [Snapshot, Save]


def test_a_checkpoint_of_that_step_that_is_being_written_is_enough() -> None:
    crew = training(A, B)
    crew.tell(checkpoint_wanted=True)
    crew.step()
    assert crew[A].part_in_progress is not None
    ended(crew, a=FINISHES)
    crew.hush()
    crew.returns()
    assert not any(isinstance(each, Snapshot) for each in crew.said(A))


def test_a_loop_that_every_member_left_finishes_the_job() -> None:
    crew = ended(training(A, B), a=LEAVES, b=LEAVES)
    crew.returns()
    assert (crew[A].phase, crew[B].phase) == (Phase.DONE, Phase.DONE)


def test_a_member_that_left_its_loop_alone_exits_with_an_error_and_the_others_stop_for_a_recovery() -> None:
    crew = ended(training(A, B, C), b=LEAVES)
    exit_ = crew.said(B)[-1]
    assert isinstance(exit_, Exit)
    assert exit_.code == 1
    assert "left the training loop after step 2, and the others did not: call run.finish(why)" in exit_.why
    said = crew.said(A)
    stopped = next(each.command for each in said if isinstance(each, Send) and isinstance(each.command, Stopped))
    assert stopped.why == "b left its training loop, and the others did not"
    assert stopped.kept == crew[A].kept_gradients.slots != frozenset()
    assert (crew[A].phase, crew[A].ending) == (Phase.STOPPED, GOING_ON)


def test_gradients_in_dispute_do_not_matter_in_a_step_that_is_not_applied() -> None:
    crew = training(A, B)
    crew.feed(A, FINISHES)
    crew.compute()
    for name in (A, B):
        crew.feed(name, Returned(1, crew.words(name), (Dispute(0, A, B),)))
    assert crew.word(B).purpose is Purpose.CLOSE


def test_an_end_between_two_steps_is_announced_with_the_next_one() -> None:
    crew = training(A, B)
    crew.compute()
    crew.returns()
    assert crew[A].phase is Phase.APPLIED
    crew.feed(A, FINISHES)
    assert crew[A].phase is Phase.APPLIED
    crew.boundary(B)
    crew.compute(B)
    assert crew.word(B).ending == GOING_ON


def test_a_loop_that_ends_in_a_world_that_breaks_stops_there() -> None:
    crew = training(A, B, C)
    crew.tell(A, gone_in_open_worlds=frozenset({C}))
    crew.feed(A, FINISHES)
    assert (crew[A].phase, crew[A].ending) == (Phase.STOPPED, FINISH)


@pytest.mark.parametrize("fails", [(A,), (B,), (A, B)])
def test_after_a_failure_the_comparison_ends_the_job_for_all(fails: tuple[str, ...]) -> None:
    """Members that saw the words of the end, or asked for it, report it in the next comparison."""
    crew = training(A, B, C)
    crew.feed(A, FINISHES)
    crew.compute()
    crew.crash(C)
    crew.fails(*(name for name in (A, B) if name in fails))
    crew.returns(*(name for name in (A, B) if name not in fails))
    crew.fails(*(name for name in (A, B) if name not in fails))
    crew.recover(2, A, B)
    crew.wire(2)
    crew.returns()
    assert [crew.word(name).purpose for name in (A, B)] == [Purpose.CLOSE, Purpose.CLOSE]
    crew.returns()
    assert [crew[name].phase for name in (A, B)] == [Phase.DONE, Phase.DONE]


def test_a_rollback_forgets_the_end_of_a_step_that_is_gone() -> None:
    crew = training(A, B)
    crew.feed(A, FINISHES)
    crew.fails(A)
    crew.seal(rollback(2, A, B))
    crew.wire(2, A)
    assert crew[A].ending == GOING_ON


def test_once_the_job_is_finished_its_members_leave_with_their_work_complete() -> None:
    crew = ended(training(A, B), a=LEAVES, b=LEAVES)
    crew.returns()
    crew.write()
    crew.hush()
    saved = crew.view.checkpoint
    crew.tell(state=JobState.FINISHED, why="the training loop was left")
    assert saved is None
    for name in (A, B):
        crew.feed(name, Tick())
    assert crew[A].ending == FINISH
    assert LEFT_LOOP < FINISH
    assert not any(isinstance(each, Send) and isinstance(each.command, Leave) for each in crew.said(A))
