"""A job's creation, and each further attempt at it."""

from __future__ import annotations

from pliant.core import messages as m
from pliant.core.job.validation import bad_creation
from pliant.core.messages import Code, Event, Rejection
from pliant.core.model.job import Job, JobState, Mode


def create(job: Job | None, command: m.Create, now: float) -> tuple[Event, ...] | Rejection:
    """Call with the job of that name, if there is one. One that has ended is attempted again."""
    if (bad := bad_creation(command)) is not None:
        return bad
    if job is None:
        return (_created(command, now, 1, onward=False),)
    if job.state.ended:
        anew = command.fresh or job.state is JobState.FINISHED or command.mode is Mode.RELAUNCH
        return (_created(command, now, job.attempt + 1, onward=not anew),)
    if command.fresh and (job.generation > job.generation_before or not _is_same(job, command)):
        if job.members or job.agents:
            return Rejection(Code.EXISTS, f"job {job.name} is running; cancel it before it is started afresh")
        return (_created(command, now, job.attempt + 1, onward=False),)
    if _is_same(job, command):
        return ()  # asked for again, perhaps by a client whose answer was lost
    return Rejection(Code.EXISTS, f"job {job.name} exists with other settings; choose another name, or start it afresh")


def _created(command: m.Create, now: float, attempt: int, *, onward: bool) -> m.JobCreated:
    return m.JobCreated(
        at=now,
        name=command.name,
        size_min=command.size_min,
        size_max=command.size_max,
        target=command.target,
        wait_limit_s=command.wait_limit_s,
        max_restarts=command.max_restarts,
        mode=command.mode,
        spares=command.spares,
        roles=command.roles,
        saves=command.saves,
        chaos=command.chaos,
        attempt=attempt,
        onward=onward,
    )


def _is_same(job: Job, command: m.Create) -> bool:
    """The target may be another one: it changes while a job runs."""
    sizes = (job.size_min, job.size_max, job.spares, job.roles)
    others = (job.saves, job.wait_limit_s, job.max_restarts, job.mode, job.chaos)
    return sizes == (command.size_min, command.size_max, command.spares, command.roles) and others == (
        command.saves,
        command.wait_limit_s,
        command.max_restarts,
        command.mode,
        command.chaos,
    )
