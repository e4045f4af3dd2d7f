"""The leader's grants: once a second, and only what is new."""

from __future__ import annotations

from dataclasses import replace

from pliant.coordinator.service.loaded_jobs import LoadedJob, LoadedJobs
from pliant.coordinator.service.scheduler import PERIOD_S, Scheduler
from pliant.core.allocate import Pool, Reason
from pliant.core.allocate.demands import SETTLE_S
from pliant.core.allocate.measured import ANEW_S
from pliant.core.autoscale.pace import JobPace, SizePace
from pliant.core.messages import Command, Exited, GrantWorkers, SetPrice
from pliant.core.model.job import Agent, Job, JobState, Member
from pliant.core.model.names import MemberId
from unit.core.build import X, new_job, running, with_spec


def job(name: str, members: int, granted: int, priority: int = 0, size_min: int = 1) -> Job:
    found = with_spec(running(members) if members else new_job(), queue="default", priority=priority, size_min=size_min)
    return replace(found, name=name, granted=granted)


def loaded(*jobs: Job) -> LoadedJobs:
    found = LoadedJobs()
    for each in jobs:
        found.put(each.name, LoadedJob(each, 1, 0))
    return found


def leader(slots: int) -> Scheduler:
    """A leader that set the pool, so that no other one has granted anything."""
    scheduler = Scheduler()
    scheduler.due(0.0, 0.0, loaded())
    scheduler.pool = Pool(slots)
    return scheduler


def successor(slots: int) -> Scheduler:
    """A leader that found the pool."""
    scheduler = Scheduler()
    scheduler.pool = Pool(slots)
    return scheduler


def on_agent(found: Job, size: int) -> Job:
    """The job with so many members on its agent."""
    names = [MemberId(f"x-1.{number}") for number in range(size)]
    return replace(found, agents=(Agent(X, 8),), members={name: Member(name, 1, X) for name in names})


def exited(job: str, *numbers: int) -> list[tuple[object, str, Command]]:
    return [(None, job, Exited(MemberId(f"x-1.{number}"), 0)) for number in numbers]


def sizes(grants: list[tuple[str, Command]]) -> dict[str, int]:
    return {name: command.size for name, command in grants if isinstance(command, GrantWorkers)}


def test_without_a_pool_nothing_is_granted() -> None:
    assert Scheduler().due(0.0, 0.0, loaded(job("a", 1, 0))) == []


def test_an_urgent_job_is_granted_workers_when_the_other_has_released_them() -> None:
    scheduler = leader(6)
    low, high = job("low", 6, 6), job("high", 0, 0, priority=5)
    first = dict(scheduler.due(0.0, 0.0, loaded(low, high)))
    assert first["low"] == GrantWorkers(1, "1 of 6: high with a higher priority has 5 of 6 slots")
    waits = first["high"]
    assert isinstance(waits, GrantWorkers)
    assert (waits.size, waits.why) == (0, "starts with 5 workers once low has released them")
    assert scheduler.due(PERIOD_S / 2, 0.0, loaded(low, high)) == []

    low = replace(low, granted=1)
    assert scheduler.due(1.0, 0.0, loaded(low, high)) == []
    low = replace(low, members=dict(list(low.members.items())[:3]))  # three processes have ended
    [(name, command)] = scheduler.due(2.0, 0.0, loaded(low, high))
    assert (name, command) == ("high", GrantWorkers(3, "3 of 5: gets 2 more once low has released them"))


def test_jobs_in_no_queue_and_ended_jobs_have_no_part() -> None:
    scheduler = leader(4)
    ended = replace(job("ended", 0, 0), state=JobState.FINISHED)
    assert scheduler.due(0.0, 0.0, loaded(with_spec(job("free", 2, 0), queue=""), ended)) == []
    assert scheduler.shown == ()


def test_a_job_with_workers_keeps_its_grant_when_its_minimum_does_not_fit_any_more() -> None:
    scheduler = leader(2)
    low = job("low", 1, 1, size_min=4)
    [(_, command)] = scheduler.due(0.0, 0.0, loaded(low))
    assert isinstance(command, GrantWorkers)
    assert (command.size, command.why) == (1, "needs 4 workers, the pool has 2 slots")
    [(demand, allotment)] = scheduler.shown
    assert (demand.held, allotment.size) == (1, 0)
    scheduler.forget()
    assert scheduler.shown == ()


def test_a_new_leader_grants_no_free_slot_before_agents_of_ended_jobs_have_reported() -> None:
    scheduler = successor(8)
    shrunk, high = job("low", 0, 2), job("high", 0, 0, priority=5, size_min=6)  # 8 were granted before
    found = dict(scheduler.due(0.0, 0.0, loaded(shrunk, high)))
    assert found["high"] == GrantWorkers(0, "starts with 6 workers once the new leader knows which workers run")
    assert sizes(scheduler.due(SETTLE_S - 1, 0.0, loaded(shrunk, high))) == {}
    assert sizes(scheduler.due(SETTLE_S, 0.0, loaded(shrunk, high))) == {"high": 6}


