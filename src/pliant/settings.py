"""Settings from the environment. Only this module reads `os.environ`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pliant.errors import BadInput

DEFAULT_PORT = 7711
DEFAULT_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
DEFAULT_TLS_URL = f"https://127.0.0.1:{DEFAULT_PORT}"  # if a CA is given
GRACE_S = 30.0
STALL_S = 300.0

# Variables of a launch: its first workers have them, and replacements, which join a live job, do not.
LAUNCH_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of every command; None or empty where a variable is not set."""

    home: Path
    coordinators: tuple[str, ...]
    job: str | None
    token_file: Path | None
    stall_s: float = STALL_S  # how long launched workers may be idle; 0 for ever
    ca_file: Path | None = None  # TLS: the CA that clients trust, and their own certificate and key
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def own_token_file(self) -> Path:
        """The file of the token that a coordinator on this machine creates at its first start."""
        return self.home / "token"


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings of a command. Empty variables count as not set."""
    env = os.environ if environ is None else environ
    token_file = env.get("PLIANT_TOKEN_FILE")
    ca_file, cert_file, key_file = (env.get(f"PLIANT_{name}_FILE") for name in ("CA", "CERT", "KEY"))
    return Settings(
        home=_home(env),
        coordinators=tuple(url.strip() for url in env.get("PLIANT_COORDINATOR", "").split(",") if url.strip()),
        job=env.get("PLIANT_JOB") or None,
        token_file=Path(token_file) if token_file else None,
        stall_s=max(0.0, _number(env, "PLIANT_STALL_S", STALL_S)),
        ca_file=Path(ca_file) if ca_file else None,
        cert_file=Path(cert_file) if cert_file else None,
        key_file=Path(key_file) if key_file else None,
    )


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings that an agent, or torchrun, gives to a worker."""

    member: str | None
    agent: str | None
    role: str | None  # the only role of an agent's launched workers; None for any
    address: str | None  # at which peers reach it; None for the address of the route to the coordinator
    checkpoint_dir: str | None  # or a URL
    grace_s: float
    world_size: int  # as torchrun sets it
    local_rank: int
    may_share_gpu: bool = False  # several NCCL ranks on one GPU
    override_through: int | None = None  # generation; older checkpoints get the script's hyperparameters
    replay_to: int | None = None  # set by `pliant replay`
    replay_file: Path | None = None


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The credentials for an etcd cluster; None where a variable is not set."""

    user: str | None
    password_file: Path | None
    ca_file: Path | None
    cert_file: Path | None
    key_file: Path | None


def read_etcd(environ: Mapping[str, str] | None = None) -> EtcdSettings:
    """Read the credentials for etcd. Empty variables count as not set."""
    env = os.environ if environ is None else environ

    def file(name: str) -> Path | None:
        text = env.get(name)
        return Path(text) if text else None

    return EtcdSettings(
        user=env.get("PLIANT_ETCD_USER") or None,
        password_file=file("PLIANT_ETCD_PASSWORD_FILE"),
        ca_file=file("PLIANT_ETCD_CA_FILE"),
        cert_file=file("PLIANT_ETCD_CERT_FILE"),
        key_file=file("PLIANT_ETCD_KEY_FILE"),
    )


def read_worker(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """Read the settings of a worker. Raises BadInput for an invalid number."""
    env = os.environ if environ is None else environ
    checkpoint_dir = env.get("PLIANT_CHECKPOINT_DIR")
    replay_file = env.get("PLIANT_REPLAY_FILE")
    return WorkerSettings(
        member=env.get("PLIANT_MEMBER") or None,
        agent=env.get("PLIANT_AGENT") or None,
        role=env.get("PLIANT_ROLE") or None,
        address=env.get("PLIANT_ADDRESS") or None,
        checkpoint_dir=checkpoint_dir or None,
        grace_s=_number(env, "PLIANT_GRACE_S", GRACE_S),
        world_size=_whole_number(env, "WORLD_SIZE", 1),
        local_rank=_whole_number(env, "LOCAL_RANK", 0),
        may_share_gpu=env.get("NCCL_MULTI_RANK_GPU_ENABLE", "0") not in ("", "0"),
        override_through=_whole_number(env, "PLIANT_OVERRIDE", 0) if env.get("PLIANT_OVERRIDE") else None,
        replay_to=_whole_number(env, "PLIANT_REPLAY_TO", 0) if replay_file else None,
        replay_file=Path(replay_file) if replay_file else None,
    )


def set_defaults(variables: Mapping[str, str]) -> None:
    """Set variables that a library reads in this process, unless the user has set them."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)


def _number(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    try:
        number = float(text) if text else default
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInput(f"{name} must be a number, got {text!r}.")
    return number


def _whole_number(env: Mapping[str, str], name: str, default: int) -> int:
    return int(_number(env, name, default))


def child_environment(extra: Mapping[str, str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment for a child process: this one with `extra` added."""
    return {**(os.environ if environ is None else environ), **extra}


def replace_environment(environ: Mapping[str, str]) -> None:
    """Replace the environment of this process, so that it looks newly started."""
    for name in [*os.environ]:
        if name not in environ:
            del os.environ[name]
    os.environ.update(environ)


def forget_launch() -> None:
    """Remove the variables of a launch, so that the workers of a live job all have the same environment."""
    for name in LAUNCH_VARIABLES:
        os.environ.pop(name, None)


def is_set(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the user set a variable of another program, which Pliant then leaves alone."""
    return bool((os.environ if environ is None else environ).get(name))


def with_prefix(*prefixes: str, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables whose names start with a prefix: those of programs that Pliant replaces."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in env.items() if name.startswith(prefixes)}


def set_default(name: str, value: str) -> None:
    """Set a variable that a library in this process reads, unless the user has set it."""
    os.environ.setdefault(name, value)


def _home(env: Mapping[str, str]) -> Path:
    if chosen := env.get("PLIANT_HOME"):
        return Path(chosen)
    if state := env.get("XDG_STATE_HOME"):
        return Path(state) / "pliant"
    return Path(env.get("HOME") or Path.home()) / ".local" / "state" / "pliant"


@dataclass(frozen=True, slots=True)
class TorchrunSettings:
    """The rank of a worker in its launch, and the address of rank 0."""

    rank: int
    world_size: int
    address: str
    port: int
    run_id: str


def read_torchrun(environ: Mapping[str, str] | None = None) -> TorchrunSettings:
    """Read the settings of a worker that has only torchrun's variables. Without them it is alone in its world."""
    env = os.environ if environ is None else environ
    return TorchrunSettings(
        rank=_whole_number(env, "RANK", 0),
        world_size=_whole_number(env, "WORLD_SIZE", 1),
        address=env.get("MASTER_ADDR") or "127.0.0.1",
        port=_whole_number(env, "MASTER_PORT", 0),
        run_id=env.get("TORCHELASTIC_RUN_ID") or "",
    )
