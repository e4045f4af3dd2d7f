"""The sizes that `allocate` gives to jobs, by example."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.allocate import Allotment, Demand, Leaving, Pool, QueueRule, Reason, allocate

LINEAR = tuple((size, float(size)) for size in (1, 2, 4, 8, 16))
FLAT = ((1, 1.0), (2, 2.0), (4, 2.1), (8, 2.1))


def given(pool: Pool, *demands: Demand) -> dict[str, Allotment]:
    return {each.name: each for each in allocate(pool, demands)}


def after(pool: Pool, *demands: Demand) -> tuple[Demand, ...]:
    """Return the jobs once all workers have come and gone as granted."""
    for _ in range(20):
        found = given(pool, *demands)
        then = tuple(
            replace(x, granted=(size := found[x.name].size), held=size, planned=found[x.name].planned) for x in demands
        )
        if then == demands:
            break
        demands = then
    return demands


def sizes(pool: Pool, *demands: Demand) -> dict[str, int]:
    return {demand.name: demand.granted for demand in after(pool, *demands)}


# ------------------------------------------------------------------------------------------ minimums and consent


def test_one_job_gets_the_whole_pool_up_to_what_it_wants() -> None:
    assert sizes(Pool(8), Demand("a", 1, 16)) == {"a": 8}
    found = given(Pool(8), *after(Pool(8), Demand("a", 1, 16)))["a"]
    assert (found.reason, found.why) == (Reason.POOL, "8 of 16: the pool has 8 slots")
    found = given(Pool(8), *after(Pool(8), Demand("a", 1, 4)))["a"]
    assert (found.reason, found.why) == (Reason.ALL, "4 of 4: all that it can use")


def test_slots_of_an_ended_job_are_not_free_while_its_workers_run() -> None:
    job = Demand("next", 2, 8)
    (found,) = allocate(Pool(8), (job,), (Leaving("last", 7),))
    assert (found.size, found.why) == (0, "starts with 8 workers once last has released them")
    (found,) = allocate(Pool(8), (job,), (Leaving("last", 5),))
    assert (found.size, found.why) == (3, "3 of 8: gets 5 more once last has released them")


def test_nothing_grows_while_a_new_leader_counts_the_workers() -> None:
    low = Demand("low", 2, 8, held=2, granted=2)
    high = Demand("high", 2, 6, priority=5, since=1.0)
    found = {each.name: each for each in allocate(Pool(8), (low, high), is_counting=True)}
    assert (found["low"].size, found["high"].size) == (2, 0)
    assert found["high"].why == "starts with 6 workers once the new leader knows which workers run"


def test_a_job_does_not_grow_while_workers_beyond_its_grant_are_leaving() -> None:
    job = Demand("a", 1, 8, held=6, granted=2)
    assert given(Pool(8), job)["a"].size == 2
    assert given(Pool(8), replace(job, held=2))["a"].size == 8


def test_an_urgent_job_takes_surplus_only_after_it_was_released() -> None:
    low = Demand("low", 2, 8, held=8, granted=8)
    high = Demand("high", 2, 6, priority=5, since=1.0)
    found = given(Pool(8), low, high)
    assert found["low"].size == 2
    assert found["low"].why == "2 of 8: high with a higher priority has 6 of 8 slots"
    assert (found["high"].size, found["high"].planned, found["high"].position) == (0, 6, 1)
    assert found["high"].why == "starts with 6 workers once low has released them"

    low, high = replace(low, granted=2, planned=2), replace(high, planned=6)
    found = given(Pool(8), replace(low, held=4), high)
    assert found["high"].size == 4
    assert found["high"].why == "4 of 6: gets 2 more once low has released them"
    found = given(Pool(8), replace(low, held=2), replace(high, held=4, granted=4))
    assert found["high"].size == 6


def test_the_rest_grows_back_when_the_urgent_job_has_ended() -> None:
    low = Demand("low", 2, 8, held=2, granted=2, planned=2)
    assert sizes(Pool(8), low) == {"low": 8}


def test_a_suspended_job_wants_no_worker_and_its_slots_are_free_once_its_workers_are_gone() -> None:
    night, urgent = Demand("night", 2, 6, held=6, granted=6, planned=6), Demand("urgent", 2, 8, since=1.0)
    paused = replace(night, suspended=True)
    found = given(Pool(8), paused, urgent)
    assert (found["night"].size, found["night"].reason, found["night"].why) == (0, Reason.SUSPENDED, "it is suspended")
    assert found["urgent"].size == 2
    assert sizes(Pool(8), replace(paused, held=0, granted=0), urgent) == {"night": 0, "urgent": 8}


def test_a_job_that_must_wait_a_while_for_more_slots_does_not_pay_for_two_changes() -> None:
    low = Demand("low", 1, 8, held=5, granted=1, planned=1)
    high = Demand("high", 2, 7, priority=1, held=2, granted=2, planned=7, pause_s=500.0, speeds=LINEAR, left=2e4)
    assert given(Pool(8), low, high)["high"].size == 2
    assert given(Pool(8), low, replace(high, pause_s=0.1))["high"].size == 3
    assert given(Pool(8), replace(low, held=1), high)["high"].size == 7


def test_minimums_go_by_priority_and_then_by_age() -> None:
    urgent = Demand("urgent", 3, 3, priority=1, since=9.0)
    jobs = (Demand("young", 3, 3, since=2.0), Demand("old", 3, 3, since=1.0), urgent)
    assert sizes(Pool(6), *jobs) == {"urgent": 3, "old": 3, "young": 0}
    found = given(Pool(6), *after(Pool(6), *jobs))["young"]
    assert found.why == "needs 3 workers, running jobs need 6 of 6 slots as their minimums"
    assert (found.reason, found.position) == (Reason.NO_ROOM, 1)


def test_a_small_job_does_not_overtake_a_large_one_that_waits() -> None:
    running = Demand("running", 4, 8, held=8, granted=8)
    found = given(Pool(8), running, Demand("large", 5, 5, since=1.0), Demand("small", 1, 1, since=2.0))
    assert found["small"].reason is Reason.BEHIND
    assert found["small"].why == "behind large"
    assert [found[name].position for name in ("large", "small")] == [1, 2]


def test_a_job_that_can_never_fit_blocks_no_other() -> None:
    found = given(Pool(8), Demand("giant", 9, 9), Demand("small", 1, 1, since=1.0))
    assert found["giant"].reason is Reason.POOL_TOO_SMALL
    assert found["giant"].why == "needs 9 workers, the pool has 8 slots"
    assert found["small"].size == 1


def test_slots_are_granted_in_whole_pods_and_at_sizes_that_the_job_can_have() -> None:
    assert sizes(Pool(11), Demand("a", 2, 11, unit=4)) == {"a": 8}
    assert sizes(Pool(11), Demand("a", 1, 11, sizes=(1, 2, 4, 8))) == {"a": 8}
    assert sizes(Pool(11), Demand("a", 6, 7, unit=4)) == {"a": 8}
    assert sizes(Pool(11), Demand("a", 3, 4, sizes=(8, 16))) == {"a": 8}
    assert sizes(Pool(11), Demand("a", 3, 4, sizes=(1,))) == {"a": 3}


# ------------------------------------------------------------------------------------------------ lost machines


def test_a_job_that_lost_its_machines_waits_again_and_one_with_its_minimum_stays() -> None:
    whole = Demand("whole", 4, 8, since=2.0, held=4, granted=8)
    broken = Demand("broken", 4, 8, since=1.0, held=1, granted=4)
    found = given(Pool(5), whole, broken)
    assert found["whole"].size == 4
    assert (found["broken"].size, found["broken"].reason) == (0, Reason.NO_ROOM)
    assert given(Pool(5), whole, replace(broken, held=0))["whole"].size == 5


def test_a_grant_is_taken_back_if_the_slots_vanish_before_the_workers_come() -> None:
    slow = Demand("slow", 1, 2, held=6, granted=2, planned=2)
    new = Demand("new", 2, 4, since=1.0, held=0, granted=4, planned=4)
    assert given(Pool(10), slow, new)["new"].size == 4
    assert given(Pool(8), slow, new)["new"].size == 2
    found = given(Pool(7), slow, new)["new"]
    assert (found.size, found.reason) == (0, Reason.RELEASING)
    assert given(Pool(7), slow, replace(new, held=1))["new"].size == 2
    assert given(Pool(7), slow, replace(new, held=3, sizes=(2, 4)))["new"].size == 4


def test_a_job_without_workers_does_not_go_before_others_when_the_pool_lost_its_slots() -> None:
    urgent = Demand("urgent", 1, 10, priority=5, since=1.0, held=1, granted=4, planned=4)
    waits = Demand("waits", 3, 14, priority=5, since=2.0)
    started = Demand("started", 1, 10, held=0, granted=1, planned=1)
    first = given(Pool(4), urgent, waits, started)
    assert [first[name].planned for name in ("urgent", "waits", "started")] == [1, 3, 0]
    again = (replace(x, granted=first[x.name].size, planned=first[x.name].planned) for x in (urgent, waits, started))
    assert given(Pool(4), *again) == first


def test_jobs_keep_their_minimum_when_the_pool_was_made_too_small() -> None:
    a, b = Demand("a", 4, 8, held=4, granted=4), Demand("b", 4, 8, since=1.0, held=4, granted=4)
    found = given(Pool(6), a, b)
    assert [found[name].size for name in "ab"] == [4, 4]
    assert found["a"].reason is Reason.LOST
    assert found["a"].why == "4 of 8: the pool has only 6 slots, fewer than the minimums of running jobs"


def test_slots_of_a_job_that_waits_again_are_free_once_its_workers_are_gone() -> None:
    gone = Demand("gone", 4, 4, since=2.0, held=2, granted=4)
    stays = Demand("stays", 2, 6, held=2, granted=2)
    found = given(Pool(4), gone, stays)
    assert found["gone"].size == 0
    assert found["stays"].why == "2 of 4: gets 2 more once gone has released them"
    assert found["stays"].reason is Reason.GROWING


def test_minimums_get_the_reserved_slots_and_the_least_important_surplus_the_spot_ones() -> None:
    pool = Pool(8, spot=4)
    found = given(pool, *after(pool, Demand("low", 1, 4), Demand("high", 1, 4, priority=1)))
    assert (found["high"].size, found["high"].spot) == (4, 1)
    assert (found["low"].size, found["low"].spot) == (4, 3)
    assert given(Pool(2, spot=9), Demand("a", 1, 2))["a"].spot == 2


# ------------------------------------------------------------------------------------------------ gain and cost


def test_jobs_that_were_not_measured_share_equally() -> None:
    assert sizes(Pool(9), Demand("a", 1, 8), Demand("b", 1, 8), Demand("c", 1, 8)) == {"a": 3, "b": 3, "c": 3}
    jobs = after(Pool(9), Demand("a", 1, 8), Demand("b", 1, 8))
    assert given(Pool(9), *jobs)["b"].why == "4 of 8: a beside it has 5 of 9 slots"
    many = after(Pool(5), *(Demand(name, 1, 8) for name in "abcde"))
    assert given(Pool(5), *many)["a"].why == "1 of 8: b, c, d and 1 more beside it have 4 of 5 slots"


def test_slots_go_where_they_are_worth_most() -> None:
    steep = Demand("steep", 1, 8, speeds=LINEAR, left=1e4)
    flat = Demand("flat", 1, 8, speeds=FLAT, left=1e4)
    assert sizes(Pool(8), steep, flat) == {"steep": 6, "flat": 2}


def test_a_job_does_not_get_slots_that_make_it_no_faster() -> None:
    flat = Demand("flat", 1, 8, speeds=((2, 2.0), (4, 2.0), (8, 1.5)), left=1e4)
    found = given(Pool(8), *after(Pool(8), flat))["flat"]
    assert found.size == 2
    assert found.reason is Reason.NO_GAIN
    assert found.why == "2 of 8: it would gain less from more workers than a change costs"


def test_a_job_keeps_slots_that_no_other_job_wants() -> None:
    flat = Demand("flat", 1, 8, speeds=FLAT, left=1e4, held=8, granted=8)
    assert sizes(Pool(8), flat) == {"flat": 8}
    assert sizes(Pool(8), flat, Demand("new", 1, 8, speeds=LINEAR, left=1e4, since=1.0))["new"] >= 5


def test_a_change_that_costs_more_than_it_gains_is_not_made() -> None:
    job = Demand("a", 1, 8, speeds=LINEAR, left=400.0, held=4, granted=4, pause_s=200.0)
    assert sizes(Pool(8), job) == {"a": 4}
    assert sizes(Pool(8), replace(job, pause_s=1.0)) == {"a": 8}


def test_slots_do_not_move_between_jobs_for_a_gain_below_the_cost_of_both_changes() -> None:
    long = Demand("long", 1, 8, speeds=LINEAR, left=1e5, held=7, granted=7, pause_s=30.0)
    short = Demand("short", 1, 8, speeds=LINEAR, left=1000.0, held=1, granted=1, pause_s=30.0)
    assert sizes(Pool(8), long, short) == {"long": 1, "short": 7}
    dear = (replace(long, pause_s=5000.0), replace(short, pause_s=5000.0))
    assert sizes(Pool(8), *dear) == {"long": 7, "short": 1}


def test_a_job_that_changed_a_moment_ago_keeps_its_size() -> None:
    long = Demand("long", 1, 8, speeds=LINEAR, left=1e5, held=7, granted=7, unchanged_s=1.0)
    short = Demand("short", 1, 8, speeds=LINEAR, left=1000.0, held=1, granted=1)
    assert sizes(Pool(8), long, short) == {"long": 7, "short": 1}
    assert sizes(Pool(8), replace(long, unchanged_s=60.0), short) == {"long": 1, "short": 7}
    assert sizes(Pool(16), replace(long, unchanged_s=1.0)) == {"long": 7}


def test_equal_jobs_do_not_take_from_one_another_in_turn() -> None:
    a, b = Demand("a", 1, 8, held=5, granted=5), Demand("b", 1, 8, held=3, granted=3, since=1.0)
    assert sizes(Pool(8), a, b) in ({"a": 5, "b": 3}, {"a": 4, "b": 4})
    settled = after(Pool(8), a, b)
    assert {each.name: each.size for each in allocate(Pool(8), settled)} == {x.name: x.granted for x in settled}


def test_when_slots_vanish_the_job_that_loses_least_gives_them_up() -> None:
    steep = Demand("steep", 1, 8, speeds=LINEAR, left=1e4, held=4, granted=4)
    flat = Demand("flat", 1, 8, speeds=FLAT, left=1e4, held=4, granted=4)
    found = given(Pool(6), steep, flat)
    assert (found["steep"].size, found["flat"].size) == (4, 2)
    a, b = Demand("old", 1, 8, held=4, granted=4), Demand("young", 1, 8, held=4, granted=4, since=1.0)
    assert given(Pool(7), a, b)["young"].size == 3


# ------------------------------------------------------------------------------------------------------ queues


def test_queues_share_by_weight_and_borrow_what_others_do_not_use() -> None:
    pool = Pool(8, queues=(QueueRule("research", 3.0), QueueRule("batch", 1.0)))
    research, batch = Demand("r", 1, 8, queue="research"), Demand("b", 1, 8, queue="batch", since=1.0)
    assert sizes(pool, research, batch) == {"r": 6, "b": 2}
    alone = after(pool, batch)
    assert alone[0].granted == 8
    assert sizes(pool, *alone, research) == {"r": 6, "b": 2}


def test_what_a_queue_cannot_use_in_whole_pods_stays_with_the_borrower() -> None:
    pool = Pool(8, queues=(QueueRule("research", 1.0), QueueRule("batch", 1.0)))
    batch = Demand("b", 1, 8, queue="batch", held=7, granted=7)
    research = Demand("r", 1, 8, queue="research", sizes=(1, 6), held=1, granted=1)
    assert sizes(pool, batch, research) == {"b": 7, "r": 1}
    in_pods = Demand("b", 1, 8, queue="batch", sizes=(1, 7), held=7, granted=7)
    assert sizes(pool, in_pods, replace(research, sizes=(1, 2))) == {"b": 7, "r": 1}
    coarse = replace(in_pods, sizes=(2, 6, 7))
    assert sizes(pool, coarse, replace(research, sizes=(1, 4))) == {"b": 7, "r": 1}


def test_a_queue_has_at_most_its_limit() -> None:
    pool = Pool(8, queues=(QueueRule("small", limit=3),))
    job, next_job = Demand("a", 2, 8, queue="small"), Demand("b", 2, 8, queue="small", since=1.0)
    assert sizes(pool, job, next_job) == {"a": 3, "b": 0}
    jobs = after(pool, job, next_job, Demand("c", 1, 1, queue="small", since=2.0), Demand("d", 1, 1, since=3.0))
    found = given(pool, *jobs)
    assert found["a"].reason is Reason.QUEUE_LIMIT
    assert found["a"].why == "3 of 8: queue small has 3 of the 3 that it may have"
    assert found["b"].why == "needs 2 workers, the minimums in queue small are 2 of the 3 it may have"
    assert found["b"].reason is Reason.QUEUE_FULL
    assert found["c"].why == "behind b"
    assert found["d"].size == 1


def test_a_job_larger_than_the_limit_of_its_queue_says_so() -> None:
    found = given(Pool(8, queues=(QueueRule("small", limit=3),)), Demand("a", 4, 8, queue="small"))["a"]
    assert (found.reason, found.why) == (Reason.QUEUE_TOO_SMALL, "needs 4 workers, queue small may have 3")


def test_a_lowered_limit_shrinks_the_queue() -> None:
    pool = Pool(8, queues=(QueueRule("small", limit=3),))
    assert sizes(pool, Demand("a", 1, 8, queue="small", held=6, granted=6)) == {"a": 3}


def test_a_limit_below_the_minimum_of_a_running_job_does_not_stop_it() -> None:
    pool = Pool(8, queues=(QueueRule("small", limit=1),))
    assert sizes(pool, Demand("a", 2, 4, queue="small", held=2, granted=2)) == {"a": 2}


def test_gain_moves_no_slots_beyond_the_limit_of_a_queue() -> None:
    pool = Pool(9, queues=(QueueRule("small", limit=8),))
    long = Demand("long", 1, 8, queue="small", speeds=LINEAR, left=1e5, held=7, granted=7)
    short = Demand("short", 1, 8, queue="small", sizes=(1, 8), speeds=LINEAR, left=1000.0, held=1, granted=1)
    assert sizes(pool, long, short) == {"long": 7, "short": 1}


@pytest.mark.parametrize("slots", [0, 1])
def test_an_empty_pool_and_no_jobs_are_fine(slots: int) -> None:
    assert allocate(Pool(slots), ()) == ()
    assert given(Pool(0), Demand("a", 1, 1))["a"].why == "needs 1 worker, the pool has 0 slots"
    assert given(Pool(0), Demand("a", 1, 2, held=1, granted=1))["a"].size == 1
    assert given(Pool(1), Demand("a", 1, 2, held=1, granted=1))["a"].why == "1 of 2: the pool has 1 slot"


def test_a_pool_that_lost_one_slot_too_many_gives_up_the_last_job_that_lost_workers() -> None:
    first, last = Demand("a", 2, 4, held=2, granted=2), Demand("b", 2, 4, since=1.0, held=1, granted=2)
    found = given(Pool(3), first, last)
    assert (found["a"].size, found["b"].size) == (2, 0)
    assert found["b"].why == "needs 2 workers, running jobs need 2 of 3 slots as their minimums"


def test_a_job_that_has_just_changed_takes_no_more_when_a_smaller_pool_cuts_its_grant() -> None:
    high = Demand("high", 3, 10, priority=5, held=4, granted=6, planned=6, unchanged_s=17.0, pause_s=5.0)
    low = Demand("low", 2, 11, since=1.0, held=10, granted=10, planned=10)
    first = given(Pool(14), high, low)
    assert (first["high"].size, first["high"].planned) == (4, 6)
    second = given(
        Pool(14),
        replace(high, granted=4, planned=6, unchanged_s=0.0),
        replace(low, granted=first["low"].size, planned=first["low"].planned, unchanged_s=0.0),
    )
    assert {name: each.size for name, each in second.items()} == {name: each.size for name, each in first.items()}
    assert second["high"].planned == 6


def test_a_job_that_starts_gets_its_minimum_before_a_job_that_wants_more_grows() -> None:
    near_end = Demand("near", 1, 6, held=3, granted=3, planned=5)
    giving = Demand("giving", 1, 6, since=1.0, held=4, granted=2, planned=2)
    starting = Demand("starting", 2, 2, since=2.0, planned=2)
    found = given(Pool(9), near_end, giving, starting)
    assert found["near"].planned > 3
    assert {name: each.size for name, each in found.items()} == {"near": 3, "giving": 2, "starting": 2}


def test_a_job_that_no_machine_can_run_waits_and_takes_nothing_from_others() -> None:
    typo = Demand("typo", 2, 2, priority=9, granted=2, planned=2, refused="there is no script slwo.py")
    found = given(Pool(3), typo, Demand("night", 1, 8, held=1, granted=1, planned=1))
    assert (found["typo"].size, found["typo"].reason, found["typo"].position) == (0, Reason.REFUSED, 1)
    assert found["typo"].why == "no machine can run it: there is no script slwo.py"
    assert found["night"].size == 3


def test_the_minimum_of_a_job_with_less_priority_is_no_share() -> None:
    urgent = Demand("urgent", 2, 4, priority=5, held=2, granted=2, planned=2)
    found = given(Pool(3), urgent, Demand("night", 1, 8, held=1, granted=1, planned=1))
    assert (found["urgent"].size, found["urgent"].reason) == (2, Reason.MINIMUMS)
    assert found["urgent"].why == "2 of 4: the minimums of other running jobs take 1 of 3 slots"
