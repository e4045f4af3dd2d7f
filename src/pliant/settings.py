"""What the environment says. The only reader of `os.environ`: whoever wants a variable asks here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_PORT = 7711
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The names everybody relies on; None and empty where nothing was said."""

    home: Path
    coordinators: tuple[str, ...]
    job: str | None
    token_file: Path | None

    @property
    def own_token_file(self) -> Path:
        """Where a coordinator on this machine keeps the token it made at its first start."""
        return self.home / "token"


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Call when a command starts. Empty variables count as not set."""
    env = os.environ if environ is None else environ
    token_file = env.get("PLIANT_TOKEN_FILE")
    return Settings(
        home=_home(env),
        coordinators=tuple(url.strip() for url in env.get("PLIANT_COORDINATOR", "").split(",") if url.strip()),
        job=env.get("PLIANT_JOB") or None,
        token_file=Path(token_file) if token_file else None,
    )


def _home(env: Mapping[str, str]) -> Path:
    if chosen := env.get("PLIANT_HOME"):
        return Path(chosen)
    if state := env.get("XDG_STATE_HOME"):
        return Path(state) / "pliant"
    return Path(env.get("HOME") or Path.home()) / ".local" / "state" / "pliant"
