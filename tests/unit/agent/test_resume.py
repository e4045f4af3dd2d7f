"""The lines of `pliant run` about a job that was started before."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pliant.agent.job_dir import JobDir
from pliant.agent.last_command import CommandLine, write_last_command
from pliant.agent.plan import RunPlan
from pliant.agent.process.script import Script
from pliant.agent.resume import check_script, describe_resume, format_age
from pliant.agent.setup import OpenedJob
from pliant.coordinator.api.job_status import job_status
from pliant.core import messages as m
from pliant.core.model.job import Job, JobSpec, JobState
from pliant.errors import BadInput
from unit.core.build import A, B, after, checkpoint, new_job, running

HERE = CommandLine("/a/train.py", ("--lr", "0.5"), {"--grace-s": "5", "--workers": "1:2"})
PLAN = RunPlan("demo", JobSpec(1, 6), Script("file", "train.py"), capacity=2, command=HERE, name_is_derived=True)


@pytest.fixture
def folder(tmp_path: Path) -> JobDir:
    found = JobDir(tmp_path / "jobs" / "demo")
    found.make()
    return found


def opened(job: Job, /, **before: Any) -> OpenedJob:
    status = job_status(job, 1, 0.0)
    return OpenedJob(replace(status, **before), status)


def left(steps: int, saved: int | None) -> Job:
    job = after(running(2, steps=steps), m.Expire(A), m.Expire(B))
    kept = checkpoint(running(2, steps=saved).durable) if saved is not None else None
    return replace(job, checkpoint=kept)


def test_a_new_job_has_nothing_to_report(folder: JobDir) -> None:
    assert describe_resume(OpenedJob(None, job_status(new_job(), 1, 0.0)), PLAN, folder, "") == []


def test_a_resume_names_the_step_the_age_and_what_differs(folder: JobDir) -> None:
    write_last_command(folder.command, CommandLine("/a/train.py", ("--lr", "0.001"), {"--workers": "1:4"}))
    job = left(8, 5)
    assert job.checkpoint is not None
    place = folder.checkpoints / job.checkpoint.name
    place.mkdir()
    os.utime(place, (place.stat().st_mtime - 300, place.stat().st_mtime - 300))
    assert describe_resume(opened(job), PLAN, folder, str(folder.checkpoints)) == [
        "different from the last start: --grace-s none -> 5, --lr 0.001 -> 0.5",
        "demo continues after step 5 of 12 (checkpoint, saved 5 minutes ago); 3 steps are recomputed",
    ]


def test_a_resume_without_a_checkpoint_begins_again(folder: JobDir) -> None:
    assert describe_resume(opened(left(8, None)), PLAN, folder, "") == [
        "demo starts again at step 0: it has no checkpoint"
    ]
    elsewhere = describe_resume(opened(left(5, 5)), PLAN, folder, "s3://bucket/demo")
    assert elsewhere == ["demo continues after step 5 of 12 (checkpoint)"]


def test_a_job_that_trains_elsewhere_is_joined(folder: JobDir) -> None:
    assert describe_resume(opened(running(2, steps=3)), PLAN, folder, "") == [
        "demo is at step 3 of 12, and 2 members train"
    ]


def test_a_job_that_starts_from_the_beginning_keeps_its_checkpoints(folder: JobDir) -> None:
    before = left(5, 5).checkpoint
    assert describe_resume(opened(new_job(), checkpoint=before), PLAN, folder, "/data") == [
        "demo starts from the beginning. Earlier checkpoints stay in /data"
    ]
    line = replace(job_status(new_job(), 1, 0.0).job, state=JobState.FINISHED, step=12)
    assert describe_resume(opened(new_job(), job=line), PLAN, folder, "/data") == [
        "demo had finished at step 12 and has no checkpoint: it starts from the beginning"
    ]
    launched = opened(new_job(), job=line, live=False)
    assert describe_resume(launched, PLAN, folder, "/data") == [], "its script saves by itself"
    assert describe_resume(opened(new_job(), checkpoint=before, job=line), PLAN, folder, "/data") == [
        "demo had finished at step 12; it starts from the beginning. Earlier checkpoints stay in /data"
    ]


@pytest.mark.parametrize(
    ("saved", "line"),
    [
        (12, "it continues after step 12 (checkpoint) if its script asks for more steps"),
        (8, "it continues after step 8 (checkpoint); 4 steps are recomputed"),
    ],
)
def test_a_job_that_had_finished_continues_from_its_checkpoint(folder: JobDir, saved: int, line: str) -> None:
    before = replace(running(2, steps=12), checkpoint=checkpoint(running(2, steps=saved).durable))
    again = after(before, m.Create("demo", JobSpec(1, 6)))
    found = OpenedJob(job_status(before, 1, 0.0), job_status(again, 2, 0.0))
    assert describe_resume(found, PLAN, folder, "/data") == [f"demo had finished at step 12; {line}"]


def test_two_scripts_of_one_name_do_not_share_a_job(folder: JobDir) -> None:
    check_script(PLAN, folder)
    write_last_command(folder.command, replace(HERE, script="/b/train.py"))
    with pytest.raises(BadInput) as caught:
        check_script(PLAN, folder)
    assert str(caught.value) == (
        "The job demo belongs to another script of that name: /b/train.py, not /a/train.py. Choose a name for this "
        "script's job with --job NAME, or pass --job demo to continue the job with it."
    )
    check_script(replace(PLAN, name_is_derived=False), folder)
    write_last_command(folder.command, HERE)
    check_script(PLAN, folder)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-1.0, "0 s"), (90.0, "90 s"), (300.0, "5 minutes"), (7200.0, "2 hours"), (172800.0, "2 days")],
)
def test_ages_are_short(seconds: float, shown: str) -> None:
    assert format_age(seconds) == shown
