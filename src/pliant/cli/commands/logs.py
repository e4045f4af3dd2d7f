"""`pliant logs`: what the workers of a job wrote on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.agent.job_dir import Folder
from pliant.cli.connect import Flags, connection, job_argument, the_job
from pliant.cli.output import clean, json_option
from pliant.cli.run.command import COLOURS
from pliant.credentials import is_missing
from pliant.errors import BadInput, PliantError, Refused, Unreachable

if TYPE_CHECKING:
    from pathlib import Path

    from pliant.agent.logs.tail import Tail
    from pliant.client import Client
    from pliant.core.messages import Event
    from pliant.wire.api import JobStatus

LOOK_S = 0.2
ASK_S = 1.0  # how often the coordinator is asked while files are followed
AWAY = 3  # so many questions in a row are not answered before it is said: at the end of a job nobody answers, either
FOLLOW_LINES = 10
PAGE = 1000


@click.command()
@job_argument
@click.option("--rank", type=click.IntRange(0), help="Only the worker that has this rank, or had it last.")
@click.option("--follow", is_flag=True, help="Go on until the job has ended.")
@click.option("--lines", type=click.IntRange(0), metavar="N", help="Only the last N lines of each worker.")
@json_option
@connection
def logs(job: str | None, rank: int | None, follow: bool, lines: int | None, flags: Flags, as_json: bool) -> int:
    """Show what the workers of a job wrote on this machine."""
    from pliant.agent.logs.tail import place_of_logs

    name = the_job(job)
    folder = Folder(settings.read().home / "jobs" / name)
    asked = _Asked(flags, name, folder)
    show = _Show(place_of_logs(folder), JsonLines() if as_json else PlainLines())
    try:
        runs = flags.asleep(name) is None
        known = asked.first(rank, follow)
        show.notes(name, known)
        there = frozenset[str](line.id for line in known.status.members) if known else frozenset[str]()
        show.begin(_Wanted(known.member if known else None, lines, follow, there))
        if follow and known is not None:
            _follow(asked, show, known, rank, runs)
    except BrokenPipeError:  # `pliant logs demo | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _follow(asked: _Asked, show: _Show, known: _Known, rank: int | None, runs: bool) -> None:
    """Until the job has ended and nobody writes here any more; or nobody runs it."""
    with asked:
        ended, over = known.status.job.state.ended, not runs
        while not (over or (ended and not asked.folder.is_run())):
            show.more()
            time.sleep(LOOK_S)
            status = asked.again()
            if status is not None:
                ended = status.job.state.ended
                if rank is not None and (member := _member_with(status, rank)):
                    show.only(member)
            over = asked.over
    show.more()
    show.end()
    if not ended and not (runs and asked.ended()):
        click.echo(f"pliant: {asked.job} is not run here any more; `pliant run` goes on with it.", err=True)


# ------------------------------------------------------------------------------------------- what a coordinator knows


@dataclass(frozen=True, slots=True)
class _Known:
    status: JobStatus
    member: str | None  # who has the rank that was asked for, or had it last; None: no rank was; "": nobody yet


class _Asked:
    """The job's coordinator, asked when the command begins, and while it follows."""

    def __init__(self, flags: Flags, job: str, folder: Folder) -> None:
        self.job = job
        self.folder = folder
        self.over = False  # the job was run on this machine, and is not any more
        self._flags = flags
        self._opened = ExitStack()
        self._client: Client | None = None
        self._next = 0.0
        self._silent = 0  # questions in a row that nobody answered

    def __enter__(self) -> _Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def first(self, rank: int | None, follow: bool) -> _Known | None:
        """How the job stands. If that cannot be learned, and logs can be shown without it, that is only said."""
        said = settings.read()
        there = self.folder.path.exists()
        named = self._flags.urls or said.coordinators
        if not there and not named and self._flags.token_file is None and is_missing(said.own_token_file):
            raise Refused(
                f"There is no job {self.job} here: it has never run on this machine, and there is no coordinator. "
                "Name one with --coordinator."
            )
        try:
            with self._flags.connect(self.job) as client:
                status = client.job(self.job)
                return _Known(status, None if rank is None else _member(client, status, rank, self.folder, follow))
        except PliantError as error:
            if follow or rank is not None or not there:
                raise
            click.echo(f"pliant: {clean(error.why)} The logs of this machine are here all the same.", err=True)
            return None

    def again(self) -> JobStatus | None:
        """How the job stands now; None if it is too early to ask again, or nobody answers."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + ASK_S
        try:
            if self._client is None:
                if self._flags.asleep(self.job) is not None:
                    self.over = True
                    return None
                self._client = self._opened.enter_context(self._flags.connect(self.job, patience_s=0.0))
            status = self._client.job(self.job)
        except Unreachable as lost:
            self._opened.close()
            self._client = None  # the next one may listen elsewhere
            self._silent += 1
            if self._silent == AWAY and self._flags.asleep(self.job) is None:
                click.echo(f"pliant: {clean(lost.why)} Waiting for it.", err=True)
            return None
        if self._silent >= AWAY:
            click.echo("pliant: A coordinator answers again.", err=True)
        self._silent = 0
        return status

    def ended(self) -> bool:
        """Ask once more, when nobody runs it any more."""
        with self._flags.connect(self.job) as client:
            return client.job(self.job).job.state.ended


def _member_with(status: JobStatus, rank: int) -> str | None:
    return next((line.id for line in status.members if line.rank == rank), None)


def _member(client: Client, status: JobStatus, rank: int, folder: Folder, follow: bool) -> str:
    """Who has this rank, or had it last. BadInput if nobody ever had, or its log is elsewhere.

    Who follows can wait for it: then nobody is the empty name.
    """
    member = _member_with(status, rank)
    sizes = [0]
    if member is None:
        for _, event in _pages(client, status.job.name):
            ranks = _ranks(event)
            sizes.append(len(ranks))
            member = ranks.get(rank, member)
    if member is None and follow and not status.job.state.ended:
        return ""
    if member is None:
        known = f"the largest had {max(sizes)} workers" if max(sizes) else "there was none yet"
        raise BadInput(f"No worker of {status.job.name} has had rank {rank} in any world: {known}.")
    from pliant.agent.logs.tail import logs_in, place_of_logs

    if member not in logs_in(place_of_logs(folder)):
        where = next((f"on {line.agent}" for line in status.members if line.id == member), "elsewhere")
        raise BadInput(f"Rank {rank} is {member}, {where}, and its log is not on this machine: ask there.")
    return member


def _ranks(event: Event) -> dict[int, str]:
    """The members that an event gives a rank."""
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


def _pages(client: Client, job: str) -> Iterator[tuple[int, Event]]:
    after = 0
    while page := client.events(job, after, PAGE):
        yield from page
        after = page[-1][0]


# ------------------------------------------------------------------------------------------------------ what is shown


class PlainLines:
    """For people: whose line it is, in brackets, as `pliant run` shows it, but never shortened."""

    def __init__(self) -> None:
        from pliant.agent.logs.capture import visible

        self._visible = visible
        self._names: dict[str, str] = {}

    def line(self, member: str, line: bytes) -> None:
        if member not in self._names:
            self._names[member] = click.style(f"[{member}]", fg=COLOURS[len(self._names) % len(COLOURS)])
        encoding = sys.stdout.encoding or "utf-8"
        text = f"{self._names[member]} {self._visible(line)}"
        click.echo(text.encode(encoding, "replace").decode(encoding))  # a terminal need not know every sign


class JsonLines:
    """For programs: the same objects as of `pliant run --json`."""

    def __init__(self) -> None:
        import msgspec

        self._encode = msgspec.json.encode

    def line(self, member: str, line: bytes) -> None:
        click.echo(self._encode({"worker": member, "line": line.decode("utf-8", "replace")}).decode())


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What of the logs that are there is to be shown at first."""

    member: str | None  # None: everybody; "": nobody yet
    lines: int | None
    follow: bool
    there: frozenset[str]  # members that run now

    def count(self, member: str) -> int | None:
        """How many of its last lines; None is all. Who follows wants to know what is, not what was."""
        if self.lines is not None or not self.follow:
            return self.lines
        return FOLLOW_LINES if member == self.member or member in self.there else 0


