"""The demand of a job: the workers it wants, and the slots that its workers may occupy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.allocate import Pool, QueueRule
from pliant.core.allocate.demands import (
    NO_REPORTS,
    SETTLE_S,
    Claim,
    WorkerReports,
    claim_of,
    demand_of,
    workers_of,
)
from pliant.core.allocate.model import bad_pool
from pliant.core.model.job import Agent, Job, Member, Mode
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, X, Y, new_job, running, with_spec


def granted(job: Job, size: int) -> Job:
    return replace(with_spec(job, queue="default"), granted=size)


def without(job: Job, *members: MemberId) -> Job:
    return replace(job, members={name: each for name, each in job.members.items() if name not in members})


def on_agent(job: Job, *members: MemberId) -> Job:
    """The job with an agent X, on which these members run."""
    return replace(job, agents=(Agent(X, 6),), members={name: Member(name, 1, X) for name in members})


def look(job: Job, before: Claim | None, now: float, reports: WorkerReports = NO_REPORTS) -> Claim:
    return claim_of(job, reports, before, now)


def test_the_first_claim_covers_the_members_and_the_grant() -> None:
    assert look(granted(running(3), 2), None, 1.0).size == 3
    assert look(granted(running(3), 5), None, 1.0).size == 5


def test_a_shrunk_job_keeps_its_claim_until_its_members_have_left() -> None:
    job = running(3)
    claim = look(granted(job, 3), None, 0.0)
    claim = look(granted(job, 1), claim, 1.0)
    assert claim.size == 3
    claim = look(granted(without(job, A), 1), claim, 2.0)
    assert claim.size == 2
    claim = look(granted(without(job, A, B), 1), claim, 3.0)
    assert claim.size == 1


def test_a_worker_that_left_occupies_its_slot_until_its_process_has_ended() -> None:
    claim = look(granted(on_agent(new_job(), A, B), 2), None, 0.0)
    left = granted(on_agent(new_job(), A), 1)
    claim = look(left, claim, 1.0)
    assert claim.size == 2
    assert look(left, claim, 2.0, WorkerReports(ended={B})).size == 1
    assert look(replace(left, agents=()), claim, 2.0).size == 1  # no worker outlives its agent
    assert look(left, claim, SETTLE_S).size == 1
    assert look(left, claim, SETTLE_S, WorkerReports({X: {A, B}})).size == 2


def test_workers_that_never_joined_are_waited_for_until_the_job_has_settled() -> None:
    starting = granted(new_job(), 4)
    claim = look(starting, None, 0.0)
    shrunk = granted(new_job(), 1)
    claim = look(shrunk, claim, 1.0)
    assert look(shrunk, claim, SETTLE_S).size == 4
    assert look(shrunk, claim, 1.0 + SETTLE_S).size == 1


def test_workers_that_an_agent_reports_count_although_they_have_not_joined() -> None:
    reports = WorkerReports({X: {A, B, C}})
    assert look(granted(on_agent(new_job()), 1), None, 0.0, reports).size == 3
    assert look(granted(new_job(), 1), None, 0.0, reports).size == 1  # not an agent of the job


def test_the_claim_has_room_for_workers_that_one_agent_starts_while_another_has_too_many() -> None:
    job = granted(on_agent(new_job(), A), 2)
    job = replace(job, agents=(*job.agents, Agent(Y, 1)))
    assert look(job, None, 0.0, WorkerReports({X: {A, B, C}})).size == 4


def test_the_claim_of_a_job_that_is_over_ends_with_its_processes() -> None:
    job = granted(on_agent(new_job(), A, B), 2)
    claim = look(job, None, 0.0)
    over = claim_of(job, NO_REPORTS, claim, 1.0, is_over=True)
    assert over.size == 2
    assert claim_of(job, WorkerReports(ended={A}), over, 2.0, is_over=True).size == 1
    assert claim_of(job, WorkerReports(ended={A, B}), over, 2.0, is_over=True).size == 0
    assert claim_of(job, NO_REPORTS, over, SETTLE_S, is_over=True).size == 0
    assert claim_of(job, WorkerReports({X: {B}}), over, SETTLE_S, is_over=True).size == 1


def test_a_grant_just_before_the_end_is_part_of_the_claim() -> None:
    claim = look(granted(on_agent(new_job(), A), 1), None, 0.0)
    job = granted(on_agent(new_job(), A), 4)
    assert claim_of(job, NO_REPORTS, claim, 1.0, is_over=True).size == 4


def test_the_workers_of_a_launch_count_until_all_of_them_have_ended() -> None:
    job = replace(with_spec(new_job(), mode=Mode.RELAUNCH), agents=(Agent(X, 2),))
    assert workers_of(job) == {}
    seats = tuple(Seat(MemberId(name), X, "worker", "h:1") for name in "ab")
    launched = replace(job, launch=Launch(1, seats, ""))
    assert workers_of(launched) == {A: X, B: X}
    assert look(granted(launched, 1), None, 0.0).size == 2
    one_done = replace(launched, launch=Launch(1, seats, "", ends=(SeatEnd(seats[0].member, 0, ""),)))
    assert workers_of(one_done) == {B: X}
    stopped = replace(launched, launch=Launch(1, seats, "", over="resized"), agents=(Agent(X, 2, ports=(1, 2)),))
    assert workers_of(stopped) == {}
    assert look(stopped, None, 0.0, WorkerReports({X: {A, B}})).size == 0


def test_the_demand_has_the_target_with_the_spares_and_the_queue() -> None:
    job = with_spec(new_job(2, 6, 4), queue="batch", priority=3, spares=1)
    demand = demand_of(job, Claim(4, {}, 4, 1.0), 5, 9.0)
    assert (demand.size_min, demand.wanted, demand.priority, demand.queue) == (2, 5, 3, "batch")
    assert (demand.held, demand.granted, demand.planned, demand.unchanged_s) == (4, 0, 5, 8.0)


@pytest.mark.parametrize(
    ("pool", "wrong"),
    [
        (Pool(8, 2, (QueueRule("a", 2.0, 3), QueueRule("b"))), ""),
        (Pool(-1), "a pool must have 0 to 1000000 slots; got -1"),
        (Pool(8, 9), "the spot slots must be 0 to 8, the size of the pool; got 9"),
        (Pool(8, queues=(QueueRule("a"), QueueRule("a"))), "each queue can be named once"),
        (Pool(8, queues=(QueueRule("a", 0.0),)), "the weight of queue a must be above 0 and finite; got 0.0"),
        (Pool(8, queues=(QueueRule("a", limit=-1),)), "the limit of queue a cannot be negative; got -1"),
    ],
)
def test_a_pool_is_checked(pool: Pool, wrong: str) -> None:
    assert bad_pool(pool) == wrong


def test_a_queue_needs_a_valid_name() -> None:
    assert bad_pool(Pool(8, queues=(QueueRule("a b"),))).startswith("the name of a queue is not valid: ")
