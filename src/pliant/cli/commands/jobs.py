"""`pliant jobs`: list jobs and create one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options
from pliant.cli.output import clean, json_option, print_json, print_table
from pliant.core.model.job import JobSpec

if TYPE_CHECKING:
    from pliant.wire.api import JobLine


def parse_sizes(text: str) -> tuple[int, int]:
    """Parse `MIN:MAX`, or one number for both."""
    low, colon, high = text.partition(":")
    if not (low.isdecimal() and (high.isdecimal() if colon else not high)):
        raise click.BadParameter(f"{text!r} is neither MIN:MAX, such as 2:8, nor one number.")
    return int(low), int(high if colon else low)


@click.group(invoke_without_command=True)
@json_option
@connection_options
@click.pass_context
def jobs(ctx: click.Context, flags: Flags, as_json: bool) -> None:
    """List jobs, or create one."""
    if ctx.invoked_subcommand is not None:
        if as_json or flags != Flags():
            raise click.UsageError(
                f"Put options after the subcommand: pliant jobs {ctx.invoked_subcommand} ... [OPTIONS]."
            )
        return
    with flags.connect() as client:
        found = client.jobs()
    if as_json:
        print_json({"jobs": found})
    elif not found:
        click.echo("There are no jobs. Create one with `pliant jobs create NAME --workers MIN:MAX`.", err=True)
    else:
        heads = ("name", "state", "workers", "step", "reason")
        print_table(heads, [(line.name, line.state.value, _workers(line), _step(line), line.why) for line in found])


@jobs.command()
@click.argument("name")
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
@json_option
@connection_options
def create(
    name: str,
    workers: tuple[int, int],
    target: int | None,
    wait_limit_s: float | None,
    max_restarts: int,
    flags: Flags,
    as_json: bool,
) -> None:
    """Create a job. It starts when enough workers have joined."""
    from pliant.core.messages import Create
    from pliant.core.model.job import Target

    low, high = workers
    wanted = high if target is None else target
    with flags.connect() as client:
        done = client.send(name, Create(name, JobSpec(low, high, Target(wanted), wait_limit_s, max_restarts)))
        line = client.job(name).job
    if as_json:
        print_json({"job": line, "revision": done.revision})
    else:
        click.echo(f"{name} is {line.state.value}: {clean(line.why)}" if line.why else f"{name} is {line.state.value}")


def _workers(line: JobLine) -> str:
    """`size/target (min:max)`."""
    return f"{line.size}/{line.target} ({line.size_min}:{line.size_max})"


def _step(line: JobLine) -> str:
    """`step/total_steps`, or `step` if the total is unknown."""
    return f"{line.step}" if line.total_steps is None else f"{line.step}/{line.total_steps}"
