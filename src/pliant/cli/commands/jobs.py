"""`pliant jobs`: the list of jobs, and a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection
from pliant.cli.output import clean, json_option, print_json, print_table
from pliant.core.model.job import JobSpec

if TYPE_CHECKING:
    from pliant.wire.api import JobLine


def sizes(text: str) -> tuple[int, int]:
    """`MIN:MAX`, or one number for both."""
    low, colon, high = text.partition(":")
    if not (low.isdecimal() and (high.isdecimal() if colon else not high)):
        raise click.BadParameter(f"{text!r} is not MIN:MAX, 2:8 for instance, nor one number.")
    return int(low), int(high if colon else low)


@click.group(invoke_without_command=True)
@json_option
@connection
@click.pass_context
def jobs(ctx: click.Context, flags: Flags, as_json: bool) -> None:
    """List the jobs, or create one."""
    if ctx.invoked_subcommand is not None:
        if as_json or flags != Flags():
            raise click.UsageError(
                f"Options go behind the command: pliant jobs {ctx.invoked_subcommand} ... [OPTIONS]."
            )
        return
    with flags.connect() as client:
        found = client.jobs()
    if as_json:
        print_json({"jobs": found})
    elif not found:
        click.echo("There are no jobs. `pliant jobs create NAME --workers MIN:MAX` makes one.", err=True)
    else:
        heads = ("name", "state", "workers", "step", "why")
        print_table(heads, [(line.name, line.state.value, _workers(line), _step(line), line.why) for line in found])


@jobs.command()
@click.argument("name")
@click.option(
    "--workers", type=sizes, required=True, metavar="MIN:MAX", help="How few and how many workers; 8 means 8:8."
)
@click.option("--target", type=click.IntRange(1), help="How many are wanted at first.  [default: MAX]")
@click.option("--wait-limit-s", type=click.FloatRange(0, min_open=True), help="Fail after waiting so long for workers.")
@click.option(
    "--max-restarts", type=click.IntRange(0), default=3, show_default=True, help="Workers that may fail by themselves."
)
@json_option
@connection
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
    """How far it is, of how far it goes if that is known."""
    return f"{line.step}" if line.total_steps is None else f"{line.step}/{line.total_steps}"
