"""`pliant events`: show the events of a job, in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options, job_argument, resolve_job
from pliant.cli.output import clean, json_option, local_time
from pliant.errors import Unreachable

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.client.event_follower import EventFollower
    from pliant.core.messages import Event

LOOK_S = 0.2


@click.command()
@job_argument
@click.option("--after", type=click.IntRange(0), metavar="N", default=0, help="Show events after this revision only.")
@click.option("-f", "--follow", is_flag=True, help="Keep showing new events until the job ends.")
@json_option
@connection_options
def events(job: str | None, after: int, follow: bool, flags: Flags, as_json: bool) -> None:
    """Show the events of a job."""
    from pliant.client.event_follower import EventFollower

    name = resolve_job(job)
    known: str | None = None
    while True:
        runs = flags.stopped_job(name) is None
        with flags.connect(name) as client:
            client.store = known  # a revision is valid only within one store
            ended = client.job(name).job.state.ended
            known = client.store
            follower = EventFollower(client, name, after, lambda revision, event: _print(revision, event, as_json))
            if not follow or ended or not runs:
                follower.catch_up()
                if follow and not ended:
                    click.echo(f"pliant: {name} no longer runs on this machine. Resume it with `pliant run`.", err=True)
                return
            if _follow(follower, client, flags, name):
                return
            after = follower.revision


def _follow(follower: EventFollower, client: Client, flags: Flags, job: str) -> bool:
    """Print events until the job ends (True) or its coordinator moves (False)."""
    place = flags.resolve(job)
    while True:
        try:
            follower.stream(until_job_ends=True)
        except Unreachable as lost:
            if flags.stopped_job(job) is None:
                click.echo(f"pliant: {lost.why} Waiting for it.", err=True)
        if follower.job_ended:
            return True
        while not client.is_healthy():
            if flags.stopped_job(job) is not None or flags.resolve(job) != place:
                return False
            time.sleep(LOOK_S)
        click.echo("pliant: The coordinator answers again.", err=True)


def _print(revision: int, event: Event, as_json: bool) -> None:
    if as_json:
        from pliant.wire.api import EVENTS

        click.echo(f'{{"revision":{revision},"event":{EVENTS.encode(event).decode()}}}')
    else:
        from pliant.core.messages.describe import describe

        click.echo(f"{local_time(event.at)}  {revision:>5}  {clean(describe(event))}")
