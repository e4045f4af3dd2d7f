"""The end of a job's record: decide whether a job may be deleted."""

from __future__ import annotations

from pliant.core.messages.rejection import Code, Rejection
from pliant.core.model.job import Job

__all__ = ["refuse_deletion"]


def refuse_deletion(name: str, job: Job | None, ended_before: float | None = None) -> Rejection | None:
    """Return why a job must not be deleted; None if it may be.

    `ended_before` is a time: a job that ended later is kept.
    """
    if job is None:
        return Rejection(Code.NO_JOB, f"there is no job {name}; `pliant jobs` lists them")
    if not job.state.ended:
        return Rejection(
            Code.RUNNING,
            f"job {name} is {job.state.value}, and only ended jobs can be deleted: end it first, with "
            f"`pliant cancel {name}`",
        )
    if ended_before is not None and job.state_since >= ended_before:
        return Rejection(Code.RUNNING, f"job {name} ended too short a time ago")
    return None
