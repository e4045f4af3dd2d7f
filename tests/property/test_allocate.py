"""Laws of `allocate`, for any pool and any jobs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pliant.core.allocate import Allotment, Demand, Pool, QueueRule, Reason, allocate
from pliant.core.allocate.cost import RUNWAY_S, within_cost
from pliant.core.allocate.deadline import MARGIN, end_in_s
from pliant.core.allocate.model import WAITS, CostLimit, Deadline
from pliant.core.allocate.sizes import sizes_of
from pliant.core.model.job import HOUR_S

QUEUES = ("default", "batch")
ROUNDS = 30  # enough for every job to settle


limits = st.builds(
    CostLimit,
    most=st.sampled_from((1.0, 100.0)),
    spent=st.floats(0, 101),
    price=st.sampled_from((None, 0.0, 0.5, 40.0)),
    samples_left=st.sampled_from((None, 10.0, 100000.0)),
    speeds=st.sampled_from(((), ((2, 3.0),), ((1, 1.0), (4, 5.0)))),
)
deadlines = st.builds(
    Deadline,
    in_s=st.sampled_from((-1.0, 50.0, 100.0, 200.0, 400.0)),
    samples_left=st.sampled_from((None, 100.0, 300.0, 600.0)),
    speeds=st.sampled_from(((), ((2, 2.0),), ((1, 1.0), (4, 4.0), (8, 5.0)), ((2, 2.0), (6, 1.5)))),
    pause_s=st.sampled_from((0.0, 10.0)),
    spares=st.sampled_from((0, 0, 1)),
)


@st.composite
def demands(draw: st.DrawFn) -> tuple[Demand, ...]:
    """Jobs with sound sizes: what they hold covers what was granted, as if the pool had never been too small."""
    found = []
    for index in range(draw(st.integers(1, 5))):
        least = draw(st.integers(1, 4))
        speeds = draw(st.dictionaries(st.integers(1, 12), st.floats(0.1, 100), max_size=4))
        found.append(
            Demand(
                name=f"job{index}",
                size_min=least,
                wanted=least + draw(st.integers(0, 10)),
                priority=draw(st.sampled_from((0, 0, 5))),
                since=float(draw(st.integers(0, 3))),
                queue=draw(st.sampled_from(QUEUES)),
                unit=draw(st.sampled_from((1, 1, 2, 4))),
                sizes=tuple(sorted(draw(st.sets(st.integers(1, 14), max_size=3)))),
                unchanged_s=draw(st.sampled_from((None, 0.0, 60.0))),
                speeds=tuple(sorted(speeds.items())),
                pause_s=draw(st.sampled_from((0.0, 0.5, 30.0))),
                left=draw(st.sampled_from((None, 10.0, 1000.0, 100000.0))),
                cost=draw(st.none() | limits),
                deadline=draw(st.none() | deadlines),
                suspended=draw(st.sampled_from((False, False, False, True))),
            )
        )
    return tuple(found)


pools = st.builds(
    Pool,
    slots=st.integers(0, 24),
    spot=st.integers(0, 8),
    queues=st.sampled_from(
        (
            (),
            (QueueRule("default", 3.0), QueueRule("batch", 1.0)),
            (QueueRule("batch", 1.0, limit=6),),
            (QueueRule("default", limit=3), QueueRule("batch", 2.0)),
        )
    ),
)


def granted(jobs: tuple[Demand, ...], found: tuple[Allotment, ...]) -> tuple[Demand, ...]:
    """Return the jobs after their grants, while no worker has come or gone yet."""
    by_name = {each.name: each for each in found}
    return tuple(
        replace(
            demand,
            granted=by_name[demand.name].size,
            planned=by_name[demand.name].planned,
            deadline=demand.deadline and replace(demand.deadline, was_missed=by_name[demand.name].misses_deadline),
        )
        for demand in jobs
    )


def settled(pool: Pool, jobs: tuple[Demand, ...]) -> tuple[Demand, ...]:
    """Return the jobs once every worker has come or gone as granted, and nothing changes any more."""
    for _ in range(ROUNDS):
        after = granted(jobs, allocate(pool, jobs))
        after = tuple(replace(demand, held=demand.granted) for demand in after)
        if after == jobs:
            return jobs
        jobs = after
    raise AssertionError(f"not settled after {ROUNDS} rounds")


def taken(jobs: tuple[Demand, ...]) -> int:
    return sum(max(demand.held, demand.granted) for demand in jobs)


@given(pools, demands())
def test_a_second_call_changes_nothing(pool: Pool, jobs: tuple[Demand, ...]) -> None:
    for _ in range(3):
        once = granted(jobs, allocate(pool, jobs))
        assert granted(once, allocate(pool, once)) == once
        jobs = tuple(replace(demand, held=demand.granted) for demand in once)


@given(pools, demands())
def test_jobs_settle_within_the_pool_and_the_limits_of_their_queues(pool: Pool, jobs: tuple[Demand, ...]) -> None:
    jobs = settled(pool, jobs)
    assert taken(jobs) <= pool.slots
    for rule in pool.queues:
        used = sum(demand.granted for demand in jobs if demand.queue == rule.name)
        assert rule.limit is None or used <= rule.limit


@given(pools, pools, demands(), st.sampled_from((0, 1)))
def test_slots_are_granted_only_when_they_are_free(
    before: Pool, after: Pool, jobs: tuple[Demand, ...], slow: int
) -> None:
    """Some workers leave late. No job gets a slot that another one still occupies."""
    jobs = settled(before, jobs)
    for _ in range(4):
        kept = sum(max(demand.held, sizes_of(demand)[0] if demand.granted and demand.held else 0) for demand in jobs)
        most = max(after.slots, kept)
        jobs = granted(jobs, allocate(after, jobs))
        assert taken(jobs) <= most
        jobs = tuple(
            demand if index % 2 == slow and demand.held > demand.granted else replace(demand, held=demand.granted)
            for index, demand in enumerate(jobs)
        )


@given(pools, demands(), demands())
def test_a_job_that_has_its_minimum_keeps_it_whatever_comes(
    pool: Pool, jobs: tuple[Demand, ...], others: tuple[Demand, ...]
) -> None:
    jobs = settled(pool, jobs)
    more = tuple(replace(demand, name=f"new-{demand.name}", since=demand.since + 9) for demand in others)
    floors = {demand.name: sizes_of(demand)[0] for demand in jobs if demand.granted}
    for found in allocate(pool, jobs + more):
        assert found.size >= floors.get(found.name, 0)


@given(pools, demands())
def test_every_size_is_one_that_the_job_can_have_and_every_wait_has_a_reason(
    pool: Pool, jobs: tuple[Demand, ...]
) -> None:
    found = allocate(pool, jobs)
    assert {each.name for each in found} == {demand.name for demand in jobs}
    by_name = {demand.name: demand for demand in jobs}
    for each in found:
        assert each.why
        assert each.size in (0, *sizes_of(by_name[each.name]))
        assert (each.reason in WAITS) == (each.size == 0) == (each.position > 0)
        assert 0 <= each.spot <= each.size
    assert sorted(each.position for each in found if each.position) == list(
        range(1, sum(1 for each in found if not each.size) + 1)
    )


@given(pools, demands())
def test_a_job_waits_only_while_minimums_leave_no_room_for_the_first_that_waits(
    pool: Pool, jobs: tuple[Demand, ...]
) -> None:
    jobs = settled(pool, jobs)
    floors = sum(sizes_of(demand)[0] for demand in jobs if demand.granted)
    waiting = [each for each in allocate(pool, jobs) if not each.size]
    by_name = {demand.name: demand for demand in jobs}
    for each in waiting:
        least = sizes_of(by_name[each.name])[0]
        if each.reason == "no-room":
            assert floors + least > pool.slots
        assert each.reason != "releasing"


@given(st.integers(1, 24), demands())
def test_a_higher_priority_gets_all_it_can_use_before_a_lower_one_gets_more_than_its_minimum(
    slots: int, jobs: tuple[Demand, ...]
) -> None:
    jobs = tuple(replace(demand, pause_s=0.0, unchanged_s=None, speeds=(), sizes=(), unit=1) for demand in jobs)
    pool = Pool(slots)
    jobs = settled(pool, jobs)
    for high in jobs:
        for low in jobs:
            if high.granted and low.priority < high.priority and low.granted > sizes_of(low)[0]:
                assert high.granted == sizes_of(within_cost(high))[-1]


@given(pools, demands())
def test_a_job_with_a_cost_limit_never_gets_more_than_it_pays_for_ten_minutes_or_has(
    pool: Pool, jobs: tuple[Demand, ...]
) -> None:
    for demand, found in zip(jobs, sorted(allocate(pool, jobs), key=lambda each: each.name), strict=True):
        cost = demand.cost
        if cost is None:
            continue
        assert found.reason not in (Reason.COST_LIMIT, Reason.NO_PRICE) or not found.size
        assert found.size == 0 or cost.price is not None
        if cost.price and found.size > demand.granted:
            assert cost.left >= found.size * cost.price * RUNWAY_S / HOUR_S * 0.999


def needed(demand: Demand) -> int | None:
    """Return the smallest size that meets the deadline with its reserve, or as it is if the job has it already."""
    deadline = demand.deadline
    if deadline is None or deadline.in_s <= 0:
        return None
    for size in sizes_of(demand):
        end_s = end_in_s(deadline, size)
        if end_s is not None and MARGIN * end_s + deadline.pause_s <= deadline.in_s:
            return size
        if end_s is not None and end_s <= deadline.in_s and size == demand.planned and not deadline.was_missed:
            return size
    return None


def spares(demand: Demand, least: int | None) -> int:
    """Return how many workers a job has beyond those that it needs for its deadline, or beyond its minimum."""
    return demand.granted - (least if least is not None and demand.granted >= least else demand.size_min)


def plain(jobs: tuple[Demand, ...]) -> tuple[Demand, ...]:
    """Return the jobs without costs of changes and without speeds, so that all of them can use any slot."""
    return tuple(replace(demand, pause_s=0.0, unchanged_s=None, speeds=(), cost=None) for demand in jobs)


@given(pools, demands(), st.lists(st.none() | deadlines, min_size=5, max_size=5))
def test_no_deadline_makes_a_job_of_the_same_priority_miss_its_own(
    pool: Pool, jobs: tuple[Demand, ...], others: list[Deadline | None]
) -> None:
    jobs = settled(pool, plain(jobs))
    chosen = jobs[0]
    after = (chosen, *(replace(demand, deadline=others[at]) for at, demand in enumerate(jobs[1:])))
    found = {each.name: each for each in allocate(pool, after)}
    if (least := needed(chosen)) is not None and chosen.granted >= least:
        assert found[chosen.name].planned >= least


@given(st.integers(1, 24), demands())
def test_a_job_that_would_miss_its_deadline_gets_what_others_can_spare(slots: int, jobs: tuple[Demand, ...]) -> None:
    jobs = tuple(replace(demand, unit=1, sizes=(), priority=0) for demand in plain(jobs))
    jobs = tuple(demand for demand in settled(Pool(slots), jobs) if demand.granted)
    needs = {demand.name: needed(demand) for demand in jobs}
    free = slots - sum(demand.granted for demand in jobs)
    for demand in jobs:
        least = needs[demand.name]
        if least is None or demand.granted >= least:
            continue
        spare = sum(spares(other, needs[other.name]) for other in jobs if other is not demand)
        assert demand.granted + free + spare < least


@given(pools, demands())
def test_a_deadline_that_no_size_meets_moves_no_worker(pool: Pool, jobs: tuple[Demand, ...]) -> None:
    missed = tuple(
        replace(demand, deadline=Deadline(at, 1000.0, ((1, 1.0),))) if index % 2 else replace(demand, deadline=None)
        for index, (demand, at) in enumerate(zip(jobs, (0.0, -5.0, 9.0, 10.0, 10.0), strict=False))
    )
    without = tuple(replace(demand, deadline=None) for demand in missed)
    found, same = allocate(pool, missed), allocate(pool, without)
    assert [(each.name, each.size, each.planned) for each in found] == [(x.name, x.size, x.planned) for x in same]
    assert all(each.reason is not Reason.DEADLINE for each in found)


@given(pools, demands())
def test_a_job_that_cannot_get_what_its_deadline_needs_takes_nothing_for_it(
    pool: Pool, jobs: tuple[Demand, ...]
) -> None:
    jobs = settled(pool, jobs)
    for index, demand in enumerate(jobs):
        least = needed(demand)
        if least is not None and demand.granted < least:
            without = (*jobs[:index], replace(demand, deadline=None), *jobs[index + 1 :])
            assert granted(without, allocate(pool, without)) == without
