"""Which coordinator a command asks, and with which token: flags, then the environment, then files, then defaults.

A job that `pliant run` kept on this machine has a coordinator of its own only as long as that runs. Later a command
starts one on the job's store, for as long as it takes: everything is asked in one way, whether the job runs or not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pliant import settings
from pliant.agent.job_dir import LOOKER, Folder
from pliant.core.model.names import bad_name
from pliant.credentials import is_missing, read_token
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.client import Client

PATIENCE_S = 3.0  # a coordinator that starts again is back by then; a person should not wait longer for a "no"
COMPLETE_S = 1.0
LOOKERS_S = 20.0  # how long others may look at a job that nobody runs before it is our turn
PROGRAM = (sys.executable, "-P", "-c", "from pliant.cli.main import main; main()")
"""This program, whatever it was started as; and nothing of the folder it is started in is taken for a part of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to ask, and which file holds the token."""

    urls: tuple[str, ...]
    token_file: Path


@dataclass(frozen=True, slots=True)
class Flags:
    """What the command line says about it."""

    urls: tuple[str, ...] = ()
    token_file: Path | None = None

    def place(self, job: str | None = None) -> Place:
        """Look everything up, for a command that names this job."""
        said = settings.read()
        urls, token_file = self.urls or said.coordinators, self.token_file or said.token_file
        if not urls and job is not None and (written := Folder(said.home / "jobs" / job).read_endpoint()):
            urls, token_file = (written.url,), token_file or written.token_file
        return Place(urls or (settings.DEFAULT_URL,), token_file or said.own_token_file)

    def asleep(self, job: str | None) -> Folder | None:
        """The folder of a job that was run on this machine and is not now, if that is where to look."""
        said = settings.read()
        if job is None or self.urls or said.coordinators:
            return None
        folder = Folder(said.home / "jobs" / job)
        return folder if folder.store.exists() and not folder.is_run() else None

    @contextmanager
    def connect(self, job: str | None = None, patience_s: float = PATIENCE_S) -> Iterator[Client]:
        """A client for a block."""
        from pliant.client import Client

        if (folder := self.asleep(job)) is not None:
            from pliant.agent.coordinator.child import kept

            with folder.lock(LOOKER, LOOKERS_S), kept(folder, PROGRAM) as url:
                token = read_token(self.token_file or folder.token)
                with Client([url], token, patience_s=patience_s) as client:
                    yield client
            return
        place = self.place(job)
        if place.token_file == settings.read().own_token_file and is_missing(place.token_file):
            raise BadInput(
                f"There is no token at {place.token_file}. `pliant coordinator` makes one when it first starts here; "
                "for a coordinator elsewhere bring one, and name its file with --token-file."
            )
        with Client(place.urls, read_token(place.token_file), patience_s=patience_s) as client:
            yield client


def connection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command --coordinator and --token-file; it is called with `flags`."""

    @click.option(
        "--coordinator", "coordinator_urls", multiple=True, metavar="URL", help="Whom to ask. May be given repeatedly."
    )
    @click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="The token to ask with.")
    @wraps(command)
    def with_flags(coordinator_urls: tuple[str, ...], token_file: Path | None, **rest: Any) -> Any:
        urls = tuple(url.strip() for text in coordinator_urls for url in text.split(",") if url.strip())
        if coordinator_urls and not urls:
            raise click.UsageError("--coordinator takes a URL, http://127.0.0.1:7711 for instance.")
        return command(flags=Flags(urls, token_file), **rest)

    return with_flags


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the argument JOB; without one, PLIANT_JOB is meant. It is called with `job`."""
    return click.argument("job", required=False, metavar="JOB", shell_complete=complete_jobs)(command)


def the_job(name: str | None) -> str:
    """The job that is meant, if it can be one."""
    chosen = name if name is not None else settings.read().job
    if chosen is None:
        raise click.UsageError("Which job? Name it, or set PLIANT_JOB.")
    if wrong := bad_name(chosen):
        raise BadInput(f"That is no job's name: {wrong}.")
    return chosen


def job_and(first: str | None, second: str | None) -> tuple[str, str | None]:
    """For commands that take JOB and something more: with PLIANT_JOB set, one argument is the something."""
    if first is not None and second is None and settings.read().job is not None:
        return the_job(None), first
    return the_job(first), second


def complete_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names for the shell to offer. Whatever goes wrong, a shell must not be kept waiting, nor written to."""
    import signal

    import pliant.client  # noqa: F401  # before the time runs: on a busy machine an import takes most of it

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, COMPLETE_S)
    try:
        given = ctx.params
        flags = Flags(tuple(given.get("coordinator_urls") or ()), given.get("token_file"))
        with flags.connect(patience_s=0.0) as client:
            return [line.name for line in client.jobs() if line.name.startswith(incomplete)]
    except Exception:  # why: a key was pressed, not a command given; there is nobody to tell
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
