"""A member's side of a task queue: what it sends when, and how it takes answers and refusals."""

from dataclasses import replace

import pytest

from pliant.core.job.launches import FENCED_CODE
from pliant.core.messages import Code
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.tasks import messages as t
from pliant.core.tasks.member import AHEAD, FIRST_PAUSE_S, PAUSE_MAX_S, REPORT_S, TaskMember
from pliant.core.tasks.model import HeldShard, ShardKind

A = MemberId("a")
DEADLINE_S = 100.0
TAKE = t.TakeShards(A, AHEAD)


def shard(attempt: int) -> HeldShard:
    return HeldShard(ShardKind.TRAIN, attempt - 1, attempt, A, 0, 0)


def holding(*attempts: int) -> TaskMember:
    """Return a member that was given these shards, at time 0."""
    member = TaskMember(A, DEADLINE_S)
    assert member.next_command(0.0) == TAKE
    member.answered(TAKE, tuple(map(shard, attempts)), 0.0)
    return member


def begun(*attempts: int) -> tuple[TaskMember, HeldShard]:
    """Return such a member, and the shard that it has begun."""
    member = holding(*attempts)
    first = member.next_shard(0.0)
    assert first is not None
    return member, first


def test_a_member_asks_for_shards_until_it_holds_two() -> None:
    assert holding(1).next_command(0.0) == TAKE
    member = holding(1, 2)
    assert member.next_command(9.0) is None
    assert member.next_in_s(9.0) is None
    assert [member.next_shard(0.0), member.next_shard(0.0), member.next_shard(0.0)] == [shard(1), shard(2), None]


def test_it_asks_ever_more_rarely_while_there_is_none() -> None:
    member, now, pauses = holding(), 0.0, []
    for _ in range(6):
        pause = member.next_in_s(now)
        assert pause is not None
        assert member.next_command(now) is None
        pauses.append(round(pause, 3))
        now += pause + 1e-9
        assert member.next_command(now) == TAKE
        member.answered(TAKE, (), now)
    assert pauses[0] == 2 * FIRST_PAUSE_S
    assert pauses[-1] == PAUSE_MAX_S
    member.answered(TAKE, (shard(1),), now)
    assert member.next_command(now) == TAKE


def test_positions_are_reported_once_a_second_and_the_newest_alone() -> None:
    member, first = begun(1, 2)
    member.advance(first, 3, 30, 0.0)
    assert member.next_command(10.0) == t.AdvanceShard(A, 1, 3, 30)
    member.advance(first, 5, 50, 0.0)
    member.answered(t.AdvanceShard(A, 1, 3, 30), (shard(1), shard(2)), 10.0)
    assert member.next_command(10.0) is None
    assert member.next_in_s(10.0) == REPORT_S
    newest = t.AdvanceShard(A, 1, 5, 50)
    assert member.next_command(10.0 + REPORT_S) == newest
    member.answered(newest, (shard(1), shard(2)), 11.0)
    assert member.next_command(99.0) is None


def test_reports_come_first_in_order_and_again_until_they_are_answered() -> None:
    member, first = begun(1, 2)
    second = member.next_shard(0.0)
    assert second is not None
    member.advance(first, 3, 30, 0.0)
    member.complete(first, 10, 7, ())
    member.fail(second, 4, 8, "no")
    report = t.CompleteShard(A, 1, 10, 7, ())
    assert [member.next_command(0.0), member.next_command(5.0)] == [report, report]
    member.answered(report, (shard(2),), 5.0)
    failed = t.FailShard(A, 2, 4, 8, "no")
    assert (member.next_command(5.0), member.has_reports) == (failed, True)
    member.answered(failed, (), 5.0)
    assert (member.next_command(5.0), member.has_reports) == (TAKE, False)


def test_a_shard_that_is_completed_and_not_reported_is_not_begun_again() -> None:
    member, first = begun(1)
    member.complete(first, 10, 7, ())
    member.answered(TAKE, (shard(1), shard(2)), 0.0)
    assert [member.next_shard(0.0), member.next_shard(0.0)] == [shard(2), None]


def test_a_shard_that_the_coordinator_returned_is_stopped_or_not_begun() -> None:
    member, first = begun(1, 2)
    assert not member.must_stop(first)
    member.answered(TAKE, (shard(3),), 0.0)
    assert member.must_stop(first)
    assert [member.next_shard(0.0), member.next_shard(0.0)] == [shard(3), None]


def test_a_late_report_is_refused_and_the_next_shard_goes_on() -> None:
    member, first = begun(1, 2)
    member.advance(first, 3, 30, 0.0)
    late = t.AdvanceShard(A, 1, 3, 30)
    member.refused(late, Code.PAST, "it is over", 1.0)
    assert member.must_stop(first)
    assert not member.is_over
    assert member.next_command(1.0) == TAKE


def test_a_refused_position_drops_the_newer_one_of_the_same_shard() -> None:
    member, first = begun(1, 2)
    member.advance(first, 3, 30, 0.0)
    late = t.AdvanceShard(A, 1, 3, 30)
    member.advance(first, 5, 50, 0.0)
    member.refused(late, Code.PAST, "it is over", 1.0)
    assert member.next_command(3.0) == TAKE


