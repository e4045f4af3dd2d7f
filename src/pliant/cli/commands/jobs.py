"""`pliant jobs`: list jobs, create one, change its settings, and delete old ones."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pliant import settings
from pliant.cli.connect import Flags, complete_jobs, connection_options, resolve_job
from pliant.cli.local_jobs import (
    DeletedJob,
    JobEntry,
    delete_job,
    job_names,
    read_jobs,
    remove_interrupted_deletions,
)
from pliant.cli.output import clean, format_age, format_size, json_option, print_json, print_table
from pliant.cli.run.option_types import (
    COST_HELP,
    DEADLINE_HELP,
    parse_cost,
    parse_deadline,
    parse_interval,
    parse_schedule,
)
from pliant.core.model.job import JobSpec
from pliant.credentials import is_missing
from pliant.errors import Refused, Unreachable

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.policy.schedule import Schedule
    from pliant.wire.api import JobLine

AGE_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_sizes(text: str) -> tuple[int, int]:
    """Parse `MIN:MAX`, or one number for both."""
    low, colon, high = text.partition(":")
    if not (low.isdecimal() and (high.isdecimal() if colon else not high)):
        raise click.BadParameter(f"{text!r} is neither MIN:MAX, such as 2:8, nor one number.")
    return int(low), int(high if colon else low)


def parse_age(text: str) -> float:
    """Parse an age such as `90m`, `12h`, `30d` or `8w` to seconds."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in AGE_UNITS_S:
        raise click.BadParameter(f"{text!r} is not a number with a unit (s, m, h, d or w), such as 30d.")
    return int(number) * AGE_UNITS_S[unit]


@click.group(invoke_without_command=True)
@json_option
@connection_options
@click.pass_context
def jobs(ctx: click.Context, flags: Flags, as_json: bool) -> None:
    """List jobs, create one, change its settings, or delete old ones."""
    if ctx.invoked_subcommand is not None:
        if as_json or flags != Flags():
            raise click.UsageError(
                f"Put options after the subcommand: pliant jobs {ctx.invoked_subcommand} ... [OPTIONS]."
            )
        return
    found = _all_jobs(flags)
    if as_json:
        print_json({"jobs": [_job_json(job) for job in found]})
    elif not found:
        hint = (
            "Create one with `pliant jobs create NAME --workers MIN:MAX`."
            if flags.names_coordinator
            else "Start one with `pliant run SCRIPT`."
        )
        click.echo(f"There are no jobs. {hint}", err=True)
    else:
        print_table(("name", "state", "for", "workers", "step", "reason"), [_row(job) for job in found])


def _all_jobs(flags: Flags) -> list[JobEntry | JobLine]:
    """Return the jobs of this machine and those of its coordinator. A named coordinator's jobs are returned alone."""
    local: list[JobEntry | JobLine] = []
    if not (flags.names_coordinator or flags.names_token):
        local = [*read_jobs()]
        if is_missing(settings.read().own_token_file):
            return local  # there is no coordinator on this machine, apart from those of `pliant run`
    try:
        with flags.connect() as client:
            return [*local, *client.jobs()]
    except Unreachable as error:
        if not local:
            raise
        click.echo(f"pliant: {clean(error.why)} Showing the jobs of `pliant run` only.", err=True)
        return local


def _row(job: JobEntry | JobLine) -> tuple[str, ...]:
    line = job.line if isinstance(job, JobEntry) else job
    if line is None:
        assert isinstance(job, JobEntry)
        return job.name, job.state, "-", "-", "-", job.problem
    state = job.state if isinstance(job, JobEntry) else line.state.value
    why = "resume it with the same `pliant run` command" if state == "stopped" else line.why
    why = "; ".join(filter(None, (why, line.warning)))
    return (
        line.name,
        str(state),
        format_age(time.time() - line.since) if line.since else "-",
        _workers(line),
        _step(line),
        why,
    )


def _job_json(job: JobEntry | JobLine) -> dict[str, object]:
    """Return the fields of a job's line, and for a job of `pliant run` whether it runs."""
    from dataclasses import fields

    line = job.line if isinstance(job, JobEntry) else job
    told = {each.name: getattr(line, each.name) for each in fields(line)} if line is not None else {"name": job.name}
    if isinstance(job, JobEntry):
        return {**told, "local": True, "runs": job.runs, "problem": job.problem}
    return {**told, "local": False}


@jobs.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_jobs)
@json_option
@connection_options
def delete(names: tuple[str, ...], flags: Flags, as_json: bool) -> None:
    """Delete ended jobs.

    A job of `pliant run` is deleted with its folder: the history, the logs and the checkpoints in it. A job of a
    coordinator is deleted there, with its history; its checkpoints stay. A running job is refused.
    """
    _print_deleted([_delete(resolve_job(name), flags) for name in names], as_json)


