"""`pliant coordinator`: run a coordinator as a process of its own."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import __version__, settings
from pliant.cli.output import print_json, short_path
from pliant.core.leases import LEASE_TTL_S
from pliant.credentials import check_ownership
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.coordinator.server import Address, Coordinator
    from pliant.stores.base import Store

IDENTITY_SHOWN = 8


@click.command()
@click.option(
    "--listen",
    default=f"127.0.0.1:{settings.DEFAULT_PORT}",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on. Port 0 picks a free port.",
)
@click.option(
    "--store",
    "store_text",
    metavar="sqlite:PATH|memory:",
    help="Store for the coordinator's decisions.  [default: sqlite:PLIANT_HOME/store.db]",
)
@click.option(
    "--expose",
    is_flag=True,
    help="Allow an address that other machines can reach. Tokens cross that network unencrypted.",
)
@click.option(
    "--host", "hosts", multiple=True, metavar="NAME", help="Host name under which clients may connect. Repeatable."
)
@click.option(
    "--advertise",
    metavar="URL",
    help="URL under which clients of other coordinators reach this one while it leads.  [default: that of --listen]",
)
@click.option(
    "--lease-ttl-s",
    metavar="S",
    type=click.FloatRange(0.5, 3600.0),
    default=LEASE_TTL_S,
    show_default=True,
    help="Seconds without contact after which a worker is lost.",
)
@click.option("--log-json", is_flag=True, help="Log JSON lines instead of text.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object when the coordinator is ready.")
def coordinator(
    listen: str,
    store_text: str | None,
    expose: bool,
    hosts: tuple[str, ...],
    advertise: str | None,
    lease_ttl_s: float,
    log_json: bool,
    as_json: bool,
) -> None:
    """Run a coordinator until it is stopped.

    Ctrl-C or SIGTERM stops it: it answers open requests, closes all connections and exits with 0. A second signal stops
    it at once. Jobs go on without it, and the next start on the same store continues with them.
    """
    import uvloop

    from pliant.coordinator.server import Address, Coordinator, advertised_url, parse_address
    from pliant.coordinator.server import listen as bind
    from pliant.telemetry import configure_logging

    configured = settings.read()
    wanted = parse_address(listen)
    path = _store_path(store_text) if store_text is not None else configured.home / "store.db"
    configure_logging(sys.stderr, as_json=log_json)
    with bind(wanted, expose=expose) as bound:
        address = Address(wanted.host, bound.getsockname()[1])
        url = advertised_url(address, advertise)
        _make_home(configured.home)
        check_ownership(configured.home, "PLIANT_HOME")
        _check_store(path)
        with _open(path) as store:
            _check_store(path)  # in a folder like /tmp another user may have replaced it meanwhile
            made = Coordinator(store, configured.own_token_file, (*hosts, address.host), lease_ttl_s, advertise=url)
            ready = _ReadyMessage(made, store, path, address, configured.own_token_file)
            uvloop.run(made.serve(bound, ready.print_json if as_json else ready.print_text))


class _ReadyMessage:
    """The message that the coordinator is ready."""

    def __init__(self, made: Coordinator, store: Store, path: Path | None, address: Address, token_file: Path) -> None:
        self._made = made
        self._store = store
        self._path = path
        self._address = address
        self._token_file = token_file

    @property
    def _jobs(self) -> int:
        """The number of live jobs; 0 at a standby, which has none loaded."""
        return len(self._made.service.service.names())

    def print_json(self) -> None:
        print_json(
            {
                "url": self._address.url,
                "pid": os.getpid(),
                "store": "memory:" if self._path is None else f"sqlite:{self._path.absolute()}",
                "identity": self._store.identity,
                "jobs": self._jobs,
                "leads": self._made.service.service.leads,
                "token_file": str(self._token_file),
                "token_made": self._made.made_token,
                "version": __version__,
            }
        )

    def print_text(self) -> None:
        store = "memory:" if self._path is None else f"sqlite:{short_path(self._path)}"
        leads = self._made.service.service.leads
        jobs = f", {self._jobs} {'job' if self._jobs == 1 else 'jobs'}" if leads else ""
        click.echo(f"Coordinator at {self._address.url} (process {os.getpid()})")
        click.echo(f"Store: {store} ({self._store.identity[:IDENTITY_SHOWN]}{jobs})")
        click.echo(f"Token: {short_path(self._token_file)} ({'created' if self._made.made_token else 'existing'})")
        if self._path is None:
            click.echo(
                "Press Ctrl-C to stop. The store is in memory and lost at the end; --store sqlite:PATH keeps it."
            )
        elif leads:
            click.echo("Press Ctrl-C to stop. Jobs go on, and the next start continues with them.")
        else:
            click.echo(f"Press Ctrl-C to stop. This coordinator is a standby: {self._made.service.service.why}.")
            click.echo("It takes over when no other coordinator leads for this store.")


def _store_path(text: str) -> Path | None:
    """Return the file of a store; None for a store in memory."""
    kind, _, where = text.partition(":")
    if kind == "sqlite" and where:
        return Path(where).expanduser()
    if text == "memory:":
        return None
    raise BadInput(f"--store must be sqlite:PATH or memory:, not {text!r}.")


def _open(path: Path | None) -> AbstractContextManager[Store]:
    if path is None:
        from secrets import token_hex

        from pliant.stores.memory import MemoryStore

        return nullcontext(MemoryStore(token_hex(16)))
    from pliant.stores.sqlite import SqliteStore

    return SqliteStore(path)


def _check_store(path: Path | None) -> None:
    """Check the owner of the store's file and of the files beside it."""
    if path is not None:
        check_ownership(path, "The store")
        for end in ("-wal", "-shm", ".mark"):
            real = path.resolve()
            check_ownership(real.with_name(f"{real.name}{end}"), "The store's file")


def _make_home(home: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"PLIANT_HOME cannot be created at {home}: {error.strerror}. Set it to another folder."
        ) from error
