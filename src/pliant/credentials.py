"""Tokens in files: how they are made, written and read.

A token is `pliant_ID_SECRET`. The id may be shown and logged, the secret never: it goes from a file into a header and
nowhere else, and a coordinator keeps its hash. The secret has 256 random bits, so nobody can get from the hash
to the secret by guessing.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from pliant.errors import BadInput

_FORM = re.compile(r"pliant_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_FILE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Token:
    """A token; `id` for people, `secret` hidden from every repr."""

    id: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        return f"pliant_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """What is kept of it, in hexadecimal."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


def make_token() -> Token:
    """Call for a new one; nothing is kept of it here."""
    return Token(secrets.token_hex(6), secrets.token_urlsafe(32))


def parse_token(text: str) -> Token | None:
    """What `text` says, or None if it has not the form of a token."""
    form = _FORM.fullmatch(text)
    return Token(form[1], form[2]) if form else None


def read_token(path: Path) -> Token:
    """Call with a file that holds one token. BadInput says what to do if others may read it, or it is none."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_FILE_MAX)
    except FileNotFoundError:
        raise BadInput(
            f"There is no token at {path}. `pliant token create` makes one, on the machine that has one."
        ) from None
    except OSError as error:
        raise BadInput(f"The token at {path} cannot be read: {error.strerror}.") from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise BadInput(f"The token at {path} belongs to another user (uid {status.st_uid}), who knows it. Remove it.")
    if mode & 0o077:
        raise BadInput(f"Others may read the token at {path} (mode {mode:04o}). Run: chmod 600 {path}")
    token = parse_token(data.decode("ascii", "replace").strip())
    if token is None:
        raise BadInput(f"What is in {path} is no token of ours; one begins with `pliant_`.")
    return token


def write_token(path: Path, token: Token) -> None:
    """Put a token where only its owner can read it; what was there is replaced at once or not at all."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    _create(new, token)
    new.replace(path)


def own_token(path: Path) -> tuple[Token, bool]:
    """The token at `path`, made if there is none; True if it was. Two that start at once end up with the same one."""
    if path.exists():
        return read_token(path), False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise BadInput(f"A token cannot be written to {path.parent}: {error.strerror}.") from error
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    token = make_token()
    _create(new, token)
    try:
        os.link(new, path)  # fails if somebody else was quicker, where a rename would not
    except FileExistsError:
        return read_token(path), False
    finally:
        new.unlink()
    return token, True


def _create(path: Path, token: Token) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise BadInput(f"A token cannot be written to {path.parent}: {error.strerror}.") from error
    with os.fdopen(handle, "w") as file:
        file.write(token.text + "\n")
        file.flush()
        os.fsync(handle)
