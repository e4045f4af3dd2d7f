"""A job's creation, and each further attempt at it."""

from __future__ import annotations

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.job.validation import bad_create
from pliant.core.messages import Code, Event, Rejection
from pliant.core.model.job import Job, JobState, Mode


def create(job: Job | None, command: m.Create, now: float) -> tuple[Event, ...] | Rejection:
    """Call with the job of that name, if there is one. One that has ended is attempted again."""
    if (bad := bad_create(command)) is not None:
        return bad
    if job is None:
        return (_created(command, now, 1, onward=False),)
    if job.state.ended:
        anew = command.fresh or job.state is JobState.FINISHED or command.spec.mode is Mode.RELAUNCH
        return (_created(command, now, job.attempt + 1, onward=not anew),)
    if command.fresh and (job.generation > job.generation_before or not _is_same(job, command)):
        if job.members or job.agents:
            return Rejection(Code.EXISTS, f"job {job.name} is running; cancel it before it is started afresh")
        return (_created(command, now, job.attempt + 1, onward=False),)
    if _is_same(job, command):
        return ()  # asked for again, perhaps by a client whose answer was lost
    return Rejection(Code.EXISTS, f"job {job.name} exists with other settings; choose another name, or start it afresh")


def _created(command: m.Create, now: float, attempt: int, *, onward: bool) -> m.JobCreated:
    return m.JobCreated(at=now, name=command.name, spec=command.spec, attempt=attempt, resumes=onward)


def _is_same(job: Job, command: m.Create) -> bool:
    """Compare the settings without the target, which may change while a job runs."""
    return replace(job.spec, target=None) == replace(command.spec, target=None)
