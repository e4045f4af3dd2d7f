"""The deadline in the settings of a job, and in its demand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.core import messages as m
from pliant.core.allocate.demands import REPORT_S, deadline_of
from pliant.core.allocate.model import Deadline
from pliant.core.autoscale.advise import MEASURED_S
from pliant.core.autoscale.pace import JobPace, SizePace
from pliant.core.job.validation import DEADLINE_MAX, bad_spec
from pliant.core.messages.describe import describe_settings, utc_time
from pliant.core.model.job import JobSpec, Mode
from unit.core.build import made, new_job, running, with_spec

SIX = datetime(2026, 11, 20, 18, tzinfo=UTC).timestamp()


def test_the_deadline_of_a_job_can_be_changed_while_it_runs() -> None:
    job = with_spec(running(2), queue="default", deadline=SIX)
    spec = replace(job.spec, deadline=SIX + 90 * 60)
    (changed,) = made(job, m.Create("demo", spec, only_settings=True))
    assert isinstance(changed, m.SettingsChanged)
    assert changed.what == "--deadline 2026-11-20T18:00:00Z -> 2026-11-20T19:30:00Z"
    assert describe_settings(spec, replace(spec, deadline=None)) == "--deadline 2026-11-20T19:30:00Z -> none"


@given(st.floats(1, DEADLINE_MAX))
def test_a_time_is_described_as_the_calendar_has_it(at: float) -> None:
    assert utc_time(at) == datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (JobSpec(1, 4, queue="a", deadline=SIX), ""),
        (JobSpec(1, 4, deadline=SIX), "a deadline decides between jobs of a pool: pass --queue NAME with --deadline"),
        (
            JobSpec(1, 4, queue="a", deadline=0.0),
            "the deadline must be a time from 1970 to 9999, in seconds since 1970; got 0.0",
        ),
        (
            JobSpec(1, 4, queue="a", deadline=1e12),
            "the deadline must be a time from 1970 to 9999, in seconds since 1970; got 1000000000000.0",
        ),
        (
            JobSpec(1, 4, queue="a", deadline=SIX, mode=Mode.TASKS),
            "a deadline needs the speed of a live job, and mode tasks has none: remove --deadline",
        ),
    ],
)
def test_a_deadline_is_checked(spec: JobSpec, wrong: str) -> None:
    assert bad_spec(spec) == wrong


def test_the_demand_has_the_speeds_of_the_sizes_that_were_measured_long_enough() -> None:
    job = with_spec(running(2), queue="default", spares=1)
    pace = JobPace({1: SizePace(100.0, MEASURED_S - 1), 2: SizePace(60.0, MEASURED_S)}, now=SIX - 500.0)
    assert deadline_of(job, SIX, pace, was_missed=False) is None
    job = with_spec(job, deadline=SIX)
    found = deadline_of(job, SIX - 498.0, pace, was_missed=True)
    assert found == Deadline(500.0, 120.0, ((2, 3.0),), pace.pause_s, 1, True)  # counted from the last report


def test_the_time_to_a_deadline_goes_on_without_reports() -> None:
    job = with_spec(running(2), queue="default", deadline=SIX)
    pace = JobPace({2: SizePace(60.0, MEASURED_S)}, now=SIX - 500.0)
    for wall, in_s in ((SIX - 100.0, 100.0 + REPORT_S), (SIX - 500.5, 500.5), (SIX, 0.0), (SIX + 5, -5.0)):
        found = deadline_of(job, wall, pace, was_missed=False)
        assert found is not None
        assert found.in_s == in_s


def test_without_a_measured_speed_or_a_known_end_the_demand_has_the_time_only() -> None:
    job = with_spec(running(2), queue="default", deadline=SIX)
    short = JobPace({2: SizePace(6.0, 2.0)}, now=SIX - 500.0)
    steady = JobPace({2: SizePace(60.0, MEASURED_S)}, now=SIX - 500.0)
    early = with_spec(new_job(), queue="default", deadline=SIX)
    for known, pace in ((job, None), (job, short), (early, steady)):
        assert deadline_of(known, SIX - 90.0, pace, was_missed=False) == Deadline(90.0)
