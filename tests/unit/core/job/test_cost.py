"""The cost of the slots of a job in a queue, and its stop at a cost limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.evolve import evolve
from pliant.core.job.validation import bad_spec
from pliant.core.messages import Event
from pliant.core.messages.describe import describe_settings
from pliant.core.model.job import Job, JobSpec, JobState
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, X, Y, after, gathered, join, made, new_job, pump, running, with_spec
from unit.core.launched import all_ready, created, members, with_agents

HOURLY = 3600.0  # a slot costs 1 for each second


def queued(job: Job, size: int) -> Job:
    return replace(with_spec(job, queue="default", at_most_cost=50.0), granted=size, granted_why="all")


def folded(job: Job, *events: Event) -> Job:
    for event in events:
        job = evolve(job, event)
    return job


def worker(number: int) -> MemberId:
    return MemberId(f"x-r.{number}")


def test_a_job_pays_for_each_slot_from_the_permit_of_its_worker_to_the_end_of_its_process() -> None:
    job = folded(
        queued(after(new_job(), m.AgentJoin(X, 4, run_id="r")), 4),
        m.PriceChanged(100.0, HOURLY),
        m.WorkersPermitted(110.0, X, (worker(1), worker(2))),
        m.PermitReturned(130.0, worker(1)),
    )
    assert job.spent == 2 * 20.0
    assert job.spent_by(140.0) == 50.0
    job = folded(job, m.PriceChanged(140.0, 2 * HOURLY), m.PermitReturned(150.0, worker(2)), m.Granted(900.0, 0, "x"))
    assert (job.spent, job.spent_by(1000.0)) == (70.0, 70.0)


def test_a_clock_that_goes_back_charges_nothing_twice() -> None:
    job = folded(queued(running(2), 2), m.PriceChanged(100.0, HOURLY), m.Granted(110.0, 2, "x"))
    assert job.spent == 20.0
    job = folded(job, m.Granted(90.0, 2, "y"))
    assert (job.spent, job.spent_by(105.0), job.spent_by(120.0)) == (20.0, 20.0, 40.0)


def test_free_slots_cost_nothing_and_a_price_counts_from_its_event_on() -> None:
    job = folded(queued(running(2), 2), m.PriceChanged(100.0, 0.0), m.PriceChanged(200.0, HOURLY))
    assert job.spent_by(210.0) == 20.0


def test_the_price_is_an_event_once() -> None:
    job = queued(running(2), 2)
    assert made(job, m.SetPrice(0.25)) == (m.PriceChanged(5.0, 0.25),)
    assert made(after(job, m.SetPrice(0.25)), m.SetPrice(0.25)) == ()


def test_an_ended_job_pays_no_more_and_its_next_attempt_goes_on_from_there() -> None:
    job = folded(queued(running(2), 2), m.PriceChanged(100.0, HOURLY), m.StateChanged(110.0, JobState.FAILED, "x"))
    assert job.spent_by(500.0) == 20.0
    assert folded(job, m.JobCreated(600.0, "demo", job.spec, 2, resumes=True)).spent_by(700.0) == 20.0
    assert folded(job, m.JobCreated(600.0, "demo", job.spec, 2)).spent == 0.0


def test_without_a_grant_all_members_save_and_leave() -> None:
    job, events = pump(queued(running(3), 3), m.GrantWorkers(0, "all is spent"))
    draining = [event for event in events if isinstance(event, m.MemberDraining)]
    assert [(each.member, each.grace_s, each.immediate, each.why) for each in draining] == [
        (name, 60.0, True, "all is spent") for name in (A, B, C)
    ]
    assert any(isinstance(event, m.CheckpointRequested) for event in events)
    for name in (A, B, C):
        job = after(job, m.Leave(name, 1, "drained"))
    assert (job.state, job.why) == (JobState.WAITING, "all is spent")
    job, events = pump(job, join(MemberId("late")))  # it was starting when the grant was withdrawn
    assert job.members[MemberId("late")].draining


def test_a_job_whose_members_wait_for_their_first_world_leaves_as_well() -> None:
    job, _ = pump(queued(gathered(2), 2), m.GrantWorkers(0, "all is spent"))
    assert all(member.draining for member in job.members.values())


def test_without_a_grant_a_launch_is_over_also_if_one_of_its_workers_has_ended_well() -> None:
    launched = with_agents(queued(created(), 4), X, Y)
    assert launched.state is JobState.RUNNING
    one_done = after(launched, m.Exited(members(launched)[0], 0))
    for before in (launched, one_done):
        job, events = pump(before, m.GrantWorkers(0, "all is spent"))
        assert [event.why for event in events if isinstance(event, m.LaunchOver)] == ["all is spent"]
        job = all_ready(job, X, Y)
        assert (job.state, job.why) == (JobState.WAITING, "all is spent")


def test_the_limit_of_a_job_can_be_changed_while_it_runs() -> None:
    job = queued(running(2), 2)
    spec = replace(job.spec, at_most_cost=80.5)
    (changed,) = made(job, m.Create("demo", spec, only_settings=True))
    assert isinstance(changed, m.SettingsChanged)
    assert changed.what == "--at-most-cost 50 -> 80.5"
    assert describe_settings(spec, replace(spec, at_most_cost=None)) == "--at-most-cost 80.5 -> none"


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (JobSpec(1, 4, queue="a", at_most_cost=0.5), ""),
        (
            JobSpec(1, 4, at_most_cost=5.0),
            "a cost limit counts the slots of a pool: pass --queue NAME with --at-most-cost",
        ),
        (JobSpec(1, 4, queue="a", at_most_cost=0.0), "the cost limit must be above 0 and finite; got 0.0"),
        (JobSpec(1, 4, queue="a", at_most_cost=float("inf")), "the cost limit must be above 0 and finite; got inf"),
    ],
)
def test_a_cost_limit_is_checked(spec: JobSpec, wrong: str) -> None:
    assert bad_spec(spec) == wrong
