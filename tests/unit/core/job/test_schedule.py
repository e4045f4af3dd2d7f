"""A job with a schedule: its target changes when a step becomes durable, and says why."""

from dataclasses import replace

import pytest

from pliant.core import messages as m
from pliant.core.data.ledger import Lineage
from pliant.core.job.validation import bad_spec
from pliant.core.messages import Code, Rejection
from pliant.core.messages.describe import describe, describe_settings
from pliant.core.model.job import Job, JobSpec, JobState, Mode, Target
from pliant.core.model.world import WorldKind
from unit.core.build import (
    A,
    B,
    C,
    after,
    checkpoint,
    evolved,
    formed,
    gathered,
    join,
    lines,
    made,
    new_job,
    pump,
    refused,
    report,
    running,
    stopped,
)

SPEC = JobSpec(1, 6, schedule=((0, 2), (3, 4), (6, 1)))


def scheduled(steps: int = 0) -> Job:
    job = after(new_job(1, 6, 2), m.Create("demo", SPEC))
    return running(2, job, steps)


def targets(events: tuple[m.Event, ...]) -> list[tuple[int, str]]:
    return [(event.target.size, event.why) for event in events if isinstance(event, m.TargetChanged)]


def test_a_job_starts_with_the_entry_of_step_0() -> None:
    created = evolved(None, m.JobCreated(0.0, "demo", SPEC))
    assert created.target == Target(2)
    assert describe(m.JobCreated(0.0, "demo", SPEC)) == "job demo created: 1 to 6 workers, schedule 0:2,3:4,6:1"


def test_before_its_first_entry_a_job_has_the_target_of_its_settings() -> None:
    later = replace(SPEC, schedule=((3, 4),))
    assert later.initial_target == Target(6)
    assert replace(later, target=Target(5)).initial_target == Target(5)
    assert replace(later, target=Target(5)).target_at(3) == Target(4)


def test_the_target_changes_when_the_step_of_an_entry_is_durable() -> None:
    job = scheduled(2)
    assert job.target == Target(2)
    job, events = pump(job, report(job, A, 1, 1))
    assert targets(events) == [(4, "scheduled from step 3")]
    assert describe(m.TargetChanged(5.0, Target(4), "scheduled from step 3")) == (
        "target changed to 4 (scheduled from step 3)"
    )
    assert job.target == Target(4)
    assert targets(made(job, report(job, A, 1, 1))) == []


def test_a_report_that_passes_several_entries_takes_the_last_one() -> None:
    job = scheduled(1)
    assert targets(made(job, report(job, A, 1, 8))) == [(1, "scheduled from step 6")]


def test_an_entry_of_the_present_size_changes_nothing() -> None:
    job = after(scheduled(2), m.Resize(Target(4)))
    assert targets(made(job, report(job, A, 1, 1))) == []


def test_the_new_target_forms_a_world_in_the_same_batch() -> None:
    job = after(scheduled(5), join(C))
    newest = job.newest
    assert newest is not None
    assert newest.members == (A, B, C)
    job = after(job, report(job, A, newest.number, 1, holders=newest.members))
    assert job.target == Target(1)
    newest = job.newest
    assert newest is not None
    assert newest.members == (A,)


def test_a_resize_by_a_person_stays_until_the_next_entry() -> None:
    job = after(scheduled(3), m.Resize(Target(3)))
    job = after(job, report(job, A, 1, 2))
    assert job.target == Target(3)
    job = after(job, report(job, A, 1, 1))
    assert job.target == Target(1)


def test_an_entry_does_not_take_effect_again_after_a_rollback() -> None:
    job = after(scheduled(4), m.Resize(Target(3)), stopped(A, 1, stateless=True))
    newest = job.newest
    assert newest is not None
    assert (newest.kind, newest.base.step) == (WorldKind.ROLLBACK, 0)
    job, events = pump(job, report(job, A, newest.number, 3, holders=newest.members))
    assert job.durable.step == 3
    assert targets(events) == []
    assert job.target == Target(3)


def test_another_attempt_continues_with_the_entry_it_had_reached() -> None:
    job = replace(scheduled(4), state=JobState.FAILED)
    again = m.Create("demo", SPEC)
    assert evolved(job, *made(job, again)).target == Target(4)
    assert evolved(job, *made(job, replace(again, fresh=True))).target == Target(2)


def test_a_checkpoint_that_commits_the_last_steps_passes_an_entry_as_well() -> None:
    job = after(scheduled(2), m.Drain(A, 30.0, "spot notice"), stopped(A, 1))
    newest = job.newest
    assert newest is not None
    assert newest.kind is WorldKind.RECOVERY
    fresh = lines(job.durable, 1, 1)
    saved = checkpoint(fresh[-1].lineage)
    job, events = pump(job, m.Publish(A, newest.number, saved, lines=fresh))
    assert targets(events) == [(4, "scheduled from step 3")]
    assert job.target == Target(4)


def test_another_schedule_changes_the_target_unless_a_person_chose_it() -> None:
    other = replace(SPEC, schedule=((0, 2), (3, 5)))
    job = after(scheduled(4), m.Create("demo", other))
    assert job.target == Target(5)
    job = after(scheduled(4), m.Resize(Target(3)), m.Create("demo", other))
    assert job.target == Target(3)
    assert describe_settings(SPEC, other) == "--schedule 0:2,3:4,6:1 -> 0:2,3:5"
    assert describe_settings(SPEC, replace(SPEC, schedule=())) == "--schedule 0:2,3:4,6:1 -> none"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (
            replace(SPEC, schedule=((0, 7),)),
            "the schedule asks for 7 workers from step 0 on, outside 1 to 6: change 0:7, or --workers",
        ),
        (
            replace(SPEC, target=Target(3)),
            "the schedule begins with 2 workers at step 0, and the target is 3: pass one of them",
        ),
        (
            replace(SPEC, mode=Mode.RELAUNCH),
            "a schedule counts the steps of a live job, and mode relaunch has none: remove --schedule",
        ),
        (
            replace(SPEC, mode=Mode.TASKS),
            "a schedule counts the steps of a live job, and mode tasks has none: remove --schedule",
        ),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_with_the_reason(spec: JobSpec, why: str) -> None:
    assert refused(None, m.Create("demo", spec)) == Rejection(Code.BAD, why)


def test_a_schedule_may_begin_later_than_the_target() -> None:
    assert bad_spec(replace(SPEC, target=Target(3), schedule=((1, 4),))) == ""
    assert bad_spec(replace(SPEC, target=Target(9), schedule=((1, 4),))) == (
        "the target must lie between min 1 and max 6; got 9"
    )
    assert bad_spec(replace(SPEC, mode=Mode.AUTO)) == ""


def test_a_schedule_of_a_stored_job_is_read_back() -> None:
    job = gathered(2, after(new_job(1, 6, 2), m.Create("demo", SPEC)))
    assert formed(job, 1).base == Lineage(0, 0, 0)
    assert job.spec.schedule == ((0, 2), (3, 4), (6, 1))
