"""What the environment says. The only reader of `os.environ`: whoever wants a variable asks here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pliant.errors import BadInput

DEFAULT_PORT = 7711
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
GRACE_S = 30.0
STALL_S = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The names everybody relies on; None and empty where nothing was said."""

    home: Path
    coordinators: tuple[str, ...]
    job: str | None
    token_file: Path | None
    stall_s: float = STALL_S  # how long launched workers may do nothing at all; 0: for ever

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
        stall_s=max(0.0, _number(env, "PLIANT_STALL_S", STALL_S)),
    )


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What an agent, or torchrun, says to a worker."""

    member: str | None
    agent: str | None
    address: str | None  # where peers reach it; None: where the coordinator's network sees it
    checkpoint_dir: str | None  # or a URL
    grace_s: float
    world_size: int  # torchrun's
    local_rank: int
    replay_to: int | None = None  # said by `pliant replay`
    replay_file: Path | None = None


def read_worker(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """Call when a worker starts. BadInput if a number is none."""
    env = os.environ if environ is None else environ
    checkpoint_dir = env.get("PLIANT_CHECKPOINT_DIR")
    replay_file = env.get("PLIANT_REPLAY_FILE")
    return WorkerSettings(
        member=env.get("PLIANT_MEMBER") or None,
        agent=env.get("PLIANT_AGENT") or None,
        address=env.get("PLIANT_ADDRESS") or None,
        checkpoint_dir=checkpoint_dir or None,
        grace_s=_number(env, "PLIANT_GRACE_S", GRACE_S),
        world_size=int(_number(env, "WORLD_SIZE", 1)),
        local_rank=int(_number(env, "LOCAL_RANK", 0)),
        replay_to=int(_number(env, "PLIANT_REPLAY_TO", 0)) if replay_file else None,
        replay_file=Path(replay_file) if replay_file else None,
    )


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    try:
        return float(text) if text else default
    except ValueError as error:
        raise BadInput(f"{name} must be a number, not {text!r}.") from error


def for_child(extra: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process to be started: ours, with this on top."""
    return {**(os.environ if environ is None else environ), **extra}


def become(environ: Mapping[str, str]) -> None:
    """Give this process that environment, and no other. For one that is to look as if it had just been started."""
    for name in [*os.environ]:
        if name not in environ:
            del os.environ[name]
    os.environ.update(environ)


def is_set(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether somebody chose a value for a variable that is not ours, so that we do not choose one."""
    return bool((os.environ if environ is None else environ).get(name))


def with_prefix(*prefixes: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables whose names begin so, with their whole names: those of programs whose place we take."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in env.items() if name.startswith(prefixes)}


def choose(name: str, value: str) -> None:
    """Set a variable that a library in this process reads, unless somebody chose a value for it."""
    os.environ.setdefault(name, value)


def _home(env: Mapping[str, str]) -> Path:
    if chosen := env.get("PLIANT_HOME"):
        return Path(chosen)
    if state := env.get("XDG_STATE_HOME"):
        return Path(state) / "pliant"
    return Path(env.get("HOME") or Path.home()) / ".local" / "state" / "pliant"


@dataclass(frozen=True, slots=True)
class TorchrunSettings:
    """Who a worker is in its launch, and where rank 0 listens."""

    rank: int
    world_size: int
    address: str
    port: int
    run_id: str


def read_torchrun(environ: Mapping[str, str] | None = None) -> TorchrunSettings:
    """Call when a worker starts that knows torchrun's variables alone; without them it is alone in its world."""
    env = os.environ if environ is None else environ
    return TorchrunSettings(
        rank=int(_number(env, "RANK", 0)),
        world_size=int(_number(env, "WORLD_SIZE", 1)),
        address=env.get("MASTER_ADDR") or "127.0.0.1",
        port=int(_number(env, "MASTER_PORT", 0)),
        run_id=env.get("TORCHELASTIC_RUN_ID") or "",
    )
