"""A job that its user code finishes before the last step."""

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.job.decide import FINISHED_MAX, decide
from pliant.core.model.job import JobState
from unit.core.build import A, report, running

NOW = 5.0


def test_a_report_with_a_reason_finishes_the_job_with_its_last_step() -> None:
    job = running(2, steps=3)
    events = decide(job, replace(report(job, A, 1, 1), finished="good enough"), NOW)
    assert isinstance(events, tuple)
    assert events[-1] == m.StateChanged(NOW, JobState.FINISHED, "good enough, after step 4 of 12", last_step=4)


def test_a_long_reason_is_cut() -> None:
    job = running(2, steps=3)
    events = decide(job, replace(report(job, A, 1, 1), finished="x" * 5000), NOW)
    assert isinstance(events, tuple)
    assert isinstance(events[-1], m.StateChanged)
    assert events[-1].why == f"{'x' * FINISHED_MAX}, after step 4 of 12"