def test_slots_of_an_ended_job_are_granted_when_its_processes_have_ended() -> None:
    scheduler = leader(4)
    first, second = on_agent(job("first", 0, 4), 4), job("second", 0, 0, size_min=2)
    scheduler.due(0.0, 0.0, loaded(first))
    ended = replace(first, state=JobState.FINISHED)
    found = dict(scheduler.due(1.0, 0.0, loaded(ended, second)))
    assert found == {"second": GrantWorkers(0, "starts with 4 workers once first has released them")}
    assert sizes(scheduler.due(2.0, 0.0, loaded(ended, second), exited("first", 0, 1))) == {"second": 2}
    second = replace(second, granted=2)
    assert sizes(scheduler.due(2.5, 0.0, loaded(ended, second), exited("first", 2, 3))) == {}
    assert sizes(scheduler.due(9.0, 0.0, loaded(ended, second))) == {"second": 4}


def test_an_ended_job_keeps_its_slots_as_long_as_its_agent_reports_processes() -> None:
    scheduler = leader(4)
    first, second = on_agent(job("first", 0, 4), 4), job("second", 0, 0, size_min=2)
    scheduler.due(0.0, 0.0, loaded(first))
    for now in (1.0, 15.0, 30.0):
        scheduler.note_workers("first", X, [*first.members], now)
        assert not sizes(scheduler.due(now, 0.0, loaded(replace(first, state=JobState.FINISHED), second))).get("second")
    assert sizes(scheduler.due(30.0 + SETTLE_S, 0.0, loaded(second))) == {"second": 4}  # silent, and forgotten


def test_a_new_leader_counts_the_processes_of_a_job_that_ended_before() -> None:
    scheduler = successor(4)
    ended, second = replace(on_agent(job("first", 0, 4), 4), state=JobState.FINISHED), job("second", 0, 0, size_min=2)
    for now in (0.0, 10.0, SETTLE_S):
        scheduler.note_workers("first", X, [*ended.members][:3], now)
        scheduler.due(now, 0.0, loaded(ended, second))
    scheduler.note_workers("first", X, [*ended.members][:2], SETTLE_S + 1)
    assert sizes(scheduler.due(SETTLE_S + 1, 0.0, loaded(ended, second), exited("first", 2))) == {"second": 2}


def test_workers_of_the_attempt_before_occupy_slots_beside_those_of_the_next() -> None:
    scheduler = leader(4)
    first = on_agent(job("first", 0, 4), 4)
    scheduler.due(0.0, 0.0, loaded(first))
    again = replace(first, attempt=2, granted=0, members={}, agents=())
    assert sizes(scheduler.due(1.0, 0.0, loaded(again))) == {"first": 0}
    assert sizes(scheduler.due(2.0, 0.0, loaded(again), exited("first", 0, 1, 2, 3))) == {"first": 4}


def test_jobs_are_charged_the_price_of_the_moment_and_stop_at_their_cost_limit() -> None:
    scheduler = leader(6)
    scheduler.pool = Pool(6, prices=((1000.0, 2.0), (2000.0, 3600.0)))
    free, limited = job("free", 2, 2), with_spec(job("limited", 2, 2), at_most_cost=500.0)
    found = scheduler.due(50.0, 1500.0, loaded(free, limited))
    assert [each for each in found if isinstance(each[1], SetPrice)] == [
        ("free", SetPrice(2.0)),
        ("limited", SetPrice(2.0)),
    ]
    limited = replace(limited, price=3600.0, spent=441.0, spent_at=3000.0)
    found = scheduler.due(51.0, 3000.0, loaded(free, limited))
    assert ("free", SetPrice(3600.0)) in found
    assert sizes(found)["limited"] == 0

    scheduler.pool = Pool(6)
    found = scheduler.due(52.0, 3001.0, loaded(limited))
    assert ("limited", SetPrice(0.0)) in found
    assert dict(found[1:])["limited"] == GrantWorkers(
        0, "has a cost limit of 500.00, and the pool has no price of a slot now"
    )


