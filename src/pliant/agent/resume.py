"""Lines about a job that exists: where it continues, and the differences from its last start."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from pliant.agent.job_dir import JobDir
from pliant.agent.last_command import CommandLine, describe_changes, read_last_command
from pliant.agent.plan import RunPlan
from pliant.agent.setup import OpenedJob, describe_other_settings
from pliant.core.messages.describe import describe_recomputed, setting_options
from pliant.core.model.job import JobState
from pliant.errors import BadInput

# Options that concern one start only. A change of the job's settings is reported in another line.
_ONE_START = ("--target", "--fresh", "--override", "--job", "--rdzv-id")


def check_script(plan: RunPlan, folder: JobDir) -> None:
    """Raise BadInput if the job has its name from another script of the same name."""
    last = read_last_command(folder.command)
    if last is None or not plan.name_is_derived or last.script == plan.command.script:
        return
    raise BadInput(
        f"The job {plan.job} belongs to another script of that name: {last.script}, not {plan.command.script}. "
        f"Choose a name for this script's job with --job NAME, or pass --job {plan.job} to continue the job with it."
    )


def describe_resume(opened: OpenedJob, plan: RunPlan, folder: JobDir, checkpoint_dir: str) -> list[str]:
    """Return the lines about a job that was started before; none for a new job."""
    lines = []
    if other := describe_other_settings(opened, plan):
        lines.append(other)
    if opened.before is None:
        return lines
    last = read_last_command(folder.command)
    if last is not None and (changed := describe_changes(_reported(last, plan), _reported(plan.command, plan))):
        lines.append(f"different from the last start: {changed}")
    had_finished = opened.before.live and opened.before.job.state is JobState.FINISHED
    had = f"had finished at step {opened.before.job.step}" if had_finished else ""
    if opened.now.live and opened.now.job.total_steps is not None:
        lines.append(_describe_progress(opened, plan.job, checkpoint_dir, had))
    elif opened.before.checkpoint is not None:
        again = f"{had}; it starts" if had else "starts"
        lines.append(f"{plan.job} {again} from the beginning. Earlier checkpoints stay in {checkpoint_dir}")
    elif had:
        lines.append(f"{plan.job} {had} and has no checkpoint: it starts from the beginning")
    return lines


def _reported(command: CommandLine, plan: RunPlan) -> CommandLine:
    unreported = {*_ONE_START, *setting_options(plan.spec)}
    options = {name: value for name, value in command.options.items() if name not in unreported}
    return CommandLine(command.script, command.args, options)


def _describe_progress(opened: OpenedJob, job: str, checkpoint_dir: str, had: str) -> str:
    """Return where the job continues. `had`: it had finished, so that the workers' length is still to come."""
    now = opened.now
    total = f" of {now.job.total_steps}" if now.job.total_steps is not None else ""
    if now.members:
        return f"{job} is at step {now.durable.step}{total}, and {len(now.members)} members train"
    if now.checkpoint is None:
        return f"{job} starts again at step 0: it has no checkpoint"
    step, reached = now.checkpoint.lineage.step, now.durable.step
    age_s = _age_s(checkpoint_dir, now.checkpoint.name)
    age = f"checkpoint, saved {format_age(age_s)} ago" if age_s is not None else "checkpoint"
    again = f"; {describe_recomputed(reached - step)}" if reached > step else ""
    if had:
        more = " if its script asks for more steps" if step == now.job.total_steps else ""
        return f"{job} {had}; it continues after step {step} ({age}){more}{again}"
    return f"{job} continues after step {step}{total} ({age}){again}"


def _age_s(checkpoint_dir: str, name: str) -> float | None:
    """Return the age of a checkpoint in a folder of this machine; None if it is elsewhere."""
    with suppress(OSError, ValueError):
        return time.time() - (Path(checkpoint_dir) / name).stat().st_mtime
    return None


def format_age(seconds: float) -> str:
    for unit, each in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * each:
            return f"{seconds / each:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"
