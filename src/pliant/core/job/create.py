"""Creation of a job, and of each further attempt."""

from __future__ import annotations

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.job.validation import bad_create
from pliant.core.messages import Code, Event, Rejection
from pliant.core.model.job import Job, JobState, Mode


def create(job: Job | None, command: m.Create, now: float) -> tuple[Event, ...] | Rejection:
    """Decide about a `Create`. `job` is the existing job of that name; one that has ended gets another attempt."""
    if (bad := bad_create(command)) is not None:
        return bad
    if job is None:
        return (_created(command, now, 1, onward=False),)
    if job.state.ended:
        starts_over = command.fresh or job.state is JobState.FINISHED or command.spec.mode is Mode.RELAUNCH
        return (_created(command, now, job.attempt + 1, onward=not starts_over),)
    if command.fresh and (job.generation > job.generation_before or not _is_same(job, command)):
        if job.members or job.agents:
            return Rejection(Code.EXISTS, f"job {job.name} is running; cancel it first to start it from the beginning")
        return (_created(command, now, job.attempt + 1, onward=False),)
    if _is_same(job, command):
        return ()  # sent again, perhaps by a client that did not receive the answer
    return Rejection(
        Code.EXISTS, f"job {job.name} exists with other settings; choose another name, or start it from the beginning"
    )


def _created(command: m.Create, now: float, attempt: int, *, onward: bool) -> m.JobCreated:
    return m.JobCreated(at=now, name=command.name, spec=command.spec, attempt=attempt, resumes=onward)


def _is_same(job: Job, command: m.Create) -> bool:
    """Compare the settings without the target, which may change while a job runs."""
    return replace(job.spec, target=None) == replace(command.spec, target=None)
