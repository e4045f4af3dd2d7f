"""Creation of a job, of each further attempt, and changes of its settings."""

from __future__ import annotations

from dataclasses import replace

from pliant.core import messages as m
from pliant.core.job.validation import bad_create
from pliant.core.messages import Code, Event, Rejection
from pliant.core.messages.describe import describe_mode, describe_roles, describe_settings
from pliant.core.model.job import Job, JobSpec, JobState, Mode, Target


def create(job: Job | None, command: m.Create, now: float) -> tuple[Event, ...] | Rejection:
    """Decide about a `Create`. `job` is the existing job of that name.

    A job that has ended gets another attempt, one that is stopping does not yet. Any other job gets the command's
    settings. A finished job goes on from its last checkpoint: its script may ask for more steps now. With
    `only_settings` there is neither a new job nor another attempt: the sender saw a job that went on.
    """
    if (bad := bad_create(command)) is not None:
        return bad
    if command.only_settings and (job is None or job.state.ended):
        return _nothing_to_change(job, command)
    if job is None:
        return (_created(command, now, 1, onward=False),)
    if job.state.ended:
        return (_created(command, now, job.attempt + 1, onward=_goes_on(job, command)),)
    if job.state is JobState.STOPPING:
        return Rejection(Code.EXISTS, f"job {job.name} is stopping: {job.why}; start it again once it has ended")
    if command.fresh and (job.generation > job.generation_before or not _is_same(job, command)):
        if job.members or job.agents:
            return Rejection(Code.EXISTS, f"job {job.name} is running; cancel it first to start it from the beginning")
        return (_created(command, now, job.attempt + 1, onward=False),)
    if _is_same(job, command):
        return ()  # sent again, perhaps by a client that did not receive the answer
    if wrong := _unchangeable(job, command.spec):
        return Rejection(Code.EXISTS, f"{wrong}; or choose another name with --job")
    what = describe_settings(job.spec, command.spec)
    return (m.SettingsChanged(now, command.spec, _target_after(job, command.spec), what),)


def _nothing_to_change(job: Job | None, command: m.Create) -> Rejection:
    if job is None:
        return Rejection(Code.NO_JOB, f"there is no job {command.name}")
    return Rejection(Code.ENDED, f"job {job.name} is {job.state.value}: it has no settings to change")


def _goes_on(job: Job, command: m.Create) -> bool:
    """Return whether another attempt continues the history. A finished job without a checkpoint starts over."""
    nothing_left = job.state is JobState.FINISHED and job.checkpoint is None
    return not (command.fresh or nothing_left or command.spec.mode is Mode.RELAUNCH)


def _created(command: m.Create, now: float, attempt: int, *, onward: bool) -> m.JobCreated:
    return m.JobCreated(at=now, name=command.name, spec=command.spec, attempt=attempt, resumes=onward)


def _is_same(job: Job, command: m.Create) -> bool:
    """Compare the settings without the target, which may change while a job runs."""
    return replace(job.spec, target=None) == replace(command.spec, target=None)


def _unchangeable(job: Job, spec: JobSpec) -> str:
    """Return which of the new settings this job cannot take, and the value that it can; empty if it takes all."""
    if not _can_switch_mode(job, spec.mode):
        return (
            f"job {job.name} runs {describe_mode(job.spec.mode)}, which cannot become {describe_mode(spec.mode)}: "
            f"pass {describe_mode(job.spec.mode)}"
        )
    if spec.queue != job.spec.queue:
        there = f"queue {job.spec.queue}: pass --queue {job.spec.queue}" if job.spec.queue else "no queue: omit --queue"
        return f"job {job.name} is in {there}"
    if spec.roles != job.spec.roles and job.agents:
        before, after = describe_roles(job.spec.roles), describe_roles(spec.roles)
        return (
            f"job {job.name} runs with the roles {before}, which cannot become {after} while it runs: "
            "pass the same roles, or stop its agents first"
        )
    if job.terms is not None and spec.size_min > job.terms.grid.slots:
        return (
            f"--workers asks for at least {spec.size_min} workers, but the slots of job {job.name} are enough for "
            f"{job.terms.grid.slots}: lower MIN"
        )
    return ""


def _can_switch_mode(job: Job, mode: Mode) -> bool:
    """Return whether the mode can change: not under the feet of workers, and never away from joined workers."""
    if mode is Mode.RELAUNCH and job.terms is not None:
        return False
    changed = replace(job, spec=replace(job.spec, mode=mode))
    return changed.is_live == job.is_live or not (job.agents or job.members)


def _target_after(job: Job, spec: JobSpec) -> Target:
    """Return the target under the new sizes. The choice of a resize stays, within the sizes."""
    if job.target == job.spec.target_at(job.furthest_step):
        return spec.target_at(job.furthest_step)
    size = max(spec.size_min, min(job.target.size, spec.size_max))
    return job.target if size == job.target.size else Target(size)
