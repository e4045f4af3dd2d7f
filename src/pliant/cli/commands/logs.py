"""`pliant logs`: show the output of a job's workers on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pliant.agent.job_dir import JobDir
from pliant.cli.connect import Flags, connection_options, job_argument, read_events, resolve_job
from pliant.cli.job_poller import JobPoller
from pliant.cli.local_jobs import job_dir
from pliant.cli.output import clean, json_option
from pliant.cli.run.output import COLOURS
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pathlib import Path

    from pliant.agent.logs.tail import Tail
    from pliant.client import Client
    from pliant.core.messages import Event
    from pliant.wire.api import JobStatus

POLL_FILES_S = 0.2
FOLLOW_LINES = 10


@click.command()
@job_argument
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Show the worker that has this rank, or had it last.")
@click.option("-f", "--follow", is_flag=True, help="Keep showing new lines until the job ends.")
@click.option(
    "-n",
    "--tail",
    "lines",
    type=click.IntRange(0),
    metavar="N",
    help="Show the last N lines of each worker.",
)
@json_option
@connection_options
def logs(job: str | None, rank: int | None, follow: bool, lines: int | None, flags: Flags, as_json: bool) -> int:
    """Show the output of a job's workers on this machine."""
    from pliant.agent.logs.tail import place_of_logs

    name = resolve_job(job)
    folder = job_dir(name)
    poller = _JobPoller(flags, name, folder)
    show = _LogPrinter(place_of_logs(folder), JsonLines() if as_json else PlainLines())
    try:
        runs = flags.stopped_job(name) is None
        info = poller.initial_info(rank, follow)
        show.print_notes(name, info)
        there = frozenset[str](line.id for line in info.status.members) if info else frozenset[str]()
        show.print_existing(_Selection(info.member if info else None, lines, follow, there))
        if follow and info is not None:
            _follow(poller, show, info, rank, runs)
    except BrokenPipeError:  # the reader, `head` for instance, closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _follow(poller: _JobPoller, show: _LogPrinter, info: _JobInfo, rank: int | None, runs: bool) -> None:
    """Print new lines until the job has ended and no agent writes here, or no agent runs the job."""
    with poller:
        ended, over = info.status.job.state.ended, not runs
        while not (over or (ended and not poller.folder.is_run())):
            show.print_new()
            time.sleep(POLL_FILES_S)
            status = poller.poll()
            if status is not None:
                ended = status.job.state.ended
                if rank is not None and (member := _member_with(status, rank)):
                    show.select(member)
            over = poller.stopped
    show.print_new()
    show.print_rest()
    if not ended and not (runs and poller.connect_once().job.state.ended):
        click.echo(f"pliant: {poller.job} no longer runs on this machine. Resume it with `pliant run`.", err=True)


# -------------------------------------------------------------------------------------------------- status


@dataclass(frozen=True, slots=True)
class _JobInfo:
    status: JobStatus
    member: str | None  # the member with the requested rank; None: no rank requested; "": not assigned yet


class _JobPoller(JobPoller):
    """Polls the job's coordinator, at the start and while following."""

    def __init__(self, flags: Flags, job: str, folder: JobDir) -> None:
        super().__init__(flags, job)
        self.folder = folder

    def initial_info(self, rank: int | None, follow: bool) -> _JobInfo | None:
        """Return the job's status. Without an answer, print the error if the logs can be shown without it."""
        there = self.folder.path.exists()
        try:
            with self.flags.connect(self.job) as client:
                status = client.job(self.job)
                return _JobInfo(
                    status, None if rank is None else _find_member(client, status, rank, self.folder, follow)
                )
        except PliantError as error:
            if follow or rank is not None or not there:
                raise
            click.echo(f"pliant: {clean(error.why)} Showing the logs of this machine anyway.", err=True)
            return None


def _member_with(status: JobStatus, rank: int) -> str | None:
    return next((line.id for line in status.members if line.rank == rank), None)


def _find_member(client: Client, status: JobStatus, rank: int, folder: JobDir, follow: bool) -> str:
    """Return the member that has this rank, or had it last. Raise BadInput if there is none or its log is not here.

    With `follow`, return an empty name to wait for one.
    """
    member = _member_with(status, rank)
    sizes = [0]
    if member is None:
        for _, event in read_events(client, status.job.name):
            ranks = _ranks(event)
            sizes.append(len(ranks))
            member = ranks.get(rank, member)
    if member is None and follow and not status.job.state.ended:
        return ""
    if member is None:
        info = f"the largest world had {max(sizes)} workers" if max(sizes) else "no world has formed yet"
        raise BadInput(f"No worker of {status.job.name} has ever had rank {rank}: {info}.")
    from pliant.agent.logs.tail import logs_in, place_of_logs

    if member not in logs_in(place_of_logs(folder)):
        where = next((f"on {line.agent}" for line in status.members if line.id == member), "elsewhere")
        raise BadInput(f"Rank {rank} is {member} {where}. Its log is not on this machine; run the command there.")
    return member


