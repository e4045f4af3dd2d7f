"""The demand of a job: the workers it wants, and the slots that its workers may occupy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.allocate import Pool, QueueRule
from pliant.core.allocate.demands import SETTLE_S, WorkerReports, cost_limit_of, demand_of, remains_of
from pliant.core.allocate.model import CostLimit, bad_pool
from pliant.core.autoscale.pace import JobPace, SizePace
from pliant.core.model.job import Agent, Mode
from pliant.core.model.launch import Launch, Seat, SeatEnd
from pliant.core.model.names import MemberId
from unit.core.build import A, B, C, X, new_job, running, with_spec


def test_the_workers_of_an_ended_job_count_until_their_end_is_reported() -> None:
    left = remains_of(WorkerReports(ended={A}), {A: 0.0, B: 0.0, C: 0.0}, 1.0)
    assert left.keys() == {B, C}
    left = remains_of(WorkerReports({X: {B}}), left, SETTLE_S - 1)
    assert left == {B: SETTLE_S - 1, C: 0.0}
    left = remains_of(WorkerReports(), left, SETTLE_S)  # nothing was reported of c: it was lost with its agent
    assert left.keys() == {B}
    assert remains_of(WorkerReports(), left, 2 * SETTLE_S - 1) == {}


def test_the_workers_of_a_launch_occupy_slots_until_all_of_them_have_ended() -> None:
    job = replace(with_spec(new_job(), mode=Mode.RELAUNCH), agents=(Agent(X, 2),))
    assert job.occupants == {}
    seats = tuple(Seat(MemberId(name), X, "worker", "h:1") for name in "ab")
    launched = replace(job, launch=Launch(1, seats, ""))
    assert launched.occupants == {A: X, B: X}
    one_done = replace(launched, launch=Launch(1, seats, "", ends=(SeatEnd(seats[0].member, 0, ""),)))
    assert one_done.occupants == {B: X}
    stopped = replace(launched, launch=Launch(1, seats, "", over="resized"), agents=(Agent(X, 2, ports=(1, 2)),))
    assert stopped.occupants == {}


def test_the_demand_has_the_target_with_the_spares_and_the_queue() -> None:
    job = replace(with_spec(running(4), queue="batch", priority=3, spares=1), granted=2)
    demand = demand_of(job, 5, 8.0)
    assert (demand.size_min, demand.wanted, demand.priority, demand.queue) == (1, 7, 3, "batch")
    assert (demand.held, demand.granted, demand.planned, demand.unchanged_s) == (4, 2, 5, 8.0)


def test_the_demand_counts_whole_pods_and_the_sizes_that_the_job_uses() -> None:
    job = with_spec(running(2), queue="batch", unit=4, sizes=(2, 6), spares=1, suspended=True)
    demand = demand_of(job, None, 0.0)
    assert (demand.wanted, demand.unit, demand.sizes, demand.suspended) == (8, 4, (2, 3, 6, 7), True)


def test_the_cost_limit_has_what_the_job_has_spent_and_what_was_measured_of_it() -> None:
    job = replace(with_spec(running(2), queue="batch"), price=3600.0, spent=7.0, spent_at=100.0)
    assert cost_limit_of(job, 110.0, 1.0, None) is None
    job = with_spec(job, at_most_cost=50.0)
    assert cost_limit_of(job, 110.0, 2.5, None) == CostLimit(50.0, 27.0, 2.5)
    pace = JobPace(sizes={2: SizePace(60.0, 20.0)})
    assert cost_limit_of(job, 110.0, 2.5, pace) == CostLimit(50.0, 27.0, 2.5, 120.0, ((2, 3.0),))
    brief = JobPace(sizes={2: SizePace(60.0, 20.0), 3: SizePace(1.0, 3.0)})  # as processes are while they warm up
    assert cost_limit_of(job, 110.0, 2.5, brief) == CostLimit(50.0, 27.0, 2.5, 120.0, ((2, 3.0),))
    early = with_spec(replace(new_job(), price=3600.0), queue="batch", at_most_cost=50.0)
    assert cost_limit_of(early, 110.0, 2.5, pace) == CostLimit(50.0, 0.0, 2.5)


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
