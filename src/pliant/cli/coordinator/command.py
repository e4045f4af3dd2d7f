"""`pliant coordinator`: run a coordinator as a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import __version__, settings
from pliant.cli.output import print_json, short_path
from pliant.cli.store_place import FORMS, StorePlace, open_archive, parse_store
from pliant.core.leases import LEASE_TTL_S
from pliant.credentials import check_ownership
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.coordinator.server import Address, Coordinator
    from pliant.coordinator.tls_listener import TlsListener
    from pliant.stores.base import Store

IDENTITY_SHOWN = 8
KEEP_ENDED_DAYS = 90.0
DAY_S = 86400.0


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
    metavar=FORMS,
    help="Store for the coordinator's decisions.  [default: sqlite:PLIANT_HOME/store.db]",
)
@click.option(
    "--expose",
    is_flag=True,
    help="Allow an address that other machines can reach. Needs --tls-cert, or --insecure.",
)
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="Certificate: serve https.")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Key of the certificate.")
@click.option(
    "--tls-client-ca",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Accept only clients with a certificate of this CA.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow --expose, and etcd on other machines, without TLS. Tokens and secrets cross the network in clear.",
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
@click.option(
    "--archive",
    "archive_text",
    metavar="DIR|URL",
    help="Folder or fsspec URL for old events of jobs.  [default: PATH.archive beside a SQLite store]",
)
@click.option(
    "--keep-ended",
    "keep_ended_days",
    metavar="DAYS",
    type=click.FloatRange(0),
    default=KEEP_ENDED_DAYS,
    show_default=True,
    help="Delete jobs this long after their end, but not their checkpoints; 0 keeps them.",
)
@click.option(
    "--accept-submissions",
    "submission_images",
    multiple=True,
    metavar="IMAGE",
    help="Accept jobs that use this image from tokens with scope submit; * stands for any characters. Repeatable.",
)
@click.option("--log-json", is_flag=True, help="Log JSON lines instead of text.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object when the coordinator is ready.")
def coordinator(
    listen: str,
    store_text: str | None,
    expose: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_client_ca: Path | None,
    insecure: bool,
    hosts: tuple[str, ...],
    advertise: str | None,
    lease_ttl_s: float,
    archive_text: str | None,
    keep_ended_days: float,
    submission_images: tuple[str, ...],
    log_json: bool,
    as_json: bool,
) -> None:
    """Run a coordinator until it is stopped.

    Ctrl-C or SIGTERM stops it: it answers open requests, closes all connections and exits with 0. A second signal stops
    it at once. Jobs go on without it, and the next start on the same store continues with them. Changed certificate
    files are loaded without a restart.
    """
    import uvloop

    from pliant.coordinator.server import Address, Coordinator, advertised_url, parse_address
    from pliant.coordinator.server import listen as bind
    from pliant.telemetry import configure_logging

    configured = settings.read()
    wanted = parse_address(listen)
    place = parse_store(store_text, configured.home, insecure=insecure)
    tls = _tls(tls_cert, tls_key, tls_client_ca, insecure=insecure)
    configure_logging(sys.stderr, as_json=log_json)
    with bind(wanted, expose=expose, encrypted=tls is not None or insecure) as bound:
        address = Address(wanted.host, bound.getsockname()[1], "http" if tls is None else "https")
        url = advertised_url(address, advertise)
        _make_home(configured.home)
        check_ownership(configured.home, "PLIANT_HOME")
        place.check()
        with place.open() as store:
            place.check()  # in a folder like /tmp another user may have replaced it meanwhile
            made = Coordinator(
                store,
                configured.own_token_file,
                (*hosts, address.host),
                lease_ttl_s,
                advertise=url,
                tls=tls,
                archive=open_archive(place, archive_text, store.identity),
                keep_ended_s=keep_ended_days * DAY_S or None,
                submission_images=submission_images,
            )
            ready = _ReadyMessage(made, store, place, address, configured.own_token_file)
            uvloop.run(made.serve(bound, ready.print_json if as_json else ready.print_text))


class _ReadyMessage:
    """The message that the coordinator is ready."""

    def __init__(self, made: Coordinator, store: Store, place: StorePlace, address: Address, token_file: Path) -> None:
        self._made = made
        self._store = store
        self._place = place
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
                "store": self._place.text,
                "identity": self._store.identity,
                "jobs": self._jobs,
                "leads": self._made.service.service.leads,
                "token_file": str(self._token_file),
                "token_made": self._made.made_token,
                "version": __version__,
            }
        )

    def print_text(self) -> None:
        leads = self._made.service.service.leads
        jobs = f", {self._jobs} {'job' if self._jobs == 1 else 'jobs'}" if leads else ""
        click.echo(f"Coordinator at {self._address.url} (process {os.getpid()})")
        click.echo(f"Store: {self._place.short_text} ({self._store.identity[:IDENTITY_SHOWN]}{jobs})")
        click.echo(f"Token: {short_path(self._token_file)} ({'created' if self._made.made_token else 'existing'})")
        if not self._place.is_lasting:
            click.echo(
                "Press Ctrl-C to stop. The store is in memory and lost at the end; --store sqlite:PATH keeps it."
            )
        elif leads:
            click.echo("Press Ctrl-C to stop. Jobs go on, and the next start continues with them.")
        else:
            click.echo(f"Press Ctrl-C to stop. This coordinator is a standby: {self._made.service.service.why}.")
            click.echo("It takes over when no other coordinator leads for this store.")


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None, *, insecure: bool) -> TlsListener | None:
    """Load the certificate; None without TLS."""
    from pliant.coordinator.tls_listener import ServerTls, TlsListener

    if cert is not None and key is not None:
        if insecure:
            raise click.UsageError("--insecure and --tls-cert cannot be combined.")
        return TlsListener(ServerTls(cert, key, client_ca))
    if cert is not None or key is not None:
        raise click.UsageError("--tls-cert and --tls-key belong together. Pass both, or neither.")
    if client_ca is not None:
        raise click.UsageError("--tls-client-ca needs --tls-cert and --tls-key.")
    return None


def _make_home(home: Path) -> None:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            f"PLIANT_HOME cannot be created at {home}: {error.strerror}. Set it to another folder."
        ) from error
