"""`pliant token`: create, list, revoke and rotate tokens."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection_options
from pliant.cli.output import clean, json_option, local_time, print_json, print_table
from pliant.credentials import Token, is_missing, parse_token, read_token, write_token
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.wire.api import CreatedToken, TokenLine

DAY_S = 86400.0
REPLACES = "replaces "  # prefix of the label of a token made by `rotate`


@click.group()
def token() -> None:
    """Create, list, revoke and rotate tokens."""


@token.command()
@click.option(
    "--scope", type=click.Choice(["join", "read", "submit", "admin"]), required=True, help="Rights of the token."
)
@click.option("--job", metavar="NAME", help="Restrict the token to this job.")
@click.option(
    "--ttl-s", type=click.FloatRange(0, 36500 * DAY_S, min_open=True), metavar="S", help="Lifetime in seconds."
)
@click.option("--days", type=click.FloatRange(0, 36500, min_open=True), metavar="D", help="Lifetime in days.")
@click.option("--cert", metavar="NAME", help="Accept the token only beside the client certificate NAME.")
@click.option("--label", default="", help="Description, shown in the list.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the token to FILE with mode 0600.")
@json_option
@connection_options
def create(
    scope: str,
    job: str | None,
    ttl_s: float | None,
    days: float | None,
    cert: str | None,
    label: str,
    out: Path | None,
    flags: Flags,
    as_json: bool,
) -> None:
    """Create a token and print it.

    The token is shown only now; the coordinator keeps a hash of it.
    """
    from pliant.wire.api import Scope, TokenRequest

    if ttl_s is not None and days is not None:
        raise click.UsageError("--ttl-s and --days cannot be combined.")
    if out is not None:
        _require_writable(out)
    wish = TokenRequest(Scope(scope), job, ttl_s if days is None else days * DAY_S, label, cert=cert)
    with flags.connect(job) as client:
        made = client.create_token(wish)
        if out is not None:
            _write_or_revoke(client, out, made)
    if as_json:
        secret = {"token": made.token} if out is None else {"file": str(out)}
        print_json({**secret, "line": made.line})
    elif out is None:
        _warn_if_exposed()
        click.echo(made.token)
    else:
        click.echo(f"Token {made.line.id} is in {out}.")


@token.command("list")
@json_option
@connection_options
def list_tokens(flags: Flags, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    with flags.connect() as client:
        lines = client.tokens()
    if as_json:
        print_json({"tokens": lines})
    else:
        heads = ("id", "scope", "job", "created", "expires", "certificate", "label")
        print_table(heads, [_row(line) for line in lines])


@token.command()
@click.argument("token_id", metavar="ID")
@click.option("--force", is_flag=True, help="Revoke even the token that this command uses.")
@json_option
@connection_options
def revoke(token_id: str, force: bool, flags: Flags, as_json: bool) -> None:
    """Revoke a token now."""
    if token_id == read_token(flags.resolve().token_file).id and not force:
        raise BadInput(
            f"{token_id} is the token that this command uses; revoking it would lock you out. Replace it with "
            "`pliant token rotate`, or pass --force."
        )
    with flags.connect() as client:
        line = client.expire_token(token_id)
    if as_json:
        print_json(line)
    else:
        click.echo(f"Token {line.id} is revoked.")


@token.command()
@click.option(
    "--overlap-s",
    metavar="S",
    type=click.FloatRange(0),
    default=3600.0,
    show_default=True,
    help="Seconds for which the old token stays valid.",
)
@json_option
@connection_options
def rotate(overlap_s: float, flags: Flags, as_json: bool) -> None:
    """Replace the admin token in the token file.

    The old token stays valid for the overlap. After an interruption the file still holds a valid token; run rotate
    again to end the leftover one.
    """
    from pliant.wire.api import Scope, TokenRequest

    path = flags.resolve().token_file
    old = read_token(path)
    with flags.connect() as client:
        left = [line for line in client.tokens() if not line.ended]
        made = client.create_token(TokenRequest(Scope.ADMIN, label=f"{REPLACES}{old.id}"))
        write_token(path, _parse_made(made))
    with flags.connect() as client:  # with the new token, which proves that it works
        ended = client.expire_token(old.id, overlap_s)
        for line in _rotation_leftovers(left, old):
            client.expire_token(line.id, overlap_s)
    if as_json:
        print_json({"file": str(path), "line": made.line, "old": ended})
    else:
        click.echo(
            f"Token {made.line.id} is in {path}. "
            f"The old token {old.id} is valid until {local_time(ended.ends_at or 0)}."
        )


def _rotation_leftovers(lines: list[TokenLine], old: Token) -> list[TokenLine]:
    """Return tokens that interrupted rotations left: made to replace `old`, or replaced by it and not ended."""
    mine = next((line.label for line in lines if line.id == old.id), "")
    replaced = mine.removeprefix(REPLACES) if mine.startswith(REPLACES) else ""
    return [
        line for line in lines if line.label == f"{REPLACES}{old.id}" or (line.id == replaced and line.ends_at is None)
    ]


def _require_writable(path: Path) -> None:
    """Refuse a path that holds anything but a token, before a token is made."""
    if not is_missing(path):
        try:
            read_token(path)
        except BadInput as error:
            raise BadInput(f"{path} exists and does not hold a token. Choose another file. ({error.why})") from None
    if not path.parent.is_dir():
        raise BadInput(f"The folder {path.parent} does not exist.")


def _write_or_revoke(client: Client, path: Path, made: CreatedToken) -> None:
    try:
        write_token(path, _parse_made(made))
    except (OSError, PliantError) as error:
        with suppress(PliantError):  # the list shows it as unused otherwise
            client.expire_token(made.line.id)
        raise BadInput(f"The token could not be written to {path}: {error}. It was revoked again.") from error


def _parse_made(made: CreatedToken) -> Token:
    found = parse_token(made.token)
    if found is None:
        raise PliantError(
            "The coordinator returned a token in an unknown format. It may run a newer version of Pliant."
        )
    return found


def _row(line: TokenLine) -> tuple[str, ...]:
    ends = "never" if line.ends_at is None else local_time(line.ends_at)
    ends = "with its job" if line.until_job_ends and line.ends_at is None else ends
    ends = f"ended {ends}" if line.ended else ends
    bound = line.cert or "any"
    return (line.id, line.scope.value, line.job or "all", local_time(line.made_at), ends, bound, clean(line.label))


def _warn_if_exposed() -> None:
    """Warn on standard error if other users can read what goes to standard output."""
    if sys.stdout.isatty():
        click.echo(
            "pliant: this secret stays in the terminal's scrollback. Use --out FILE to keep it off the screen.",
            err=True,
        )
        return
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISREG(found.st_mode) and mode & 0o077:
        click.echo(
            f"pliant: other users can read the output file (mode {mode:04o}). Run chmod 600 on it, or use --out FILE.",
            err=True,
        )
