"""Jobs in a queue: they have as many workers as the pool grants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pliant.core import messages as m
from pliant.core.job.assignment import desired_workers, permitted_starts, workers_on
from pliant.core.job.validation import SIZE_MAX, bad_spec
from pliant.core.messages import Code, Event
from pliant.core.messages.describe import describe, describe_settings
from pliant.core.model.job import Job, JobSpec, JobState, Mode, Target
from pliant.core.model.names import AgentId, MemberId
from unit.core.build import A, B, C, X, Y, after, join, made, new_job, pump, refused, report, running, with_spec


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


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ({"queue": "a", "suspended": True, "sizes": (2, 4), "unit": 2}, ""),
        ({"suspended": True}, "suspended, sizes and unit have an effect only in a queue"),
        ({"sizes": (2,)}, "suspended, sizes and unit have an effect only in a queue"),
        ({"unit": 2}, "suspended, sizes and unit have an effect only in a queue"),
        ({"queue": "a", "unit": 0}, f"unit must be 1 to {SIZE_MAX}; got 0"),
        ({"queue": "a", "sizes": (2, 5)}, "sizes must be 1 to 4; got (2, 5)"),
    ],
)
def test_suspension_and_discrete_sizes_are_checked(more: dict[str, Any], wrong: str) -> None:
    assert bad_spec(JobSpec(1, 4, **more)) == wrong


def test_suspension_and_discrete_sizes_are_described() -> None:
    before, after = JobSpec(1, 4, queue="a"), JobSpec(1, 4, queue="a", suspended=True, sizes=(2, 4), unit=2)
    words = "suspended no -> yes, sizes all -> 2, 4, workers that come and go together 1 -> 2"
    assert describe_settings(before, after) == words


# ------------------------------------------------------------------------------------------- permits


def name(number: int, agent: str = "x", run: str = "r") -> MemberId:
    return MemberId(f"{agent}-{run}.{number}")


def permitted(events: tuple[Event, ...]) -> list[tuple[AgentId, tuple[MemberId, ...]]]:
    return [(event.agent, event.workers) for event in events if isinstance(event, m.WorkersPermitted)]


def on_x(number: int) -> m.Join:
    return replace(join(name(number)), agent=X)


def permits_for(size: int, *agents: m.AgentJoin) -> Job:
    """A job in a queue whose agents got permits for a grant of that size."""
    return after(queued(new_job(), 0), *agents or (m.AgentJoin(X, 6, run_id="r"),), grant(size))


def test_a_grant_permits_agents_to_start_workers_and_no_more_than_are_granted() -> None:
    job = after(queued(new_job(), 0), m.AgentJoin(X, 6, run_id="r"), m.AgentJoin(Y, 1, run_id="s"))
    job, events = pump(job, grant(3))
    assert permitted(events) == [(X, (name(1), name(2))), (Y, (name(1, "y", "s"),))]
    assert job.occupants == {name(1): X, name(2): X, name(1, "y", "s"): Y}
    assert [agent.permitted for agent in job.agents] == [2, 1]
    assert permitted(pump(job, on_x(1), on_x(2))[1]) == []
    assert permitted(pump(with_spec(job, queue=""), grant(6))[1]) == []


def test_a_worker_occupies_its_slot_until_its_process_has_ended_although_it_left() -> None:
    job = after(permits_for(2), on_x(1), on_x(2), m.Drain(name(2), 30.0, "spot notice"))
    assert workers_on(job, X) == (frozenset({name(1), name(2)}), frozenset({name(2)}))
    job, events = pump(job, m.Leave(name(2), 0, "drained"))
    assert permitted(events) == []
    assert workers_on(job, X) == (frozenset({name(1), name(2)}), frozenset({name(2)}))
    job, events = pump(job, m.Exited(name(2), 0))
    assert permitted(events) == [(X, (name(3),))]
    assert workers_on(job, X) == (frozenset({name(1), name(3)}), frozenset[MemberId]())


def test_a_worker_that_crashes_while_another_one_drains_is_replaced_within_the_grant() -> None:
    job = after(permits_for(2), on_x(1), on_x(2), grant(1), m.Drain(name(2), 30.0, "the grant is smaller"))
    job, events = pump(job, m.Exited(name(1), -9))
    assert permitted(events) == []
    assert permitted(pump(job, m.Exited(name(2), 0))[1]) == [(X, (name(3),))]


def test_a_permit_that_an_agent_returns_is_free_again() -> None:
    job = permits_for(3)
    job, events = pump(job, grant(1), m.Exited(name(3), 0), m.Exited(name(2), 0))
    assert permitted(events) == []
    assert list(job.occupants) == [name(1)]
    assert permitted(pump(job, grant(2))[1]) == [(X, (name(4),))]


def test_the_permits_of_an_agent_end_with_it_and_with_its_run() -> None:
    job = permits_for(2)
    assert after(job, m.AgentLeave(X)).occupants == {}
    again, events = pump(job, m.AgentJoin(X, 6, run_id="s"))
    assert permitted(events) == [(X, (name(1, run="s"), name(2, run="s")))]
    assert list(again.occupants) == [name(1, run="s"), name(2, run="s")]


def test_an_agent_that_was_lost_comes_back_with_its_workers_and_their_numbers() -> None:
    job = after(permits_for(2), m.AgentExpire(X))
    job, events = pump(job, m.AgentJoin(X, 6, run_id="r", started=2, workers=(name(2),)))
    assert permitted(events) == [(X, (name(3),))]
    assert job.occupants == {name(2): X, name(3): X}


def test_an_agent_that_joins_with_another_capacity_keeps_its_permits() -> None:
    job, events = pump(permits_for(2), m.AgentJoin(X, 4, run_id="r", started=1, workers=(name(1),)))
    assert permitted(events) == []
    assert job.occupants == {name(1): X, name(2): X}
    assert job.agents[0].permitted == 2


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        (m.AgentJoin(X, 1, started=-1), "x can have started 0 or more workers and run 2; got -1 started"),
        (m.AgentJoin(X, 1, workers=(A, B, C)), "x can have started 0 or more workers and run 2; got 0 started"),
        (m.AgentJoin(X, 1, workers=(MemberId("a b"),)), "a name has letters, digits"),
    ],
)
def test_the_workers_of_an_agent_are_checked(command: m.AgentJoin, wrong: str) -> None:
    assert refused(queued(new_job(), 2), command).why.startswith(wrong)


def test_a_member_without_an_agent_occupies_a_slot_as_long_as_it_is_a_member() -> None:
    job = after(queued(new_job(), 2), join(A))
    assert list(job.occupants) == [A]
    assert after(job, m.Leave(A, 0, "done")).occupants == {}


def test_launched_workers_keep_their_slots_when_the_first_of_them_joins() -> None:
    job = with_spec(queued(new_job(), 2), mode=Mode.AUTO)
    job = after(job, m.AgentJoin(X, 2, run_id="r"), m.AgentReady(X, 0, (1, 2)))
    assert job.launch is not None
    first, second = (seat.member for seat in job.launch.seats)
    assert list(job.occupants) == [first, second]
    job, events = pump(job, replace(join(first), agent=X))
    assert job.is_live
    assert (list(job.occupants), permitted(events)) == ([first, second], [])
    assert permitted(pump(job, m.Exited(second, -9))[1]) == [(X, (name(1),))]


def test_orders_have_the_permits_of_the_agent() -> None:
    job = permits_for(2)
    assert permitted_starts(job, job.agents[0]) == 2
    assert permitted_starts(job, None) == 0
    assert permitted_starts(new_job(), None) is None


# ------------------------------------------------------------------------------------------- the rest


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


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("", "batch", "job demo is in no queue: omit --queue; or choose another name with --job"),
        ("batch", "", "job demo is in queue batch: pass --queue batch; or choose another name with --job"),
    ],
)
def test_a_job_cannot_change_its_queue(before: str, after: str, why: str) -> None:
    job = with_spec(new_job(), queue=before)
    found = refused(job, m.Create("demo", replace(job.spec, queue=after)))
    assert (found.code, found.why) == (Code.EXISTS, why)


def test_a_changed_priority_is_described() -> None:
    assert describe_settings(JobSpec(1, 2, queue="a"), JobSpec(1, 2, queue="a", priority=2)) == "--priority 0 -> 2"
