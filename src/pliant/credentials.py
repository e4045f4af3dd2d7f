"""Tokens and their files: create, write and read them, and check the ownership of the files.

A token is `pliant_ID_SECRET`. The id may be shown and logged, the secret never. The secret goes from a file into a
header and nowhere else, and a coordinator keeps only its hash. It has 256 random bits, so it cannot be guessed from the
hash.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import hmac
import os
import pwd
import re
import secrets
import stat
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pliant.errors import BadInput
from pliant.private_files import draft_of

_FORM = re.compile(r"pliant_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_FILE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Token:
    """A token. `repr` hides its secret. `file` is where it was read: a refused token may have been replaced there."""

    id: str
    secret: str = field(repr=False)
    file: Path | None = field(default=None, repr=False, compare=False)

    @property
    def text(self) -> str:
        return f"pliant_{self.id}_{self.secret}"

    @property
    def digest(self) -> str:
        """The hash that a coordinator stores, in hexadecimal."""
        return hashlib.sha256(self.secret.encode()).hexdigest()


def make_token() -> Token:
    """Return a new random token. It is not stored."""
    return Token(secrets.token_hex(6), secrets.token_urlsafe(32))


def parse_token(text: str) -> Token | None:
    """Parse a token; None if the text is not one."""
    form = _FORM.fullmatch(text)
    return Token(form[1], form[2]) if form else None


def proof(digest: str, nonce: str) -> str:
    """Return what only a process that has a token's digest can answer to a nonce, in hexadecimal.

    A coordinator has the digest of each of its tokens. Its answer shows a client that the token may be sent there.
    """
    return hmac.new(digest.encode(), b"pliant proof " + nonce.encode(), hashlib.sha256).hexdigest()


def is_missing(path: Path) -> bool:
    """Return whether there is certainly no file at `path`; False if that cannot be determined."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def check_ownership(path: Path, what: str) -> None:
    """Raise BadInput if another user owns the file or directory at `path`, or can write to it.

    A path that is missing or unreadable passes. Opening it fails later.
    """
    try:
        link, found = path.lstat(), path.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    for uid in (link.st_uid, found.st_uid):
        if uid not in (0, os.geteuid()):
            raise BadInput(
                f"{what} {path} belongs to another user (uid {uid}), who could grant access to others. Use another "
                f"path. If you trust its contents, make it yours: chown {os.geteuid()} {path}"
            )
    if mode & (0o002 if _is_private_group(found.st_gid) else 0o022):
        right = "700" if stat.S_ISDIR(found.st_mode) else "600"
        raise BadInput(
            f"Other users can write to {what} {path} (mode {mode:04o}) and could grant access. Use another path. "
            f"If you trust its contents, make it yours alone: chmod {right} {path}"
        )


def is_private(found: os.stat_result) -> bool:
    """Return whether only this process's user, and root, can open a file that has this status.

    Kubernetes gives the file of a Secret to root and to the pod's `fsGroup`, with mode 0440. It also makes every file
    on a volume readable and writable for that group.
    """
    mode = stat.S_IMODE(found.st_mode)
    if not mode & 0o077:
        return True
    if found.st_uid == 0 and not mode & ~0o440 and found.st_gid in _own_groups():
        return True
    return not mode & 0o007 and _is_private_group(found.st_gid)


def _own_groups() -> frozenset[int]:
    return frozenset((*os.getgroups(), os.getegid()))


def _is_private_group(gid: int) -> bool:
    """Return whether this process is in a group that no other user is in.

    That is a group without a name, such as the `fsGroup` of a pod, and the group that has its user's own name. The
    group of root is not private: containers often run other users in it.
    """
    if gid == 0 or gid not in _own_groups():
        return False
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return all(user.pw_uid == os.geteuid() for user in pwd.getpwall() if user.pw_gid == gid)
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name == name and not {*group.gr_mem} - {name}