def _delete(name: str, flags: Flags) -> DeletedJob:
    """Delete a job of this machine, or else of the coordinator."""
    if not flags.names_coordinator and (name in job_names() or not _has_coordinator(flags)):
        return delete_job(name)
    with flags.connect(name) as client:
        client.delete(name)
    return DeletedJob(name, None, ())


@jobs.command()
@click.option(
    "--older-than",
    type=parse_age,
    required=True,
    metavar="AGE",
    help="Delete jobs that ended longer ago than this, such as 12h, 30d or 8w.",
)
@json_option
@connection_options
def prune(older_than: float, flags: Flags, as_json: bool) -> None:
    """Delete jobs that ended some time ago: those that `pliant jobs` lists with the same options.

    Only finished, failed and cancelled jobs are deleted. A stopped job can be resumed and is kept.
    """
    remove_interrupted_deletions()
    before = time.time() - older_than
    local = [] if flags.names_coordinator or flags.names_token else read_jobs()
    deleted = [delete_job(job.name) for job in local if job.line and not job.runs and _is_old(job.line, before)]
    if _has_coordinator(flags):
        try:
            with flags.connect() as client:
                deleted += _prune_coordinator(client, before)
        except Unreachable as error:
            if not local:
                raise
            click.echo(f"pliant: {clean(error.why)} Deleted jobs of `pliant run` only.", err=True)
    _print_deleted(deleted, as_json)


def _has_coordinator(flags: Flags) -> bool:
    """Return whether a coordinator is named, or has run on this machine apart from those of `pliant run`."""
    return flags.names_coordinator or flags.names_token or not is_missing(settings.read().own_token_file)


def _is_old(line: JobLine, before: float) -> bool:
    return line.state.ended and line.since < before


def _prune_coordinator(client: Client, before: float) -> list[DeletedJob]:
    from pliant.core.messages.rejection import Code

    deleted = []
    for line in client.jobs():
        if _is_old(line, before):
            try:
                client.delete(line.name, before)
                deleted.append(DeletedJob(line.name, None, ()))
            except Refused as error:
                if error.code not in (Code.NO_JOB, Code.RUNNING):  # it was deleted, or ran again, a moment ago
                    raise
    return deleted


def _print_deleted(found: list[DeletedJob], as_json: bool) -> None:
    if as_json:
        print_json({"deleted": found})
        return
    if not found:
        click.echo("No job is that old; nothing was deleted.", err=True)
    for each in found:
        kept = f" Kept: {clean(', '.join(each.kept))}." if each.kept else ""
        size = "" if each.nbytes is None else f" ({format_size(each.nbytes)})"
        click.echo(f"Deleted {each.job}{size}.{kept}")


@jobs.command()
@click.argument("name")
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--workers",
    type=parse_sizes,
    required=True,
    metavar="MIN:MAX",
    help="Smallest and largest number of workers; 8 means 8:8.",
)
@click.option("--target", metavar="N", type=click.IntRange(1), help="Number of workers to start with.  [default: MAX]")
@click.option(
    "--wait-limit-s",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Fail after waiting this long for workers.",
)
@click.option(
    "--max-restarts",
    metavar="N",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Worker failures that the job survives.",
)
@click.option(
    "--checkpoint-every",
    type=parse_interval,
    metavar="STEPS|TIME",
    default="10m",
    show_default=True,
    help="Checkpoint interval, such as 500 (steps), 90s or 2h; never: only when necessary and at the end.",
)
@click.option("--queue", metavar="NAME", default="", help="Queue of the pool that grants its workers.  [default: none]")
@click.option("--priority", metavar="N", type=int, default=0, help="In a queue: higher numbers get workers first.")
@click.option("--at-most-cost", metavar="COST", type=parse_cost, default="none", help=COST_HELP)
@click.option("--deadline", metavar="TIME", type=parse_deadline, default="none", help=DEADLINE_HELP)
@click.option(
    "--autoscale",
    type=click.Choice(["off", "advise", "on"]),
    default="off",
    help="Choose the number of workers by the job's own speed: on, or advise to see what it would do.",
)
@json_option
@connection_options
def create(
    name: str,
    script: tuple[str, ...],
    workers: tuple[int, int],
    target: int | None,
    wait_limit_s: float | None,
    max_restarts: int,
    checkpoint_every: tuple[int, float],
    queue: str,
    priority: int,
    at_most_cost: float,
    deadline: float,
    autoscale: str,
    flags: Flags,
    as_json: bool,
) -> None:
    """Create a job, to be run with `pliant run --job NAME`. It starts when enough workers have joined.

    With --queue and a SCRIPT with its arguments after `--`, machines that are lent with `pliant agent --pool` run it.
    The options have the defaults of `pliant run`. For an existing job they replace its settings.
    """
    from pliant.core.messages import Create
    from pliant.core.model.checkpoint import CheckpointPolicy
    from pliant.core.model.job import Autoscale, Mode, Target

    low, high = workers
    spec = JobSpec(
        low,
        high,
        None if target is None else Target(target),
        wait_limit_s,
        max_restarts,
        Mode.AUTO,
        checkpoints=CheckpointPolicy(*checkpoint_every),
        queue=queue,
        priority=priority,
        script=script,
        autoscale=Autoscale(autoscale),
        at_most_cost=at_most_cost or None,
        deadline=deadline or None,
    )
    with flags.connect() as client:
        done = client.send(name, Create(name, spec))
        line = client.job(name).job
    if as_json:
        print_json({"job": line, "revision": done.revision})
    else:
        click.echo(f"{name} is {line.state.value}: {clean(line.why)}" if line.why else f"{name} is {line.state.value}")