class _Show:
    """The logs in one place, and how far each was shown."""

    def __init__(self, place: Path, screen: PlainLines | JsonLines) -> None:
        self._place = place
        self._screen = screen
        self._tails: dict[str, Tail] = {}
        self._only: str | None = None

    def notes(self, job: str, known: _Known | None) -> None:
        """What is not to be seen here, on standard error."""
        from pliant.agent.logs.tail import logs_in

        here = logs_in(self._place)
        elsewhere = sorted({line.agent for line in known.status.members if line.id not in here}) if known else []
        if str(self._place) == os.devnull:
            click.echo(f"pliant: {job} keeps no logs here: it was started with --log-dir {os.devnull}.", err=True)
            return
        if not here:
            click.echo(f"pliant: No worker of {job} has written here yet: there is no log in {self._place}.", err=True)
        if elsewhere:
            click.echo(f"pliant: The logs of workers on {', '.join(elsewhere)} are there.", err=True)

    def begin(self, wanted: _Wanted) -> None:
        from pliant.agent.logs.tail import Tail, logs_in

        self._only = wanted.member
        for member, path in logs_in(self._place).items():
            self._tails[member] = tail = Tail(path)
            shown = tail.begin(wanted.count(member) if self._only in (None, member) else 0)
            self._lines(member, shown)
            if not wanted.follow:
                self._lines(member, tail.end())

    def only(self, member: str) -> None:
        """From now on this one, with all it wrote since the last look: it has the rank now."""
        if member != self._only:
            self.more()
            self._only = member

    def more(self) -> None:
        from pliant.agent.logs.tail import Tail, logs_in

        for member, path in logs_in(self._place).items():
            if member in self._tails:
                self._lines(member, self._tails[member].more())
            elif self._only in (None, member):
                self._tails[member] = tail = Tail(path)
                self._lines(member, tail.begin(None))

    def end(self) -> None:
        for member, tail in self._tails.items():
            self._lines(member, tail.end())

    def _lines(self, member: str, lines: Iterable[bytes]) -> None:
        for line in lines:  # also those that are not shown are read: what follows is what follows
            if self._only in (None, member):
                self._screen.line(member, line)
