"""Jobs in a queue: they have as many workers as the pool grants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.assignment import desired_workers
from pliant.core.job.validation import bad_spec
from pliant.core.messages import Code
from pliant.core.messages.describe import describe, describe_settings
from pliant.core.model.job import Job, JobSpec, JobState, Mode, Target
from unit.core.build import A, C, X, Y, after, join, made, new_job, pump, refused, report, running, with_spec


def queued(job: Job, size: int) -> Job:
    return replace(with_spec(job, queue="default"), granted=size, granted_why="2 of 6: others have the rest")


def grant(size: int, why: str = "because") -> m.GrantWorkers:
    return m.GrantWorkers(size, why)


def test_a_grant_is_an_event_and_a_repeated_one_is_none() -> None:
    job = queued(running(3), 3)
    assert made(job, grant(2, "for b")) == (m.Granted(5.0, 2, "for b"),)
    job = after(job, grant(2, "for b"))
    assert (job.granted, job.granted_why) == (2, "for b")
    assert made(job, grant(2, "for b")) == ()
    assert describe(m.Granted(5.0, 2, "for b")) == "2 workers granted: for b"
    assert describe(m.Granted(5.0, 1, "for b")) == "1 worker granted: for b"


def test_a_smaller_grant_lets_members_leave_by_the_next_world_and_a_larger_one_takes_them_in() -> None:
    job = queued(after(new_job(), m.AgentJoin(X, 6)), 3)
    job = running(3, job)
    job, _ = pump(job, grant(2))
    newest = job.newest
    assert newest is not None
    assert len(newest.members) == 2
    assert not any(member.draining for member in job.members.values())
    job = after(job, report(job, A, newest.number, 1, holders=newest.members))
    assert [name for name, member in job.members.items() if member.draining] == [C]
    assert desired_workers(job) == {X: 2}
    job = after(job, m.Leave(C, newest.number, "drained"), grant(5))
    assert desired_workers(job) == {X: 5}
    assert job.wanted_size == 5


def test_a_draining_member_is_replaced_within_the_grant_only_when_it_has_left() -> None:
    job = running(3, queued(after(new_job(), m.AgentJoin(X, 6)), 3))
    assert desired_workers(job) == {X: 3}
    drained = after(job, m.Drain(C, 30.0, "spot notice"))
    assert desired_workers(drained) == {X: 2}
    assert desired_workers(after(drained, m.Leave(C, 0, "drained"))) == {X: 3}
    assert desired_workers(with_spec(drained, queue="")) == {X: 6}


def test_a_new_agent_starts_workers_only_for_which_the_grant_has_room() -> None:
    job = after(running(3, queued(after(new_job(), m.AgentJoin(X, 6)), 4)), m.AgentJoin(Y, 6))
    assert desired_workers(job) == {X: 2, Y: 1}
    assert desired_workers(replace(job, granted=3)) == {X: 2, Y: 0}


def test_the_grant_covers_the_spares() -> None:
    job = with_spec(queued(after(new_job(target=2), m.AgentJoin(X, 6)), 3), spares=4)
    assert desired_workers(job) == {X: 3}
    assert desired_workers(replace(job, granted=9)) == {X: 6}


def test_a_job_that_is_in_no_queue_ignores_grants() -> None:
    job = replace(running(3), granted=0)
    assert job.wanted_size == 6
    assert job.grant_missing == ""


def test_a_job_waits_for_its_grant_and_says_why() -> None:
    job = queued(after(new_job(), m.AgentJoin(X, 6)), 0)
    job = after(job, grant(0, "needs 2 workers"))
    assert (job.state, job.why) == (JobState.WAITING, "needs 2 workers")
    assert desired_workers(job) == {X: 0}
    assert "no grant yet" in replace(job, granted_why="").grant_missing
    job = after(job, grant(1), join(A))
    assert job.state is not JobState.WAITING


def test_a_launched_job_waits_for_its_grant_and_has_as_many_seats_as_granted() -> None:
    job = with_spec(queued(new_job(), 0), mode=Mode.RELAUNCH)
    job = after(job, m.AgentJoin(X, 6), m.AgentJoin(Y, 6))
    job = after(job, m.AgentReady(X, 0, (1, 2, 3, 4, 5, 6)), m.AgentReady(Y, 0, (1, 2, 3, 4, 5, 6)))
    assert job.why == "2 of 6: others have the rest"
    assert job.launch is None
    job = after(job, grant(3))
    assert job.launch is not None
    assert len(job.launch.seats) == 3


def test_a_spare_is_shown_beyond_the_grant() -> None:
    from pliant.core.model.view import MemberState, member_state

    job = queued(after(running(2), join(C)), 2)
    job = replace(job, worlds=job.worlds[:1])
    assert member_state(job, C) is MemberState.SPARE


def test_a_job_in_a_queue_has_no_placement() -> None:
    job = queued(running(2), 2)
    found = refused(job, m.Resize(Target(2, ((X, 2),))))
    assert (found.code, found.why) == (
        Code.BAD,
        "demo is in queue default: resize it to a number, without a placement",
    )
    assert made(job, m.Resize(Target(3))) == (m.TargetChanged(5.0, Target(3)),)


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (JobSpec(1, 2, queue="batch", priority=-5), ""),
        (JobSpec(1, 2, queue="batch", priority=1001), "the priority must be -1000 to 1000; got 1001"),
        (JobSpec(1, 2, priority=3), "the priority 3 has no effect without a queue: pass --queue NAME"),
        (
            JobSpec(1, 2, Target(1, ((X, 1),)), queue="batch"),
            "a job in a queue cannot have a placement: the pool decides how many workers it has",
        ),
    ],
)
def test_queue_and_priority_are_checked(spec: JobSpec, wrong: str) -> None:
    assert bad_spec(spec) == wrong


def test_the_name_of_a_queue_is_checked() -> None:
    assert bad_spec(JobSpec(1, 2, queue="a b")).startswith("the queue's name is not valid: ")


def test_a_changed_queue_is_described() -> None:
    changed = describe_settings(JobSpec(1, 2), JobSpec(1, 2, queue="batch", priority=2))
    assert changed == "--queue none -> batch, --priority 0 -> 2"
