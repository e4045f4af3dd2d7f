"""Find the coordinator and the token of a command: options, then the environment, then files, then defaults.

A job that `pliant run` started has its own coordinator only while `pliant run` runs. Afterwards a command starts a
coordinator on the job's store for as long as the command takes. So every command works whether the job runs or not.
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
from pliant.agent.job_dir import LOOKER, JobDir
from pliant.cli.local_jobs import LOOKERS_S, job_dir, job_names, no_job
from pliant.core.messages.rejection import Code
from pliant.core.model.names import bad_name
from pliant.credentials import CoordinatorAddress, TlsFiles, check_ownership, is_missing, read_token
from pliant.errors import BadInput, PliantError, Refused

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.core.messages import Event

PATIENCE_S = 3.0  # long enough for a coordinator to restart, short enough for a person to wait
COMPLETE_S = 1.0
PAGE = 1000
PROGRAM = (sys.executable, "-P", "-c", "from pliant.cli.main import main; main()")
"""The command that starts this program again. `-P` keeps the current folder off the module path."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of --coordinator, --token-file and --ca-file."""

    urls: tuple[str, ...] = ()
    token_file: Path | None = None
    ca_file: Path | None = None

    def resolve(self, job: str | None = None) -> CoordinatorAddress:
        """Return the coordinator of this job: options, environment, the job's folder, defaults."""
        configured = settings.read()
        urls, token_file = self.urls or configured.coordinators, self.token_file or configured.token_file
        tls = self.tls
        if not urls and job is not None and (written := job_dir(job).read_endpoint()):
            urls, token_file = (written.url,), token_file or written.token_file
            tls = written.tls(tls)
        default = settings.DEFAULT_URL if tls.ca_file is None else settings.DEFAULT_TLS_URL
        return CoordinatorAddress(urls or (default,), token_file or configured.own_token_file, tls)

    @property
    def tls(self) -> TlsFiles:
        """The files for TLS, from the option and the environment."""
        configured = settings.read()
        return TlsFiles(self.ca_file or configured.ca_file, configured.cert_file, configured.key_file)

    @property
    def names_coordinator(self) -> bool:
        """True if the options or the environment name a coordinator."""
        return bool(self.urls or settings.read().coordinators)

    @property
    def names_token(self) -> bool:
        """True if the options or the environment name a token."""
        return self.token_file is not None or settings.read().token_file is not None

    def stopped_job(self, job: str | None) -> JobDir | None:
        """Return the folder of a job that ran on this machine and does not run now, unless a coordinator is named."""
        if job is None or self.names_coordinator:
            return None
        folder = job_dir(job)
        return folder if folder.store.exists() and not folder.is_run() else None

    @contextmanager
    def connect(self, job: str | None = None, patience_s: float = PATIENCE_S) -> Iterator[Client]:
        """Yield a client for the job's coordinator."""
        from pliant.client import Client

        if (folder := self.stopped_job(job)) is not None:
            from pliant.agent.coordinator.child import temporary_coordinator

            with folder.lock(LOOKER, LOOKERS_S), temporary_coordinator(folder, PROGRAM) as url:
                token = read_token(self.token_file or folder.token)
                with Client([url], token, patience_s=patience_s) as client:
                    yield client
            return
        address = self.resolve(job)
        configured = settings.read()
        if address.token_file == configured.own_token_file:
            check_ownership(configured.home, "PLIANT_HOME")
            if is_missing(address.token_file):
                raise self._no_token(job, address)
        with Client(address.urls, read_token(address.token_file), patience_s=patience_s, tls=address.tls) as client:
            try:
                yield client
            except Refused as error:
                if error.code != Code.NO_JOB or job is None:
                    raise
                raise self._no_job(client, job, address) from error

    def _no_token(self, job: str | None, address: CoordinatorAddress) -> PliantError:
        """Return the error for a missing token: without a coordinator here, the job is unknown or runs elsewhere."""
        if job is None or self.names_coordinator:
            return BadInput(
                f"{address.token_file} does not exist. `pliant coordinator` creates it at its first start. For a "
                "coordinator on another machine, copy a token here and pass its file with --token-file."
            )
        if job in job_names():
            return BadInput(
                f"The coordinator of job {job} is on another machine, or belongs to another user. Pass its address "
                "with --coordinator and a token with --token-file."
            )
        return no_job(job, job_names())

    def _no_job(self, client: Client, job: str, address: CoordinatorAddress) -> Refused:
        """Return the error for a job that the coordinator does not have, with the jobs that it has."""
        local = [] if self.names_coordinator else job_names()
        try:
            names = {*local, *(line.name for line in client.jobs())}
        except PliantError:  # the token may be for one job only
            names = set(local)
        return no_job(job, sorted(names), "here" if local else f"at {', '.join(address.urls)}")


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --coordinator, --token-file and --ca-file to a command, which is called with `flags`."""

    @click.option(
        "--coordinator", "coordinator_urls", multiple=True, metavar="URL", help="URL of the coordinator. Repeatable."
    )
    @click.option("--token-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the token.")
    @click.option(
        "--ca-file", type=click.Path(path_type=Path), metavar="FILE", help="Certificate of the coordinator's CA."
    )
    @wraps(command)
    def with_flags(
        coordinator_urls: tuple[str, ...], token_file: Path | None, ca_file: Path | None, **rest: Any
    ) -> Any:
        urls = tuple(url.strip() for text in coordinator_urls for url in text.split(",") if url.strip())
        if coordinator_urls and not urls:
            raise click.UsageError("--coordinator must be a URL, such as http://127.0.0.1:7711.")
        return command(flags=Flags(urls, token_file, ca_file), **rest)

    return with_flags


def read_events(client: Client, job: str, after: int = 0) -> Iterator[tuple[int, Event]]:
    """Yield the events of a job after a revision, each with its revision, page by page."""
    while page := client.events(job, after, PAGE):
        yield from page
        after = page[-1][0]


def job_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument JOB to a command, with PLIANT_JOB as default. The command is called with `job`."""
    return click.argument("job", required=False, metavar="JOB", shell_complete=complete_jobs)(command)


