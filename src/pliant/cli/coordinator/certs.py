"""`pliant certs`: make a CA of your own, and issue, renew and list certificates."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant import settings
from pliant.cli.output import json_option, local_time, print_json, print_table, short_path
from pliant.credentials import check_ownership
from pliant.tls import CA_DAYS, LEAF_DAYS

if TYPE_CHECKING:
    from pliant.certificates import Authority, CertificateInfo

RENEW_SHARE = 1 / 3  # `renew` without a name renews certificates with less of their lifetime left


@click.group()
def certs() -> None:
    """Make a CA of your own, and issue, renew and list certificates.

    The files are below PLIANT_HOME: ca/ca.pem and ca/ca.key, certs/NAME.pem and certs/NAME.key. Copy ca.pem to every
    machine, a certificate and its key to the one that uses it, and ca.key nowhere.
    """


@certs.command()
@click.option("--title", default="Pliant CA", show_default=True, help="Name of the CA in its certificate.")
@click.option("--days", type=float, default=CA_DAYS, show_default=True, metavar="D", help="Lifetime in days.")
@json_option
def init(title: str, days: float, as_json: bool) -> None:
    """Create the CA. It is never overwritten."""
    made = _authority().create(title, days)
    if as_json:
        print_json(asdict(made))
    else:
        click.echo(f"CA: {_path(made.cert_file)}, valid until {local_time(made.ends_at)}")
        click.echo(f"Key: {_path(made.key_file)} (keep it here, and a copy of it in a safe place)")


@certs.command()
@click.argument("name")
@click.option("--dns", multiple=True, metavar="HOST", help="Host name of a coordinator. Repeatable.")
@click.option("--ip", multiple=True, metavar="ADDRESS", help="Address of a coordinator. Repeatable.")
@click.option("--days", type=float, default=LEAF_DAYS, show_default=True, metavar="D", help="Lifetime in days.")
@json_option
def issue(name: str, dns: tuple[str, ...], ip: tuple[str, ...], days: float, as_json: bool) -> None:
    """Issue the certificate NAME.

    With --dns or --ip it is for a coordinator that clients reach there, and for clients. Without, it is for a client.
    """
    made = _authority().issue(name, dns, ip, days)
    if as_json:
        print_json(asdict(made))
    else:
        _tell(made, "issued")


@certs.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def renew(names: tuple[str, ...], as_json: bool) -> None:
    """Renew certificates: the same names and lifetime, a new key.

    Without NAME, those with less than a third of their lifetime left. Programs load the new files by themselves.
    """
    authority = _authority()
    chosen = names or tuple(info.name for info in authority.list() if _is_old(info))
    made = [authority.renew(name) for name in chosen]
    if as_json:
        print_json({"renewed": [asdict(info) for info in made]})
    elif not made:
        click.echo("No certificate needs to be renewed yet.")
    for info in [] if as_json else made:
        _tell(info, "renewed")


@certs.command("list")
@json_option
def list_certificates(as_json: bool) -> None:
    """List the CA and its certificates."""
    authority = _authority()
    ca, issued = authority.describe(), authority.list()
    if as_json:
        print_json({"ca": asdict(ca), "certificates": [asdict(info) for info in issued]})
    else:
        heads = ("name", "for", "valid until", "file")
        print_table(heads, [_row(ca, "signing"), *(_row(info, _purpose(info)) for info in issued)])


def _authority() -> Authority:
    from pliant.certificates import Authority

    home = settings.read().home
    check_ownership(home, "PLIANT_HOME")
    return Authority(home / "ca", home / "certs")


def _is_old(info: CertificateInfo) -> bool:
    return info.ends_at - time.time() < RENEW_SHARE * (info.ends_at - info.begins_at)


def _tell(info: CertificateInfo, done: str) -> None:
    click.echo(f"{info.name} is {done} for {_purpose(info)}, valid until {local_time(info.ends_at)}.")
    click.echo(f"Certificate: {_path(info.cert_file)}")
    click.echo(f"Key: {_path(info.key_file)}")


def _purpose(info: CertificateInfo) -> str:
    hosts = (*info.dns, *info.ip)
    return f"a coordinator at {', '.join(hosts)}" if hosts else "a client"


def _row(info: CertificateInfo, purpose: str) -> tuple[str, ...]:
    ended = time.time() > info.ends_at
    return (info.name, purpose, f"{'ended ' if ended else ''}{local_time(info.ends_at)}", _path(info.cert_file))


def _path(text: str) -> str:
    return short_path(Path(text))
