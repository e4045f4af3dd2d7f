"""Measurements of jobs as `allocate` uses them: steady ones, and none under a new leader."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core.allocate import Demand, Pool, Reason, allocate
from pliant.core.allocate.demands import demand_of
from pliant.core.allocate.measured import NOTHING, PAUSE_STEP, SPEED_STEP, Measured, measure, with_measurements
from pliant.core.allocate.model import Allotment
from pliant.core.autoscale.advise import MEASURED_S
from pliant.core.autoscale.pace import JobPace, SizePace
from unit.core.build import running, with_spec


def pace(*speeds: tuple[int, float], seconds: float = MEASURED_S, pauses: tuple[float, ...] = ()) -> JobPace:
    return JobPace({size: SizePace(speed * seconds, seconds) for size, speed in speeds}, _pauses=list(pauses))


def grants(pool: int, *demands: Demand) -> dict[str, Allotment]:
    return {each.name: each for each in allocate(Pool(pool), demands)}


def test_a_size_counts_once_it_was_measured_long_enough() -> None:
    assert measure(NOTHING, pace((2, 8.0), seconds=MEASURED_S - 1)) == NOTHING
    assert measure(NOTHING, pace((4, 12.0), (2, 8.0))) == Measured(((2, 8.0), (4, 12.0)))


@pytest.mark.parametrize("factor", [SPEED_STEP, 1 / SPEED_STEP])
def test_a_speed_in_use_is_replaced_only_by_one_that_differs_clearly(factor: float) -> None:
    before = measure(NOTHING, pace((2, 8.0), (4, 12.0)))
    assert measure(before, pace((2, 8.0 * factor**0.9))) == before
    assert measure(before, pace((2, 8.0 * factor**1.1))) == Measured(((2, 8.0 * factor**1.1), (4, 12.0)))


def test_the_time_of_a_change_is_replaced_only_by_one_that_differs_clearly() -> None:
    before = measure(NOTHING, pace(pauses=(0.5,)))
    assert before.pause_s == 0.5
    assert measure(before, pace()) == before
    assert measure(before, pace(pauses=(0.4 * PAUSE_STEP,))) == before
    assert measure(before, pace(pauses=(0.6 * PAUSE_STEP,))).pause_s == 0.6 * PAUSE_STEP


def test_a_demand_has_what_was_measured_by_sizes_with_spares() -> None:
    job = replace(with_spec(running(2), queue="default", size_max=4, spares=1), granted=3)
    demand = with_measurements(demand_of(job, 3, 0.0), job, Measured(((2, 8.0),), 0.5), is_inherited=True)
    assert (demand.speeds, demand.pause_s, demand.left) == (((3, 8.0),), 0.5, 120.0)
    assert not demand.is_measured_anew


def test_a_job_of_a_leader_before_is_measured_anew_if_that_is_possible() -> None:
    job = replace(with_spec(running(2), queue="default"), granted=2)
    assert with_measurements(demand_of(job, None, 0.0), job, NOTHING, is_inherited=True).is_measured_anew
    assert not with_measurements(demand_of(job, None, 0.0), job, NOTHING, is_inherited=False).is_measured_anew
    script = replace(job, terms=None)  # it reports no steps
    assert not with_measurements(demand_of(script, None, 0.0), script, NOTHING, is_inherited=True).is_measured_anew


def test_slots_go_to_the_job_that_gains_more_from_them() -> None:
    flat = Demand("flat", 1, 8, held=4, granted=4, speeds=((1, 5.0), (4, 6.0)), left=1e4)
    steep = Demand("steep", 1, 8, since=1.0, held=4, granted=4, speeds=((1, 5.0), (4, 20.0)), left=1e4)
    found = grants(8, flat, steep)
    assert (found["flat"].planned, found["steep"].planned) == (1, 7)
    assert found["flat"].why == "1 of 8: steep beside it has 7 of 8 slots, by speeds and remaining times"


def test_a_job_near_its_end_gets_more_than_its_equal() -> None:
    speeds = ((1, 10.0), (4, 30.0))
    long = Demand("long", 1, 8, held=4, granted=4, speeds=speeds, left=1e6)
    short = Demand("short", 1, 8, since=1.0, held=4, granted=4, speeds=speeds, left=3e3)
    assert grants(8, long, short)["short"].planned == 7


def test_noise_in_the_speeds_moves_no_worker() -> None:
    equal = pace((2, 10.0), (4, 17.0))
    noisy = pace((2, 11.0), (4, 15.5))
    before = Demand("a", 1, 8, held=4, granted=4, planned=4), Demand("b", 1, 8, held=4, granted=4, planned=4)
    kept = measure(NOTHING, equal)
    for now in (measure(kept, noisy), kept):
        found = grants(8, *(replace(each, speeds=now.speeds, left=1e4) for each in before))
        assert {each.size for each in found.values()} == {4}
    found = grants(
        8, replace(before[0], speeds=noisy.speeds, left=1e4), replace(before[1], speeds=kept.speeds, left=1e4)
    )
    assert found["b"].planned > 4  # without the steady speeds


def test_a_job_that_is_measured_anew_keeps_its_size() -> None:
    anew = Demand("anew", 1, 8, held=2, granted=2, is_measured_anew=True)
    found = grants(8, anew)["anew"]
    assert (found.size, found.reason) == (2, Reason.HELD)
    assert found.why == "2 of 8: keeps its size until the new leader has measured its speed"
    wide = Demand("wide", 1, 8, since=1.0, held=6, granted=6, speeds=((1, 5.0), (6, 5.5)), left=1e4)
    assert grants(8, anew, wide)["wide"].planned == 6
    urgent = Demand("urgent", 7, 7, priority=5)
    assert grants(8, anew, urgent)["anew"].size == 1


def test_a_job_that_has_just_changed_says_so() -> None:
    found = grants(8, Demand("new", 1, 8, held=2, granted=2, planned=2, unchanged_s=1.0))["new"]
    assert (found.size, found.reason) == (2, Reason.HELD)
    assert found.why == "2 of 8: keeps its size for a moment, because it has just changed"


def test_sizes_beyond_those_that_were_measured_grow_by_the_power_that_was_measured() -> None:
    flat = Demand("flat", 1, 16, held=4, granted=4, speeds=((1, 5.0), (2, 5.0), (4, 5.0)), left=1e4)
    steep = Demand("steep", 1, 16, since=1.0, held=4, granted=4, speeds=((1, 5.0), (2, 10.0), (4, 20.0)), left=1e4)
    found = grants(16, flat, steep)
    assert (found["flat"].planned, found["steep"].planned) == (1, 15)
