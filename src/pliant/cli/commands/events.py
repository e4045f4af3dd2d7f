"""`pliant events`: show the events of a job, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options, job_argument, resolve_job
from pliant.cli.output import clean, json_option, local_time
from pliant.errors import Unreachable

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.messages import Event

PAGE = 1000
LOOK_S = 0.2


@click.command()
@job_argument
@click.option("--after", type=click.IntRange(0), metavar="N", default=0, help="Show events after this revision only.")
@click.option("--follow", is_flag=True, help="Keep showing new events until the job ends.")
@json_option
@connection_options
def events(job: str | None, after: int, follow: bool, flags: Flags, as_json: bool) -> None:
    """Show the events of a job."""
    name = resolve_job(job)
    known: str | None = None
    while True:
        runs = flags.stopped_job(name) is None
        with flags.connect(name) as client:
            client.store = known  # a revision is valid only within one store
            ended = client.job(name).job.state.ended
            known = client.store
            if not follow or ended or not runs:
                for revision, event in _pages(client, name, after):
                    _print(revision, event, as_json)
                if follow and not ended:
                    click.echo(f"pliant: {name} no longer runs on this machine. Resume it with `pliant run`.", err=True)
                return
            after, ended = _follow(client, flags, name, after, as_json)
        if ended:
            return


def _follow(client: Client, flags: Flags, job: str, after: int, as_json: bool) -> tuple[int, bool]:
    """Print events until the job ends or its coordinator moves. Return the last revision and whether the job ended."""
    place = flags.resolve(job)
    while True:
        try:
            for revision, event in client.follow(job, after):
                _print(revision, event, as_json)
                after = revision
                if _is_end(event):
                    for last in _pages(client, job, after):  # decided together with the end
                        _print(*last, as_json)
                    return after, True
        except Unreachable as lost:
            if flags.stopped_job(job) is None:
                click.echo(f"pliant: {lost.why} Waiting for it.", err=True)
        while not client.healthy():
            if flags.stopped_job(job) is not None or flags.resolve(job) != place:
                return after, False
            time.sleep(LOOK_S)
        click.echo("pliant: The coordinator answers again.", err=True)


def _pages(client: Client, job: str, after: int) -> Iterator[tuple[int, Event]]:
    while page := client.events(job, after, PAGE):
        yield from page
        after = page[-1][0]


def _is_end(event: Event) -> bool:
    from pliant.core.messages import StateChanged

    return isinstance(event, StateChanged) and event.state.ended


def _print(revision: int, event: Event, as_json: bool) -> None:
    if as_json:
        from pliant.wire.api import EVENTS

        click.echo(f'{{"revision":{revision},"event":{EVENTS.encode(event).decode()}}}')
    else:
        from pliant.core.messages.describe import describe

        click.echo(f"{local_time(event.at)}  {revision:>5}  {clean(describe(event))}")
