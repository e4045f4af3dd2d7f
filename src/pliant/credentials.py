"""Tokens in files: how they are made, written and read, and whose the places are that are trusted with them.

A token is `pliant_ID_SECRET`. The id may be shown and logged, the secret never: it goes from a file into a header and
nowhere else, and a coordinator keeps its hash. The secret has 256 random bits, so nobody can get from the hash
to the secret by guessing.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def is_missing(path: Path) -> bool:
    """Whether there is surely nothing at `path`; False also where we may not look, and reading it will say so."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def check_own(path: Path, what: str) -> None:
    """Call before trusting what is at `path`. BadInput says what to do if somebody else put it there, or could.

    What is missing, or cannot be looked at, is for whoever opens it to say.
    """
    try:
        link, found = path.lstat(), path.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    for uid in (link.st_uid, found.st_uid):
        if uid not in (0, os.geteuid()):
            raise BadInput(
                f"{what} {path} belongs to another user (uid {uid}), who could let anybody in. Name another place. If "
                f"you trust what is in it, make it yours: chown {os.geteuid()} {path}"
            )
    if mode & 0o022:
        right = "700" if stat.S_ISDIR(found.st_mode) else "600"
        raise BadInput(
            f"{what} {path} may be written by others (mode {mode:04o}), who could let anybody in. Name another place. "
            f"If you trust what is in it, make it yours alone: chmod {right} {path}"
        )


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
    with _draft(path, token) as new:
        new.replace(path)


def own_token(path: Path) -> tuple[Token, bool]:
    """The token at `path`, made if there is none; True if it was. Two that start at once end up with the same one."""
    if not is_missing(path):
        return read_token(path), False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _unwritten(path, error) from error
    token = make_token()
    with _draft(path, token) as new:
        is_first = _name(new, path)
    return (token, True) if is_first else (read_token(path), False)


def _name(new: Path, path: Path) -> bool:
    """Give a file its name unless somebody else was quicker."""
    try:
        os.link(new, path)  # fails if the name is taken, where a rename would not
    except FileExistsError:
        return False
    except OSError:  # not every file system has hard links; then one at a time
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not is_missing(path):
                return False
            new.replace(path)
        finally:
            os.close(folder)
    return True


@contextmanager
def _draft(path: Path, token: Token) -> Iterator[Path]:
    """A whole file beside `path`, to be given its name; nothing of it is left. What the system refuses is BadInput."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _create(new, token)
        yield new
    except OSError as error:
        raise _unwritten(path, error) from error
    finally:
        with suppress(OSError):  # renamed by now, or never made
            new.unlink()


def _create(path: Path, token: Token) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(token.text + "\n")
        file.flush()
        os.fsync(handle)


def _unwritten(path: Path, error: OSError) -> BadInput:
    return BadInput(f"A token cannot be written to {path.parent}: {error.strerror}.")