@jobs.command("set")
@click.argument("name")
@click.option("--workers", type=parse_sizes, metavar="MIN:MAX", help="Smallest and largest number of workers.")
@click.option("--spares", metavar="N", type=click.IntRange(0), help="Standby workers beyond the target.")
@click.option("--priority", metavar="N", type=int, help="Of a job in a queue: higher numbers get workers first.")
@click.option("--at-most-cost", metavar="COST", type=parse_cost, help=COST_HELP)
@click.option("--deadline", metavar="TIME", type=parse_deadline, help=DEADLINE_HELP)
@click.option("--schedule", metavar="STEP:N,...", type=parse_schedule, help="Workers from a step on, or none.")
@click.option(
    "--autoscale",
    type=click.Choice(["off", "advise", "on"]),
    help="Choose the number of workers by the job's own speed: on, or advise to see what it would do.",
)
@click.option(
    "--wait-limit-s",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Fail after waiting this long for workers.",
)
@click.option("--max-restarts", metavar="N", type=click.IntRange(0), help="Worker failures that the job survives.")
@click.option("--checkpoint-every", type=parse_interval, metavar="STEPS|TIME", help="Checkpoint interval.")
@click.option("--checkpoint-keep", metavar="N", type=click.IntRange(1), help="Number of checkpoints to keep.")
@json_option
@connection_options
def change_settings(name: str, flags: Flags, as_json: bool, **given: Any) -> None:
    """Change settings of a job while it runs. Those that are not named stay as they are."""
    from pliant.core.messages import Create
    from pliant.core.messages.describe import describe_settings

    if all(value is None for value in given.values()):
        raise click.UsageError("Name at least one setting to change, such as --workers 1:8.")
    with flags.connect(name) as client:
        found = client.job(name)
        if found.job.state.ended:
            raise Refused(f"{name} is {found.job.state.value}. Pass the new settings when you start it again.")
        spec = _with_options(found.spec, **given)
        done = client.send(name, Create(name, spec, only_settings=True))
    if as_json:
        print_json({"spec": spec, "revision": done.revision})
    else:
        what = describe_settings(found.spec, spec)
        click.echo(f"{name}: {what}" if what else f"{name} has these settings already.")


def _with_options(
    spec: JobSpec,
    workers: tuple[int, int] | None,
    spares: int | None,
    priority: int | None,
    at_most_cost: float | None,
    deadline: float | None,
    schedule: Schedule | None,
    autoscale: str | None,
    wait_limit_s: float | None,
    max_restarts: int | None,
    checkpoint_every: tuple[int, float] | None,
    checkpoint_keep: int | None,
) -> JobSpec:
    """Return the settings with the options that were given."""
    from pliant.core.model.job import Autoscale

    low, high = workers or (spec.size_min, spec.size_max)
    steps, seconds = checkpoint_every or (spec.checkpoints.steps, spec.checkpoints.seconds)
    keep = spec.checkpoints.keep if checkpoint_keep is None else checkpoint_keep
    target = spec.target if spec.target is None or low <= spec.target.size <= high else None
    return replace(
        spec,
        size_min=low,
        size_max=high,
        target=target,
        spares=spec.spares if spares is None else spares,
        priority=spec.priority if priority is None else priority,
        at_most_cost=spec.at_most_cost if at_most_cost is None else at_most_cost or None,
        deadline=spec.deadline if deadline is None else deadline or None,
        schedule=spec.schedule if schedule is None else schedule,
        autoscale=spec.autoscale if autoscale is None else Autoscale(autoscale),
        wait_limit_s=spec.wait_limit_s if wait_limit_s is None else wait_limit_s,
        max_restarts=spec.max_restarts if max_restarts is None else max_restarts,
        checkpoints=replace(spec.checkpoints, steps=steps, seconds=seconds, keep=keep),
    )


def _workers(line: JobLine) -> str:
    """`size/target (min:max)`."""
    return f"{line.size}/{line.target} ({line.size_min}:{line.size_max})"


def _step(line: JobLine) -> str:
    """`step/total_steps`, or `step` if the total is unknown."""
    return f"{line.step}" if line.total_steps is None else f"{line.step}/{line.total_steps}"