def test_a_job_gets_workers_for_its_deadline_and_one_that_misses_it_gets_the_reason_once() -> None:
    scheduler = leader(6)
    due, other = with_spec(job("due", 3, 3), deadline=1100.0), on_agent(job("other", 0, 3), 3)
    assert sizes(scheduler.due(0.0, 1000.0, loaded(due, other))) == {"due": 3, "other": 3}
    scheduler.paces["due"] = JobPace({3: SizePace(30.0, 30.0)}, _pauses=[1.0], now=1000.0)
    found = dict(scheduler.due(10.0, 1000.0, loaded(due, other)))
    end = "its deadline is in 1 min, and with 3 workers it would end 20 s late"
    assert found == {
        "due": GrantWorkers(3, f"3 of 5: gets 2 more once other has released them; {end}"),
        "other": GrantWorkers(1, "1 of 6: due beside it has 5 of 6 slots"),
    }
    other = on_agent(replace(other, granted=1), 1)
    end = "its deadline is in 1 min, and with 4 workers it would end only 1 s early"
    assert scheduler.due(11.0, 1000.0, loaded(due, other)) == [("due", GrantWorkers(5, f"5 of 6: {end}"))]

    due = on_agent(replace(due, granted=5), 5)
    assert scheduler.due(12.0, 1000.0, loaded(due, other)) == []
    scheduler.paces["due"] = JobPace({3: SizePace(30.0, 60.0)}, now=1000.0)  # it has become slower
    found = dict(scheduler.due(30.0, 1000.0, loaded(due, other)))
    due_command = found["due"]
    assert isinstance(due_command, GrantWorkers)
    assert due_command.why.endswith("its deadline is in 1 min, and even with 6 workers it would end 47 s late")
    due = on_agent(replace(due, granted=due_command.size), due_command.size)
    while found := dict(scheduler.due(scheduler._next, 1001.0, loaded(due, other))):  # the rest goes to the other one
        assert [*found] == ["other"]
        [command] = found.values()
        assert isinstance(command, GrantWorkers)
        other = on_agent(replace(other, granted=command.size), command.size)
    assert scheduler.due(90.0, 1101.0, loaded(due, other)) == []  # it has missed its deadline already
    assert [each.why.endswith("; its deadline is over") for _, each in scheduler.shown] == [True, False]


def measured(size: int, speed: float) -> JobPace:
    return JobPace({size: SizePace(30.0 * speed, 30.0)})


def test_jobs_share_by_the_speeds_that_were_measured() -> None:
    scheduler = leader(6)
    slow, fast = job("slow", 3, 3), job("fast", 3, 3)
    assert sizes(scheduler.due(0.0, 0.0, loaded(slow, fast))) == {"slow": 3, "fast": 3}
    scheduler.paces = {
        "slow": JobPace({1: SizePace(30.0, 30.0), 3: SizePace(30.0, 30.0)}),
        "fast": JobPace({1: SizePace(30.0, 30.0), 3: SizePace(90.0, 30.0)}),
    }
    assert sizes(scheduler.due(10.0, 0.0, loaded(slow, fast))) == {"slow": 1, "fast": 3}
    demand = {each.name: each for each, _ in scheduler.shown}["fast"]
    assert (demand.speeds, demand.left) == (((1, 1.0), (3, 3.0)), 120.0)


def test_a_new_leader_keeps_the_sizes_of_jobs_until_it_has_measured_them() -> None:
    scheduler = successor(8)
    low, new = job("low", 3, 3), job("new", 0, 0, size_min=1)
    for now in (0.0, SETTLE_S, ANEW_S - 1.0):
        found = sizes(scheduler.due(now, 0.0, loaded(low)))
        assert found.get("low", 3) == 3
    assert scheduler.shown[0][1].reason is Reason.HELD
    scheduler.paces["low"] = measured(3, 4.0)
    assert sizes(scheduler.due(ANEW_S - 0.5 + PERIOD_S, 0.0, loaded(low))) == {"low": 6}
    scheduler = successor(8)
    scheduler.due(0.0, 0.0, loaded(low))
    assert sizes(scheduler.due(ANEW_S, 0.0, loaded(low, new)))["low"] > 3  # it was not measured in time


def test_a_job_that_a_leader_has_started_is_not_held() -> None:
    scheduler = successor(8)
    assert sizes(scheduler.due(0.0, 0.0, loaded())) == {}
    started = job("started", 2, 2)
    scheduler.due(1.0, 0.0, loaded(started))
    assert sizes(scheduler.due(SETTLE_S + 1.0, 0.0, loaded(started))) == {"started": 6}


def speeds(scheduler: Scheduler) -> list[tuple[tuple[int, float], ...]]:
    return [demand.speeds for demand, _ in scheduler.shown]


def test_the_measurements_of_an_attempt_do_not_count_for_the_next() -> None:
    scheduler = leader(8)
    first = job("again", 3, 3)
    scheduler.paces["again"] = measured(3, 4.0)
    scheduler.due(0.0, 0.0, loaded(first))
    assert speeds(scheduler) == [((3, 4.0),)]
    del scheduler.paces["again"]
    scheduler.due(1.0, 0.0, loaded(replace(first, attempt=2)))
    assert speeds(scheduler) == [()]


def test_the_measurements_of_a_leader_go_with_its_memory() -> None:
    scheduler = leader(8)
    scheduler.paces["job"] = measured(3, 4.0)
    scheduler.due(0.0, 0.0, loaded(job("job", 3, 3)))
    scheduler.forget()
    scheduler.paces.clear()
    scheduler.due(1.0, 0.0, loaded(job("job", 3, 3)))
    assert speeds(scheduler) == [()]
    assert scheduler.shown[0][0].is_measured_anew


def test_without_a_pool_ended_workers_are_not_remembered() -> None:
    scheduler = Scheduler()
    for number in range(50):
        scheduler.due(float(number), 0.0, LoadedJobs(), [(None, "job", Exited(MemberId(f"a.{number}"), 0))])
    assert scheduler._ended == {}
