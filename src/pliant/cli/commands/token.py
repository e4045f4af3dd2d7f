"""`pliant token`: make, list and end what lets people and machines in."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pliant.cli.connect import Flags, connection
from pliant.cli.output import clean, json_option, local_time, print_json, print_table
from pliant.credentials import Token, is_missing, parse_token, read_token, write_token
from pliant.errors import BadInput, PliantError

if TYPE_CHECKING:
    from pliant.client import Client
    from pliant.wire.api import TokenLine, TokenMade

DAY_S = 86400.0
REPLACES = "replaces "  # how the label of a token begins that took another one's place


@click.group()
def token() -> None:
    """Make, list and end tokens."""


@token.command()
@click.option("--scope", type=click.Choice(["join", "read", "admin"]), required=True, help="What it is good for.")
@click.option("--job", help="For this job alone.")
@click.option("--ttl-s", type=click.FloatRange(0, 36500 * DAY_S, min_open=True), help="It ends after so many seconds.")
@click.option("--days", type=click.FloatRange(0, 36500, min_open=True), help="It ends after so many days.")
@click.option("--label", default="", help="What to remember it by.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write it there, for its owner alone.")
@json_option
@connection
def create(
    scope: str,
    job: str | None,
    ttl_s: float | None,
    days: float | None,
    label: str,
    out: Path | None,
    flags: Flags,
    as_json: bool,
) -> None:
    """Make a token and print it, alone on standard output.

    This is the only time it is shown: the coordinator keeps a hash of it.
    """
    from pliant.wire.api import Scope, TokenWish

    if ttl_s is not None and days is not None:
        raise click.UsageError("Choose one of --ttl-s and --days.")
    if out is not None:
        _require_token_or_nothing(out)
    wish = TokenWish(Scope(scope), job, ttl_s if days is None else days * DAY_S, label)
    with flags.connect(job) as client:
        made = client.make_token(wish)
        if out is not None:
            _write(client, out, made)
    if as_json:
        secret = {"token": made.token} if out is None else {"file": str(out)}
        print_json({**secret, "line": made.line})
    elif out is None:
        _warn_of_readers()
        click.echo(made.token)
    else:
        click.echo(f"Token {made.line.id} is in {out}.")


@token.command("list")
@json_option
@connection
def list_tokens(flags: Flags, as_json: bool) -> None:
    """List the tokens, without what they open the door with."""
    with flags.connect() as client:
        lines = client.tokens()
    if as_json:
        print_json({"tokens": lines})
    else:
        heads = ("id", "scope", "job", "made", "ends", "label")
        print_table(heads, [_row(line) for line in lines])


@token.command()
@click.argument("token_id", metavar="ID")
@click.option("--force", is_flag=True, help="Even if it is the one this command asks with.")
@json_option
@connection
def revoke(token_id: str, force: bool, flags: Flags, as_json: bool) -> None:
    """End a token now."""
    if token_id == read_token(flags.place().token_file).id and not force:
        raise BadInput(
            f"{token_id} is the token you ask with; without it you are locked out. `pliant token rotate` puts another "
            "one in its place; --force revokes it all the same."
        )
    with flags.connect() as client:
        line = client.end_token(token_id)
    if as_json:
        print_json(line)
    else:
        click.echo(f"Token {line.id} has ended.")


@token.command()
@click.option(
    "--overlap-s", type=click.FloatRange(0), default=3600.0, show_default=True, help="How long the old one goes on."
)
@json_option
@connection
def rotate(overlap_s: float, flags: Flags, as_json: bool) -> None:
    """Put a new admin token into the token file; the old one ends after an overlap.

    It may be interrupted anywhere: the file always holds a token that is good, and another rotate ends what was left.
    """
    from pliant.wire.api import Scope, TokenWish

    path = flags.place().token_file
    old = read_token(path)
    with flags.connect() as client:
        left = [line for line in client.tokens() if not line.ended]
        made = client.make_token(TokenWish(Scope.ADMIN, label=f"{REPLACES}{old.id}"))
        write_token(path, _parsed(made))
    with flags.connect() as client:  # with the new one, which is thereby shown to work
        ended = client.end_token(old.id, overlap_s)
        for line in _left_behind(left, old):
            client.end_token(line.id, overlap_s)
    if as_json:
        print_json({"file": str(path), "line": made.line, "old": ended})
    else:
        click.echo(
            f"Token {made.line.id} is in {path}. The old one, {old.id}, ends at {local_time(ended.ends_at or 0)}."
        )


def _left_behind(lines: list[TokenLine], old: Token) -> list[TokenLine]:
    """What interrupted rotates left: made in place of `old` but never written down, or replaced by it but not ended."""
    mine = next((line.label for line in lines if line.id == old.id), "")
    replaced = mine.removeprefix(REPLACES) if mine.startswith(REPLACES) else ""
    return [
        line for line in lines if line.label == f"{REPLACES}{old.id}" or (line.id == replaced and line.ends_at is None)
    ]


def _require_token_or_nothing(path: Path) -> None:
    """Before a token is made: its file must not cost anybody another one."""
    if not is_missing(path):
        try:
            read_token(path)
        except BadInput as error:
            raise BadInput(f"{path} is there and holds no token; name another file. ({error.why})") from None
    if not path.parent.is_dir():
        raise BadInput(f"There is no directory {path.parent} to write a token to.")


def _write(client: Client, path: Path, made: TokenMade) -> None:
    try:
        write_token(path, _parsed(made))
    except (OSError, PliantError) as error:
        with suppress(PliantError):  # nobody has it, and it says so in the list
            client.end_token(made.line.id)
        raise BadInput(f"The token could not be written to {path}: {error}. It was ended again.") from error


def _parsed(made: TokenMade) -> Token:
    found = parse_token(made.token)
    if found is None:
        raise PliantError("the coordinator made a token that is none of ours; is it of a newer version?")
    return found


def _row(line: TokenLine) -> tuple[str, ...]:
    ends = "never" if line.ends_at is None else local_time(line.ends_at)
    ends = f"ended {ends}" if line.ended else ends
    return (line.id, line.scope.value, line.job or "all", local_time(line.made_at), ends, clean(line.label))


def _warn_of_readers() -> None:
    """Say on standard error who else will see what goes to standard output."""
    if sys.stdout.isatty():
        click.echo(
            "pliant: this is a secret, and it stays in your terminal's memory. --out FILE shows it to nobody.", err=True
        )
        return
    try:
        found = os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISREG(found.st_mode) and mode & 0o077:
        click.echo(
            f"pliant: others may read the file this goes to (mode {mode:04o}): chmod 600 it, or use --out FILE.",
            err=True,
        )