def resolve_job(name: str | None) -> str:
    """Return the job's name from the argument or PLIANT_JOB. Raise an error if it is missing or invalid."""
    chosen = name if name is not None else settings.read().job
    if chosen is None:
        raise click.UsageError("No job given. Pass JOB or set PLIANT_JOB.")
    if wrong := bad_name(chosen):
        raise BadInput(f"Invalid job name: {wrong}.")
    return chosen


def resolve_job_and_argument(first: str | None, second: str | None) -> tuple[str, str | None]:
    """Return JOB and a second argument. With PLIANT_JOB set, a single argument is the second one."""
    if first is not None and second is None and settings.read().job is not None:
        return resolve_job(None), first
    return resolve_job(first), second


def complete_jobs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return job names for shell completion: those of this machine, and those of its coordinator."""
    given = ctx.params
    flags = Flags(tuple(given.get("coordinator_urls") or ()), given.get("token_file"), given.get("ca_file"))
    try:
        local = [] if flags.names_coordinator else job_names()
    except PliantError:
        local = []
    return sorted(name for name in {*local, *_coordinator_jobs(flags)} if name.startswith(incomplete))


def _coordinator_jobs(flags: Flags) -> list[str]:
    """Return the jobs of the coordinator. Errors and delays must not disturb the shell."""
    if not (flags.names_coordinator or flags.names_token) and is_missing(settings.read().own_token_file):
        return []
    import signal

    import pliant.client  # noqa: F401  # before the timer starts, since the import may take long on a busy machine

    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, COMPLETE_S)
    try:
        with flags.connect(patience_s=0.0) as client:
            return [line.name for line in client.jobs()]
    except Exception:  # why: completion must not print errors into the shell
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
