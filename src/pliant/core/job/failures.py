"""Failures of workers: which of them count, and when a job has had too many."""

from __future__ import annotations

from pliant.core.model.job import Job, WorkerFailure

FAILURE_WINDOW_S = 3600.0  # an older failure counts no longer, if the job has made progress since


def counted_failures(job: Job, now: float) -> tuple[WorkerFailure, ...]:
    """Return the failures that count against max_restarts, oldest first.

    A failure at the job's furthest step counts however old it is: a script that always fails at one step must not be
    restarted for ever. The steps of launched workers are not known, so all their failures count.
    """
    return tuple(
        failure for failure in job.failures if now - failure.at < FAILURE_WINDOW_S or failure.step >= job.furthest_step
    )


def too_many_losses(job: Job) -> bool:
    """Return whether one more loss without progress is too many: every worker may be lost once for each restart.

    A machine that vanishes is no failure, but workers that are killed again and again before they commit a step are not
    restarted for ever.
    """
    return job.losses_without_progress >= (job.spec.max_restarts + 1) * job.spec.size_max