def _ranks(event: Event) -> dict[int, str]:
    """Return the members that an event gives a rank."""
    from pliant.core.messages import Launched, SeatRefilled, WorldFormed

    match event:
        case WorldFormed(world=world):
            return dict(enumerate(world.members))
        case Launched(launch=launch):
            return {rank: seat.member for rank, seat in enumerate(launch.seats)}
        case SeatRefilled(rank=rank, member=member):
            return {rank: member}
        case _:
            return {}


# -------------------------------------------------------------------------------------------------- output


class PlainLines:
    """Text for people: lines like those of `pliant run`, but never truncated."""

    def __init__(self) -> None:
        from pliant.agent.logs.capture import visible

        self._visible = visible
        self._names: dict[str, str] = {}

    def line(self, member: str, line: bytes) -> None:
        if member not in self._names:
            self._names[member] = click.style(f"[{member}]", fg=COLOURS[len(self._names) % len(COLOURS)])
        encoding = sys.stdout.encoding or "utf-8"
        text = f"{self._names[member]} {self._visible(line)}"
        click.echo(text.encode(encoding, "replace").decode(encoding))  # the terminal may lack some characters


class JsonLines:
    """The same objects as those of `pliant run --json`."""

    def __init__(self) -> None:
        import msgspec

        self._encode = msgspec.json.encode

    def line(self, member: str, line: bytes) -> None:
        click.echo(self._encode({"worker": member, "line": line.decode("utf-8", "replace")}).decode())


@dataclass(frozen=True, slots=True)
class _Selection:
    """The lines to show at first."""

    member: str | None  # None: all members; "": not assigned yet
    lines: int | None
    follow: bool
    running: frozenset[str]

    def line_count(self, member: str) -> int | None:
        """Return how many last lines to show; None for all. Following starts with a few, of running members."""
        if self.lines is not None or not self.follow:
            return self.lines
        return FOLLOW_LINES if member == self.member or member in self.running else 0


class _LogPrinter:
    """Prints the logs of a place and remembers how far each was printed."""

    def __init__(self, place: Path, screen: PlainLines | JsonLines) -> None:
        self._place = place
        self._output = screen
        self._tails: dict[str, Tail] = {}
        self._only: str | None = None

    def print_notes(self, job: str, info: _JobInfo | None) -> None:
        """Print what cannot be shown here, on standard error."""
        from pliant.agent.logs.tail import logs_in

        here = logs_in(self._place)
        elsewhere = sorted({line.agent for line in info.status.members if line.id not in here}) if info else []
        if str(self._place) == os.devnull:
            click.echo(f"pliant: Job {job} writes no logs: it was started with --log-dir {os.devnull}.", err=True)
            return
        if not here:
            click.echo(f"pliant: No worker of {job} has written yet: there is no log in {self._place}.", err=True)
        if elsewhere:
            click.echo(f"pliant: The logs of workers on {', '.join(elsewhere)} are on those machines.", err=True)

    def print_existing(self, wanted: _Selection) -> None:
        from pliant.agent.logs.tail import Tail, logs_in

        self._only = wanted.member
        for member, path in logs_in(self._place).items():
            self._tails[member] = tail = Tail(path)
            shown = tail.begin(wanted.line_count(member) if self._only in (None, member) else 0)
            self._print(member, shown)
            if not wanted.follow:
                self._print(member, tail.end())

    def select(self, member: str) -> None:
        """Print only this member from now on, with everything since the last look: it has the rank now."""
        if member != self._only:
            self.print_new()
            self._only = member

    def print_new(self) -> None:
        from pliant.agent.logs.tail import Tail, logs_in

        for member, path in logs_in(self._place).items():
            if member in self._tails:
                self._print(member, self._tails[member].more())
            elif self._only in (None, member):
                self._tails[member] = tail = Tail(path)
                self._print(member, tail.begin(None))

    def print_rest(self) -> None:
        for member, tail in self._tails.items():
            self._print(member, tail.end())

    def _print(self, member: str, lines: Iterable[bytes]) -> None:
        for line in lines:  # read lines that are not shown too, to keep the position
            if self._only in (None, member):
                self._output.line(member, line)
