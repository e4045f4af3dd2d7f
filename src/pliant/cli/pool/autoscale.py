"""`pliant autoscale --replay JOB`: show the sizes that autoscaling would have chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pliant.cli.audit.command import progress
from pliant.cli.connect import Flags, connection_options, job_argument, read_events, resolve_job
from pliant.cli.output import clean, json_option, local_time, print_json, print_table

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.autoscale.replay import ScalingReplay


@click.command()
@job_argument
@click.option("--replay", "is_replay", is_flag=True, help="Go through the recorded history of the job.")
@json_option
@connection_options
def autoscale(job: str | None, is_replay: bool, flags: Flags, as_json: bool) -> None:
    """Show the sizes that autoscaling would have chosen for a job.

    It reads the recorded history, which has the sizes that the job really had, so advice after the first one tells
    what autoscaling would do at these sizes. The job needs no --autoscale.
    """
    if not is_replay:
        raise click.UsageError("Pass --replay to go through the recorded history. `pliant jobs set` turns it on.")
    name = resolve_job(job)
    with flags.connect(name) as client:
        found = replayed(client, name)
    if as_json:
        print_json(replay_json(name, found))
    else:
        _print_replay(name, found)


def replayed(client: Client, job: str) -> ScalingReplay:
    """Read all events of a job and advise after each report."""
    from pliant.core.autoscale.replay import ScalingReplay

    found = ScalingReplay()
    with progress("Reading events", client.job(job).job.revision) as step:
        for _, event in read_events(client, job):
            found.add(event)
            step()
    return found


def replay_json(name: str, found: ScalingReplay) -> dict[str, object]:
    """Return all of it for --json."""
    pace = found.pace
    return {
        "job": name,
        "speeds": [{"size": size, "samples_per_second": speed} for size, speed in pace.speeds],
        "pause_s": pace.pause_s,
        "advice": [{"at": at, "size": size, "advised": each.size, "why": each.why} for at, size, each in found.advice],
        "now": None if found.last is None else {"size": found.last.size, "why": found.last.why},
    }


def _print_replay(name: str, found: ScalingReplay) -> None:
    if not found.pace.speeds:
        click.echo(f"Nothing of {name} was measured: only live jobs report steps, and a stretch needs three reports.")
        return
    print_table(
        ("workers", "samples a second", "measured"),
        [
            (str(size), f"{each.speed:.1f}", f"{each.seconds:.0f} s")
            for size, each in sorted(found.pace.sizes.items())
            if each.samples
        ],
    )
    click.echo(f"\na change takes {found.pace.pause_s:.2f} s")
    for at, size, advice in found.advice:
        click.echo(clean(f"{local_time(at)}  {size} -> {advice.size}: {advice.why}"))
    if found.last is not None:
        click.echo(clean(f"at the end  {found.last.size}: {found.last.why}"))