def read_token(path: Path) -> Token:
    """Read a token from a file. Raises BadInput if there is none, or if other users can read it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_FILE_MAX)
    except FileNotFoundError:
        raise BadInput(
            f"The token file {path} does not exist. On the coordinator's machine, run `pliant token create --scope "
            "join --job JOB --out FILE`. Copy FILE here and pass it with --token-file."
        ) from None
    except OSError as error:
        raise BadInput(f"The token at {path} cannot be read: {error.strerror}.") from error
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid not in (0, os.geteuid()):
        raise BadInput(f"The token at {path} belongs to another user (uid {status.st_uid}), who can use it. Remove it.")
    if not is_private(status):
        raise BadInput(f"Other users can read the token at {path} (mode {mode:04o}). Run: chmod 600 {path}")
    token = parse_token(data.decode("ascii", "replace").strip())
    if token is None:
        raise BadInput(f"The contents of {path} are not a token; one begins with `pliant_`.")
    return replace(token, file=path.absolute())


def write_token(path: Path, token: Token) -> None:
    """Write a token to a file that only its owner can read. Replaces an existing file atomically."""
    try:
        with _draft(path, token) as new:
            new.replace(path)
    except OSError as error:
        raise _not_writable(path, error) from error


def read_or_create_token(path: Path) -> tuple[Token, bool]:
    """Return the token at `path`, and True if it was created now. Two processes that start at once get the same one."""
    if not is_missing(path):
        return read_token(path), False
    token = make_token()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _draft(path, token) as new:
            is_first = _link_if_first(new, path)
    except OSError as error:
        raise _not_writable(path, error) from error
    return (token, True) if is_first else (read_token(path), False)


def _link_if_first(new: Path, path: Path) -> bool:
    """Give a new file its final name unless another process was faster."""
    try:
        os.link(new, path)  # fails if the name exists, unlike a rename
    except FileExistsError:
        return False
    except OSError:  # without hard links, a lock on the folder serializes the processes
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not is_missing(path):
                return False
            new.replace(path)
        finally:
            os.close(folder)
    return True


def _draft(path: Path, token: Token) -> AbstractContextManager[Path]:
    return draft_of(path, f"{token.text}\n".encode())


def _not_writable(path: Path, error: OSError) -> BadInput:
    return BadInput(f"A token cannot be written to {path.parent}: {error.strerror}.")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The TLS files of a client: the CA that it trusts, and its own certificate and key. None where not given."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def all(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.ca_file, self.cert_file, self.key_file) if path is not None)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that give a child process the same files. An empty one counts as not set."""
        named = {"PLIANT_CA_FILE": self.ca_file, "PLIANT_CERT_FILE": self.cert_file, "PLIANT_KEY_FILE": self.key_file}
        return {name: "" if path is None else str(path.absolute()) for name, path in named.items()}

    def check_url(self, url: str) -> None:
        """Raise BadInput if a CA is given and the URL is not https: that would be a downgrade."""
        if self.ca_file is not None and not url.lower().startswith("https://"):
            raise BadInput(
                f"{url} is not encrypted, and the CA {self.ca_file} is given, so only https is accepted. Use https://, "
                "or unset PLIANT_CA_FILE for a coordinator without TLS."
            )


NO_TLS_FILES = TlsFiles()


@dataclass(frozen=True, slots=True)
class CoordinatorAddress:
    """The URLs of a coordinator, the file with a token for it, and the files for TLS."""

    urls: tuple[str, ...]
    token_file: Path
    tls: TlsFiles = NO_TLS_FILES

    def absolute(self) -> CoordinatorAddress:
        """Return the same files, for a process that changes its folder."""
        found = (self.tls.ca_file, self.tls.cert_file, self.tls.key_file)
        tls = TlsFiles(*(None if path is None else path.absolute() for path in found))
        return CoordinatorAddress(self.urls, self.token_file.absolute(), tls)
