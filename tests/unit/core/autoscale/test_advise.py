"""Advice about the size of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.autoscale import Advice, JobPace, ScalingFacts, advise, facts_of
from pliant.core.autoscale.advise import MEASURED_S, STAY_S
from pliant.core.autoscale.pace import SizePace
from pliant.core.autoscale.replay import ScalingReplay
from pliant.core.model.job import Target
from unit.core.build import A, X, lines, new_job, running

LONG = 1e9  # samples until the end


def pace(size: int, now: float = 1000.0, **speeds: float) -> JobPace:
    """Measurements: `n4=10.0` are 10 samples a second with 4 workers."""
    sizes = {int(name[1:]): SizePace(speed * 100.0, 100.0) for name, speed in speeds.items()}
    return JobPace(sizes, size, 0.0, now, _pauses=[1.0])


def facts(target: int, low: int = 1, high: int = 8, left: float | None = LONG) -> ScalingFacts:
    return ScalingFacts(low, high, target, left)


@pytest.mark.parametrize(
    ("given", "measured", "why"),
    [
        (facts(4), pace(3, n3=9.0), "3 of 4 workers train: waiting until all do"),
        (facts(4), pace(4), f"measuring 4 workers: 0 of {MEASURED_S:.0f} s"),
        (facts(4), pace(4, STAY_S / 2, n4=9.0), f"changed less than {STAY_S:.0f} s ago"),
        (
            facts(4),
            pace(4, n2=6.0, n4=9.0, n8=10.0),
            "4 workers at 9.0 samples a second: no other size is clearly worth more",
        ),
        (
            facts(4, left=9.0),
            pace(4, n2=2.0, n4=9.0, n8=30.0),
            "4 workers: a change to 8 would not pay off before the end",
        ),
        (facts(4, left=90.0), pace(4, n4=9.0), "4 workers: a change to 8 would not pay off before the end"),
    ],
)
def test_a_job_keeps_its_size_for_a_reason(given: ScalingFacts, measured: JobPace, why: str) -> None:
    assert advise(given, measured).size == given.target
    assert advise(given, measured).why == why


def test_a_single_size_is_compared_with_half_of_it_or_twice() -> None:
    assert advise(facts(8), pace(8, n8=10.0)) == Advice(4, "8 workers at 10.0 samples a second; trying 4 to compare")
    assert advise(facts(2, low=2), pace(2, n2=10.0)).size == 4
    assert advise(facts(2, low=2, high=3), pace(2, n2=10.0)).size == 3
    assert advise(facts(2, low=2, high=2), pace(2, n2=10.0)).size == 2
    assert advise(facts(8, left=None), pace(8, n8=10.0)).size == 4
    assert advise(facts(8, left=100.0), pace(8, n8=10.0)).size == 8  # it ends soon


def test_a_job_that_scales_grows_and_one_that_does_not_shrinks() -> None:
    grows = advise(facts(4), pace(4, n4=10.0, n8=20.0))
    assert grows == Advice(8, "4 workers at 10.0 samples a second; 20.0 measured with 8, a change takes 1.0 s")
    assert advise(facts(8), pace(8, n4=10.0, n8=11.0)).size == 4
    expected = advise(facts(2), pace(2, n1=10.0, n2=20.0))
    assert (expected.size, "expected with 4" in expected.why) == (4, True)


def test_a_target_outside_the_sizes_is_corrected() -> None:
    assert advise(facts(9), pace(9)) == Advice(8, "the target 9 is outside 1 to 8")
    assert advise(facts(1, low=2), pace(1)).size == 2


def test_facts_need_terms_and_no_placement() -> None:
    job = running(2)
    assert facts_of(new_job()) is None
    assert facts_of(replace(job, target=Target(2, ((X, 2),)))) is None
    assert facts_of(job) == ScalingFacts(job.spec.size_min, job.spec.size_max, job.target.size, 120.0)
    wide = replace(job, spec=replace(job.spec, size_max=100))
    found = facts_of(wide)
    assert found is not None
    assert found.size_max == 6  # its slots


def test_a_replay_lists_each_change_of_the_advice_once() -> None:
    replay = ScalingReplay()
    job = running(2)
    replay._job = replace(job, target=Target(2), spec=replace(job.spec, size_min=1, size_max=2))
    replay.pace = JobPace(size=2, _worlds={1: 2})
    head = job.durable
    for number in range(1, 6):
        (line,) = lines(head, 1, 1)
        replay.add(m.StepsCommitted(100.0 * number, 1, A, (line,)))
        head = line.lineage
    assert [(at, size, each.size) for at, size, each in replay.advice] == [(200.0, 2, 1)]
    assert replay.last is not None
    replay.add(m.Granted(900.0, 2, "x"))
    assert len(replay.advice) == 1
