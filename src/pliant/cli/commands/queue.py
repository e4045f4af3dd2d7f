"""`pliant queue`: show the pool with the jobs that share it, and set its size."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options
from pliant.cli.output import clean, json_option, print_json, print_table, short_time, time_until
from pliant.cli.pool.prices import parse_prices
from pliant.errors import BadInput, Refused

if TYPE_CHECKING:
    from pliant.core.allocate import QueueRule
    from pliant.core.allocate.model import Prices
    from pliant.wire.api import PoolStatus


AUTO = "auto"


def parse_slots(text: str) -> int | str:
    """Parse a number of slots, or `auto`."""
    if text == AUTO:
        return text
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
    help="Places for workers in the pool; auto: those of the machines that `pliant agent --pool` lends, and of "
    "labelled nodes of a Kubernetes cluster.",
)
@click.option("--spot", metavar="N", type=click.IntRange(0), help="How many of them are spot.  [default: 0]")
@click.option(
    "--queue",
    "queues",
    metavar="NAME=WEIGHT[:LIMIT]",
    type=parse_queue,
    multiple=True,
    help="The share of a queue, and the most that it may have. Others have weight 1 and no limit.",
)
@click.option(
    "--prices",
    metavar="FILE|none",
    type=parse_prices,
    help="Prices of a slot for an hour: lines of TIME,PRICE. Without --slots nothing else changes.",
)
@json_option
@connection_options
def set_pool(
    slots: int | str | None,
    spot: int | None,
    queues: tuple[QueueRule, ...],
    prices: Prices | None,
    flags: Flags,
    as_json: bool,
) -> None:
    """Set the pool that jobs with --queue share. It replaces the one before, whose prices stay without --prices."""
    from pliant.core.allocate import Pool
    from pliant.core.allocate.model import bad_pool

    if slots is None and (prices is None or spot is not None or queues):
        raise click.UsageError("Pass --slots N, or --slots auto, or only --prices FILE for the pool that is there.")
    with flags.connect() as client:
        before = client.pool().pool
        kept = prices if prices is not None else before.prices if before is not None else ()
        if slots is not None:
            pool = Pool(0 if isinstance(slots, str) else slots, spot or 0, queues, slots == AUTO, kept)
        elif before is None:
            raise Refused("There is no pool that could have prices. Set one with `pliant queue set --slots N`.")
        else:
            pool = replace(before, slots=0, spot=0) if before.is_lent else before
            pool = replace(pool, prices=kept)
        if wrong := bad_pool(pool):
            raise BadInput(f"{wrong[:1].upper()}{wrong[1:]}.")
        found = client.set_pool(pool)
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
    click.echo(f"pool  {_slots(pool.slots)}{lent}{spot}; {held} granted or in use")
    if pool.cluster_slots:
        click.echo(f"nodes of the cluster  {pool.cluster_slots} slots")
    for machine in found.machines:
        jobs = sorted({slot.job for slot in machine.slots if slot.job})
        in_use = f"{sum(bool(slot.job) for slot in machine.slots)} of {_slots(len(machine.slots))} in use"
        by = f" by {', '.join(jobs)}" if jobs else ""
        click.echo(f"machine {machine.name}  {in_use}{by}{'; it leaves' if machine.is_leaving else ''}")
        for job, why in machine.refused:
            click.echo(f"  {job} cannot run there: {clean(why)}")
    for rule in pool.queues:
        used = sum(job.granted for job in found.jobs if job.queue == rule.name)
        limit = "" if rule.limit is None else f", at most {rule.limit}"
        click.echo(f"queue {rule.name}  weight {rule.weight:g}{limit}; {used} granted")
    if pool.prices:
        click.echo(f"prices {describe_prices(pool.prices)}")
    if found.jobs:
        click.echo()
        print_table(
            ("job", "queue", "priority", "granted", "held", "cost", "deadline", "position", "reason"),
            [
                (
                    job.name,
                    job.queue,
                    str(job.priority),
                    f"{job.granted}/{job.wanted}",
                    str(job.held),
                    describe_cost(job.spent, job.at_most_cost),
                    "-" if job.deadline is None else time_until(job.deadline, time.time()),
                    str(job.position) if job.position else "-",
                    job.why,
                )
                for job in found.jobs
            ],
        )


def describe_cost(spent: float, most: float | None) -> str:
    """Return what a job has spent, with its limit: `12.40/50.00`."""
    from pliant.core.allocate.reasons import amount

    return amount(spent) if most is None else f"{amount(spent)}/{amount(most)}"


def describe_prices(prices: Prices) -> str:
    """Return the price now, and the next one."""
    from pliant.core.allocate.cost import price_at

    now = price_at(prices, time.time())
    coming = next(((at, price) for at, price in prices if at > time.time()), None)
    then = "" if coming is None else f"; {coming[1]:g} from {short_time(coming[0])}"
    return f"{'none yet' if now is None else f'{now:g}'} for a slot and hour{then}"


def _slots(count: int) -> str:
    return f"{count} slot" if count == 1 else f"{count} slots"