def test_a_refused_report_does_not_drop_the_position_in_another_shard() -> None:
    """Else a member that leaves then would not have reported everything, as the audit takes for granted."""
    member, first = begun(1, 2)
    member.complete(first, 10, 7, ())
    second = member.next_shard(0.0)
    assert second is not None
    member.advance(second, 4, 40, 0.0)
    member.refused(t.CompleteShard(A, 1, 10, 7, ()), Code.PAST, "it is over", 1.0)
    assert member.next_command(1.0) == t.AdvanceShard(A, 2, 4, 40)


def test_a_member_whose_training_thread_hangs_takes_no_shard_until_it_is_back() -> None:
    member, first = begun(1)
    assert member.next_command(DEADLINE_S / 2) == TAKE
    stuck = DEADLINE_S / 2 + 1.0
    assert (member.next_command(stuck), member.next_in_s(stuck)) == (None, None)
    member.advance(first, 4, 40, stuck)
    member.answered(t.AdvanceShard(A, 1, 4, 40), (shard(1),), stuck)
    assert member.next_command(stuck) == TAKE
    stuck += DEADLINE_S
    assert member.next_command(stuck) is None
    member.complete(first, 10, 7, ())
    member.answered(t.CompleteShard(A, 1, 10, 7, ()), (), stuck)
    assert member.next_shard(stuck) is None
    assert member.next_command(stuck + DEADLINE_S) == TAKE, "it waits for a shard"


def test_a_member_that_leaves_reports_its_position_at_once_and_takes_nothing() -> None:
    member, first = begun(1)
    member.advance(first, 3, 30, 0.0)
    position = t.AdvanceShard(A, 1, 3, 30)
    member.answered(position, None, 5.0)
    member.advance(first, 4, 40, 0.0)
    assert member.next_command(5.0) == TAKE
    member.leave("SIGTERM")
    member.leave("again")
    assert (member.is_over, member.must_stop(first), member.next_shard(0.0)) == (True, True, None)
    assert member.left == (0, "SIGTERM")
    last = t.AdvanceShard(A, 1, 4, 40)
    assert member.next_command(5.0) == last
    member.answered(last, (shard(1),), 5.0)
    assert (member.next_command(9.0), member.next_in_s(9.0), member.is_silent) == (None, None, False)
    member.closing = True
    assert member.is_silent


def test_a_member_that_closes_is_silent_once_all_is_reported() -> None:
    member, first = begun(1)
    member.complete(first, 10, 7, ())
    member.closing = True
    report = t.CompleteShard(A, 1, 10, 7, ())
    assert (member.next_command(0.0), member.is_silent) == (report, False)
    member.answered(report, (), 0.0)
    assert (member.next_command(9.0), member.is_silent) == (None, True)


@pytest.mark.parametrize(("state", "code"), [(JobState.FINISHED, 0), (JobState.FAILED, 1), (JobState.CANCELLED, 0)])
def test_the_end_of_the_job_ends_the_member(state: JobState, code: int) -> None:
    seen, told = holding(1), holding(1)
    seen.follow_job(state, draining=False)
    told.refused(TAKE, Code.ENDED, "over", 1.0, state)
    for member in (seen, told):
        assert (member.is_over, member.is_silent) == (True, True)
        assert member.left == (code, f"the job is {state.value}")


def test_a_draining_member_leaves_and_another_one_goes_on() -> None:
    member = holding(1)
    member.follow_job(JobState.RUNNING, draining=False)
    assert not member.is_over
    member.follow_job(JobState.RUNNING, draining=True)
    assert member.left == (0, "this member drains")


@pytest.mark.parametrize("code", [Code.GONE, Code.UNKNOWN])
def test_a_fenced_member_stops(code: Code) -> None:
    member = holding(1)
    member.refused(TAKE, code, "gone", 1.0)
    assert member.left == (FENCED_CODE, "gone")
    assert member.is_silent


@pytest.mark.parametrize("code", [Code.BAD, Code.PAST])
def test_any_other_refusal_ends_the_member_with_an_error(code: Code) -> None:
    member = holding(1)
    member.refused(TAKE, code, "no", 1.0)
    assert member.left == (1, "no")


def test_shards_are_begun_in_the_order_of_their_attempts() -> None:
    member = TaskMember(A, DEADLINE_S)
    later = replace(shard(7), number=3)
    member.answered(TAKE, (later, shard(4)), 0.0)
    assert [member.next_shard(0.0), member.next_shard(0.0)] == [shard(4), later]


def test_the_records_of_growing_data_are_reported_until_they_are_answered() -> None:
    member = holding(1, 2)
    member.grow(5, complete=False)
    assert member.next_in_s(1.0) == 0.001
    first = t.GrowData(A, 5)
    assert member.next_command(1.0) == first
    member.grow(9, complete=True)
    member.answered(first, None, 1.0)  # an answer to the one before
    last = t.GrowData(A, 9, complete=True)
    assert member.next_command(1.0) == last
    member.answered(last, None, 1.0)
    assert member.next_command(1.0) is None
    assert member.next_in_s(1.0) is None


def test_a_member_that_leaves_reports_no_records_and_a_refusal_ends_it() -> None:
    member = holding(1, 2)
    member.grow(5, complete=False)
    member.refused(t.GrowData(A, 5), Code.PAST, "no", 1.0)
    assert member.left == (1, "no")
    member.grow(6, complete=False)
    assert member.next_command(1.0) is None
    assert member.next_in_s(1.0) is None
