"""A job with autoscaling: advice is recorded, and followed if its owner wants that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.job.validation import bad_spec
from pliant.core.messages.describe import describe
from pliant.core.model.job import Autoscale, Job, JobSpec, JobState, Mode, Target
from unit.core.build import X, after, made, running, with_spec

ADVICE = m.Advise(1, "it does not scale")


def scaled(how: Autoscale) -> Job:
    job = with_spec(running(2), autoscale=how, size_min=1, size_max=4)
    return replace(job, target=Target(2))


def test_advice_is_only_recorded_and_once() -> None:
    job = scaled(Autoscale.ADVISE)
    (advised,) = made(job, ADVICE)
    assert describe(advised) == "1 worker advised, not applied: it does not scale"
    job = after(job, ADVICE)
    assert (job.target, job.advised, job.advised_why) == (Target(2), 1, "it does not scale")
    assert made(job, ADVICE) == ()
    job = after(job, m.Resize(Target(3)))
    assert (job.advised, job.advised_why) == (0, "")


def test_advice_changes_the_target_if_it_is_on() -> None:
    job = scaled(Autoscale.ON)
    advised, changed = made(job, m.Advise(3, "it scales"))
    assert describe(advised) == "3 workers advised: it scales"
    assert describe(changed) == "target changed to 3 (autoscale)"
    assert after(job, m.Advise(3, "it scales")).target == Target(3)


@pytest.mark.parametrize(
    ("job", "size"),
    [
        (scaled(Autoscale.OFF), 1),
        (scaled(Autoscale.ON), 2),
        (scaled(Autoscale.ON), 5),
        (replace(scaled(Autoscale.ON), target=Target(2, ((X, 2),))), 1),
        (replace(scaled(Autoscale.ON), state=JobState.FINISHED), 1),
    ],
)
def test_advice_that_does_not_fit_has_no_effect(job: Job, size: int) -> None:
    assert made(job, m.Advise(size, "x")) == ()


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        (JobSpec(1, 2, autoscale=Autoscale.ON), ""),
        (
            JobSpec(1, 2, autoscale=Autoscale.ADVISE, mode=Mode.RELAUNCH),
            "autoscaling counts the samples of a live job, and mode relaunch has none: remove --autoscale",
        ),
        (
            JobSpec(1, 2, autoscale=Autoscale.ON, schedule=((5, 2),)),
            "a schedule and autoscaling both choose the number of workers: pass --schedule or --autoscale",
        ),
        (JobSpec(1, 2, Target(2, ((X, 2),)), autoscale=Autoscale.ON), "a job with a placement cannot be autoscaled"),
    ],
)
def test_only_live_jobs_without_another_plan_are_autoscaled(spec: JobSpec, wrong: str) -> None:
    assert bad_spec(spec) == wrong
