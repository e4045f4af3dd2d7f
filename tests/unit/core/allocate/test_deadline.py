"""The workers that a job with a deadline gets, and the sentences that say why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.allocate import Allotment, Demand, Pool, QueueRule, Reason, allocate
from pliant.core.allocate.model import CostLimit, Deadline
from pliant.core.allocate.reasons import duration

LINEAR = ((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0))
HOUR = 3600.0


def due(name: str, hours: float, work: float, granted: int = 0, wanted: int = 8, **more: object) -> Demand:
    """Return a job that ends in time with `work` / `hours` workers."""
    deadline = Deadline(hours * HOUR, work * HOUR, LINEAR)
    return Demand(name, 1, wanted, held=granted, granted=granted, deadline=deadline, **more)  # type: ignore[arg-type]


def plain(name: str, granted: int = 0, wanted: int = 8, **more: object) -> Demand:
    return Demand(name, 1, wanted, held=granted, granted=granted, **more)  # type: ignore[arg-type]


def given(pool: Pool, *demands: Demand) -> dict[str, Allotment]:
    """Return the allotments once all workers have come and gone as granted."""
    for _ in range(10):
        found = {each.name: each for each in allocate(pool, demands)}
        demands = tuple(
            replace(x, granted=found[x.name].size, held=found[x.name].size, planned=found[x.name].planned)
            for x in demands
        )
    return found


def sizes(pool: Pool, *demands: Demand) -> dict[str, int]:
    return {name: each.size for name, each in given(pool, *demands).items()}


def test_a_job_that_would_miss_its_deadline_gets_workers_from_one_that_can_wait() -> None:
    found = given(Pool(8), due("a", 2.0, 10.0, granted=4), plain("b", granted=4))
    assert (found["a"].size, found["b"].size) == (6, 2)
    assert found["a"].reason is Reason.DEADLINE
    assert found["a"].why == "6 of 8: its deadline is in 2 h, and with 5 workers it would end only 0 s early"
    assert found["b"].why == "2 of 8: a beside it has 6 of 8 slots"
    found = given(Pool(9), due("a", 2.0, 14.2, granted=4), plain("b", granted=5))
    assert found["a"].why == "8 of 8: its deadline is in 2 h, and with 7 workers it would end 1 min late"


def test_a_job_that_meets_its_deadline_takes_and_keeps_no_more_than_its_share() -> None:
    found = given(Pool(8), due("a", 2.0, 4.0, granted=4), plain("b", granted=4))
    assert (found["a"].size, found["b"].size) == (4, 4)
    assert found["a"].reason is Reason.SHARED
    assert found["a"].why == (
        "4 of 8: b beside it has 4 of 8 slots; its deadline is in 2 h, and with 4 workers it would end 1 h early"
    )


def test_a_size_that_the_job_has_needs_no_reserve_and_one_that_it_gets_does() -> None:
    assert sizes(Pool(8), due("a", 2.0, 9.9, granted=5), plain("b", granted=3)) == {"a": 5, "b": 3}
    assert sizes(Pool(8), due("a", 2.0, 9.9, granted=4), plain("b", granted=4)) == {"a": 6, "b": 2}


@pytest.mark.parametrize(
    ("hours", "note"),
    [
        (2.0, "its deadline is in 2 h, and even with 8 workers it would end 30 min late"),
        (0.0, "its deadline is over"),
        (-1.0, "its deadline is over"),
    ],
)
def test_a_deadline_that_cannot_be_met_any_more_takes_no_workers(hours: float, note: str) -> None:
    found = given(Pool(16), due("a", hours, 20.0, granted=8), plain("b", granted=8, wanted=16))
    assert found["a"].misses_deadline
    assert found["a"].why == f"8 of 8: all that it can use; {note}"
    found = given(Pool(8), due("a", hours, 20.0, granted=4), plain("b", granted=4))
    assert (found["a"].size, found["b"].size, found["a"].reason) == (4, 4, Reason.SHARED)
    assert found["a"].why.endswith(note)


def test_a_job_that_has_missed_its_deadline_needs_the_reserve_to_meet_it_again() -> None:
    job = due("a", 2.0, 15.9, granted=8)
    assert job.deadline is not None
    assert not allocate(Pool(8), (job,))[0].misses_deadline
    (found,) = allocate(Pool(8), (replace(job, deadline=replace(job.deadline, was_missed=True)),))
    assert found.misses_deadline
    assert found.why.endswith("its deadline is in 2 h, and even with 8 workers it would end 45 s early")


def test_a_job_gets_all_that_its_deadline_needs_or_nothing() -> None:
    a, b = due("a", 2.0, 12.0, granted=3, pause_s=500.0), due("b", 1.0, 4.5, granted=5, pause_s=500.0)
    found = given(Pool(8), a, b)
    assert (found["a"].size, found["b"].size) == (3, 5)
    assert found["a"].why == (
        "3 of 8: b beside it has 5 of 8 slots; its deadline is in 2 h, and with 3 workers it would end 2 h late"
    )
    assert not found["a"].misses_deadline


def test_the_earliest_deadline_comes_first_and_never_takes_what_another_one_needs() -> None:
    late, early = due("late", 3.0, 12.0, granted=2), due("early", 1.0, 4.5, granted=2)
    pool, other = Pool(10), plain("other", granted=6)
    assert sizes(pool, late, other) == {"late": 5, "other": 5}  # its share is enough
    assert sizes(pool, late, early, other)["early"] == 5
    assert sizes(Pool(8), late, early, plain("other", granted=4)) == {"late": 1, "early": 5, "other": 2}
    kept = replace(late, granted=5, held=5)  # it meets its deadline, so the earlier one gets nothing from it
    assert sizes(Pool(8), kept, early, plain("other", granted=1)) == {"late": 5, "early": 2, "other": 1}


def test_a_deadline_counts_among_jobs_of_one_priority() -> None:
    low = due("low", 2.0, 10.0, granted=2)
    assert sizes(Pool(8), low, plain("high", granted=6, wanted=6, priority=5)) == {"high": 6, "low": 2}
    assert sizes(Pool(8), replace(low, priority=5), plain("other", granted=6)) == {"low": 7, "other": 1}


def test_a_newcomer_that_needs_its_minimum_comes_before_a_deadline() -> None:
    job = due("a", 2.0, 12.0, granted=8)
    assert sizes(Pool(8), job, replace(plain("b", since=1.0), size_min=3)) == {"a": 5, "b": 3}


def test_a_job_stays_within_the_limit_of_its_queue_and_what_its_cost_limit_pays_for() -> None:
    pool = Pool(12, queues=(QueueRule("default", limit=8),))
    free = plain("free", granted=2, wanted=4, queue="batch")
    a, b = due("a", 2.0, 10.0, granted=4), plain("b", granted=4)
    assert sizes(pool, a, b, free) == {"a": 6, "b": 2, "free": 4}
    assert sizes(pool, replace(a, size_min=3), replace(b, size_min=4), free) == {"a": 4, "b": 4, "free": 4}
    limited = replace(a, cost=CostLimit(4 * 720.0, 0.0, HOUR))
    found = given(Pool(8), limited, b)
    assert (found["a"].size, found["a"].misses_deadline) == (4, True)
    assert found["a"].why == (
        "4: more workers would exceed its cost limit of 2880.00; "
        "its deadline is in 2 h, and even with 4 workers it would end 30 min late"
    )


def test_of_queues_the_one_that_has_most_for_its_weight_gives_up_workers() -> None:
    pool = Pool(12, queues=(QueueRule("batch", 3.0), QueueRule("default"), QueueRule("other")))
    a, b, c = due("a", 2.0, 8.0, granted=2), plain("b", granted=5, queue="batch"), plain("c", granted=5, queue="other")
    assert sizes(pool, a, b, c) == {"a": 5, "b": 5, "c": 2}


def test_spares_make_a_job_no_faster_and_a_change_takes_its_pause() -> None:
    job = due("a", 2.0, 10.0, granted=4)
    assert job.deadline is not None
    job = replace(job, deadline=replace(job.deadline, spares=1))
    assert sizes(Pool(8), job, plain("b", granted=4)) == {"a": 7, "b": 1}
    assert job.deadline is not None
    job = replace(job, deadline=replace(job.deadline, spares=0, pause_s=0.25 * HOUR))
    assert sizes(Pool(8), job, plain("b", granted=4)) == {"a": 7, "b": 1}


def test_while_its_speed_is_not_known_a_deadline_changes_nothing() -> None:
    job = replace(plain("a", granted=4), deadline=Deadline(2 * HOUR + 600))
    found = given(Pool(8), job, plain("b", granted=4))
    assert (found["a"].size, found["a"].misses_deadline) == (4, False)
    assert found["a"].why == (
        "4 of 8: b beside it has 4 of 8 slots; its deadline is in 2 h 10 min, and its speed is not known yet"
    )


def test_the_reason_of_a_job_that_grows_or_waits_has_its_deadline() -> None:
    found = {x.name: x for x in allocate(Pool(8), (due("a", 2.0, 10.0, granted=4), plain("b", granted=4)))}
    assert found["a"].why == (
        "4 of 6: gets 2 more once b has released them; "
        "its deadline is in 2 h, and with 4 workers it would end 30 min late"
    )
    start = {x.name: x for x in allocate(Pool(8), (due("a", 2.0, 10.0, priority=5), plain("b", granted=8)))}
    assert start["a"].why == (
        "starts with 7 workers once b has released them; "
        "its deadline is in 2 h, and with 7 workers it would end 34 min early"
    )
    over = replace(due("a", -1.0, 10.0, since=1.0), size_min=8)
    found = {x.name: x for x in allocate(Pool(8), (over, plain("b", granted=8)))}
    assert (found["a"].why, found["a"].misses_deadline) == (
        "needs 8 workers, running jobs need 1 of 8 slots as their minimums; its deadline is over",
        True,
    )


def test_durations_are_short() -> None:
    assert [duration(x) for x in (0.4, 59.9, 60.0, 3599.0, 3600.0, 7800.0, 86400.0, 100000.0)] == [
        "0 s",
        "59 s",
        "1 min",
        "59 min",
        "1 h",
        "2 h 10 min",
        "1 d",
        "1 d 3 h",
    ]
