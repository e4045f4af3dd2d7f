"""`pliant queue`: show the pool with the jobs that share it, and set its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options
from pliant.cli.output import clean, json_option, print_json, print_table

if TYPE_CHECKING:
    from pliant.core.allocate import QueueRule
    from pliant.wire.api import PoolStatus


def parse_slots(text: str) -> int | None:
    """Parse a number of slots; None for `auto`."""
    if text == "auto":
        return None
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither a number nor auto.")
    return int(text)


def parse_queue(text: str) -> QueueRule:
    """Parse `NAME=WEIGHT` or `NAME=WEIGHT:LIMIT`."""
    from pliant.core.allocate import QueueRule

    name, _, rest = text.partition("=")
    weight, colon, limit = rest.partition(":")
    try:
        return QueueRule(name, float(weight), int(limit) if colon else None)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not NAME=WEIGHT or NAME=WEIGHT:LIMIT, such as batch=1:16.") from None


@click.group(invoke_without_command=True)
@json_option
@connection_options
@click.pass_context
def queue(ctx: click.Context, flags: Flags, as_json: bool) -> None:
    """Show the pool and the jobs that share it, or set it."""
    if ctx.invoked_subcommand is not None:
        if as_json or flags != Flags():
            raise click.UsageError(
                f"Put options after the subcommand: pliant queue {ctx.invoked_subcommand} ... [OPTIONS]."
            )
        return
    with flags.connect() as client:
        found = client.pool()
    if as_json:
        print_json(found)
    else:
        _print_pool(found)


@queue.command("set")
@click.option(
    "--slots",
    metavar="N|auto",
    type=parse_slots,
    required=True,
    help="Places for workers in the pool; auto: those of the machines that `pliant agent --pool` lends.",
)
@click.option("--spot", metavar="N", type=click.IntRange(0), default=0, help="How many of them are spot.  [default: 0]")
@click.option(
    "--queue",
    "queues",
    metavar="NAME=WEIGHT[:LIMIT]",
    type=parse_queue,
    multiple=True,
    help="The share of a queue, and the most that it may have. Others have weight 1 and no limit.",
)
@json_option
@connection_options
def set_pool(slots: int | None, spot: int, queues: tuple[QueueRule, ...], flags: Flags, as_json: bool) -> None:
    """Set the pool that jobs with --queue share. It replaces the one before."""
    from pliant.core.allocate import Pool

    with flags.connect() as client:
        found = client.set_pool(Pool(slots or 0, spot, queues, is_lent=slots is None))
    if as_json:
        print_json(found)
    else:
        _print_pool(found)


def _print_pool(found: PoolStatus) -> None:
    pool = found.pool
    if pool is None:
        click.echo("There is no pool. Set one with `pliant queue set --slots N`.")
        return
    held = sum(max(job.held, job.granted) for job in found.jobs)
    spot = f", {pool.spot} of them spot" if pool.spot else ""
    lent = " of lent machines" if pool.is_lent else ""
    click.echo(f"pool  {pool.slots} slots{lent}{spot}; {held} granted or in use")
    for machine in found.machines:
        jobs = sorted({slot.job for slot in machine.slots if slot.job})
        in_use = f"{sum(bool(slot.job) for slot in machine.slots)} of {len(machine.slots)} slots in use"
        by = f" by {', '.join(jobs)}" if jobs else ""
        click.echo(f"machine {machine.name}  {in_use}{by}{'; it leaves' if machine.is_leaving else ''}")
        for job, why in machine.refused:
            click.echo(f"  {job} cannot run there: {clean(why)}")
    for rule in pool.queues:
        used = sum(job.granted for job in found.jobs if job.queue == rule.name)
        limit = "" if rule.limit is None else f", at most {rule.limit}"
        click.echo(f"queue {rule.name}  weight {rule.weight:g}{limit}; {used} granted")
    if found.jobs:
        click.echo()
        print_table(
            ("job", "queue", "priority", "granted", "held", "position", "reason"),
            [
                (
                    job.name,
                    job.queue,
                    str(job.priority),
                    f"{job.granted}/{job.wanted}",
                    str(job.held),
                    str(job.position) if job.position else "-",
                    job.why,
                )
                for job in found.jobs
            ],
        )
