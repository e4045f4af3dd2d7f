"""Look through everything that a run leaves and shows for secrets, and at the modes of its files."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from pliant.credentials import parse_token

FILE_MAX = 64 << 20


def secrets_in(*homes: Path) -> dict[str, Path]:
    """The secret of every token file below these homes, with its path."""
    found = {}
    for path in files_in(*homes):
        token = parse_token(path.read_bytes()[:200].decode("ascii", "replace").strip())
        if token is not None:
            found[token.secret] = path
    return found


def files_in(*homes: Path) -> list[Path]:
    return [path for home in homes for path in sorted(home.rglob("*")) if path.is_file() and not path.is_symlink()]


def commands_and_environments(pids: Iterable[int]) -> dict[str, bytes]:
    """The parts of processes that other users and tools can see."""
    found = {}
    for pid in pids:
        for name in ("cmdline", "environ"):
            try:
                found[f"/proc/{pid}/{name}"] = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue  # it is gone
    return found


def leaks(homes: Iterable[Path], texts: Mapping[str, bytes]) -> list[str]:
    """Return where a secret of a token file stands, other than in that file, and which files others can use.

    `texts` are what was printed, answered and seen in /proc, by where it was.
    """
    homes = list(homes)
    secrets = secrets_in(*homes)
    assert secrets, f"there is no token file in {homes}, so nothing was looked for"
    found = []
    for path in files_in(*homes):
        status, data = path.stat(), path.read_bytes()[:FILE_MAX]
        held = [of for secret, of in secrets.items() if secret.encode() in data and not _is_copy(path, secret)]
        found += [f"the secret of {of} is in {path}" for of in held]
        if stat.S_IMODE(status.st_mode) & 0o077 and _must_be_private(path):
            found.append(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}")
    for home in homes:
        for folder in (home, home / "jobs", *(home / "jobs").glob("*")):
            if folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) & 0o022:
                found.append(f"others can write to {folder}")
    for where, data in texts.items():
        found += [f"the secret of {of} is in {where}" for secret, of in secrets.items() if secret.encode() in data]
    return found


def _is_copy(path: Path, secret: str) -> bool:
    """Return whether a file is a token file itself, such as a copy for another machine."""
    token = parse_token(path.read_bytes()[:200].decode("ascii", "replace").strip())
    return token is not None and token.secret == secret


def _must_be_private(path: Path) -> bool:
    return "token" in path.name or path.name in ("endpoint.json", "command.json") or ".db" in path.name
