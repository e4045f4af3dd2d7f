"""Parsers for the values of `pliant run` options. Each raises click.BadParameter for an invalid value."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import click

from pliant.cli.run.etcd import SCHEME, EtcdUrl, parse_etcd_url
from pliant.core.policy.schedule import Schedule
from pliant.errors import BadInput

ENDPOINT_PORT = 29400  # torchrun's
PORT_MAX = 65535
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's

_IGNORED_KEYS = (
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "read_timeout",
    "store_type",
    "rank",
)
_WAIT_KEYS = ("join_timeout", "timeout")
_TRUE, _FALSE = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")
COST_HELP = (
    "In a queue: the most that its slots may cost, by the pool's prices, or none. Then it waits, with its state saved."
)
DEADLINE_HELP = "In a queue: the time by which it should end, such as 2026-11-20T18:00Z, or none."
CONF_KEYS = (*_WAIT_KEYS, "is_host", *_IGNORED_KEYS)


@dataclass(frozen=True, slots=True)
class EndpointAddress:
    """HOST:PORT of a coordinator. Port 0 is a free port for this machine alone."""

    host: str
    port: int
    has_port: bool = field(default=True, compare=False)  # False: the text had none, and `port` is the default

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RdzvConf:
    """The keys of --rdzv-conf that have an effect, and the names of the others."""

    wait_limit_s: float | None = None
    is_host: bool | None = None
    ignored: tuple[str, ...] = ()


def parse_endpoint(text: str) -> EndpointAddress | EtcdUrl | None:
    """Parse `HOST[:PORT]`, with an IPv6 address in brackets, or torchelastic's URL of etcd. An empty text is None."""
    if not text.strip():
        return None
    if text.strip().startswith(SCHEME):
        return parse_etcd_url(text.strip())
    found = re.fullmatch(r"\[([^\[\]]+)\](?::(\d{1,5}))?|([\w.-]+)(?::(\d{1,5}))?", text.strip())
    port = None if found is None else found[2] or found[4]
    if found is None or int(port or 0) > PORT_MAX:
        raise click.BadParameter(f"{text!r} is not HOST or HOST:PORT, such as 10.0.0.5:29400 or [::1]:29400.")
    host = found[1] or found[3]
    if host in ("0.0.0.0", "::"):
        raise click.BadParameter(
            f"{host} is a wildcard address. Use an address at which other machines reach this one."
        )
    return EndpointAddress(host, ENDPOINT_PORT if port is None else int(port), port is not None)


def parse_rdzv_conf(text: str) -> RdzvConf:
    """Parse `KEY=VALUE,...` with torchrun's keys."""
    wait_limit_s, is_host, ignored = None, None, []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in CONF_KEYS:
            raise click.BadParameter(f"unknown key {key!r}; choose from {', '.join(CONF_KEYS)}.")
        if not value:
            raise click.BadParameter(f"{key} has no value; write {key}=VALUE.")
        if key in _IGNORED_KEYS:
            ignored.append(key)
        elif key == "is_host":
            is_host = _parse_bool(key, value)
        elif re.fullmatch("[0-9]{1,9}", value) and int(value) > 0:
            wait_limit_s = float(value)
        else:
            raise click.BadParameter(f"{key} must be a number of seconds, at least 1, not {value!r}.")
    return RdzvConf(wait_limit_s, is_host, tuple(ignored))


def _parse_bool(key: str, value: str) -> bool:
    if value.lower() not in _TRUE + _FALSE:
        raise click.BadParameter(f"{key} must be true or false, not {value!r}.")
    return value.lower() in _TRUE


def parse_ranks(text: str) -> frozenset[int] | None:
    """Parse `0,1,2`. An empty text means all ranks and is None."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        return None
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of local ranks, such as 0,1.")
    return frozenset(map(int, parts))


def parse_filters(text: str) -> tuple[str, ...]:
    """Parse `apple,orange`. Two commas stand for one comma in a word."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def parse_signals(text: str) -> tuple[signal.Signals, ...]:
    """Parse `SIGTERM,SIGUSR1`."""
    found = []
    for name in (part.strip() for part in text.split(",")):
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise click.BadParameter(f"{name!r} is not a signal that can be handled, such as SIGTERM or SIGUSR1.")
        found.append(signal.Signals[name])
    return tuple(dict.fromkeys(found))


def parse_modules(text: str) -> tuple[str, ...]:
    """Parse `torch,numpy`. An empty text means no module."""
    names = [part.strip() for part in text.split(",")] if text.strip() else []
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise click.BadParameter(f"{name!r} is not a module name. Pass a list such as torch,numpy, or '' for none.")
    return tuple(names)


def parse_interval(text: str) -> tuple[int, float]:
    """Parse `500` (steps), `90s`, `10m`, `2h` or `never`. Return steps and seconds, of which one is 0."""
    found = re.fullmatch(r"(\d{1,9})(s|m|h)?", text.strip())
    if text.strip() == "never":
        return (0, 0.0)
    if found is None or not int(found[1]):
        raise click.BadParameter(
            f"{text!r} is neither a number of steps nor a time. Use, for example, 500, 90s, 10m, 2h or never."
        )
    if found[2] is None:
        return (int(found[1]), 0.0)
    return (0, float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]])


def parse_schedule(text: str) -> Schedule:
    """Parse `0:2,1000:8`, workers by the step from which they are wanted, or `none`."""
    if text.strip() == "none":
        return ()
    found = [re.fullmatch(r"(\d{1,15}):(\d{1,9})", part.strip()) for part in text.split(",")]
    entries = [(int(each[1]), int(each[2])) for each in found if each is not None]
    if len(entries) < len(found):
        raise click.BadParameter(f"{text!r} is not a list of STEP:WORKERS, such as 0:2,1000:8, or none.")
    return tuple(entries)


def parse_cost(text: str) -> float:
    """Parse a cost limit above 0; `none` is 0."""
    if text.strip() == "none":
        return 0.0
    if not re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text.strip()) or not float(text):
        raise click.BadParameter(f"{text!r} is not a number above 0, such as 40 or 12.50, or none.")
    return float(text)


def parse_deadline(text: str) -> float:
    """Parse a time with its zone; `none` is 0."""
    if text.strip() == "none":
        return 0.0
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time such as 2026-11-20T18:00Z, or none.") from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{text} has no time zone: add Z for UTC, or +01:00.")
    return at.timestamp()


def parse_notice(text: str) -> str:
    """Check a source: `aws`, `gcp`, `azure`, `file:PATH` or `command:CMD`."""
    kind, colon, what = text.partition(":")
    if not (text in ("aws", "gcp", "azure") or (kind in ("file", "command") and colon and what)):
        raise click.BadParameter(f"{text!r} is not aws, gcp, azure, file:PATH or command:COMMAND.")
    return text


def checkpoint_place(job: str, where: str | None) -> str | None:
    """Return the place of the job's checkpoints, as an absolute path or a URL.

    Each job has a folder of its own, because a job removes checkpoints in its folder that it does not know.
    """
    if where is None:
        return None
    text = where.removeprefix("file://")
    kind, _, rest = text.rpartition("://")
    if not text or (kind and not rest.strip("/")):
        raise BadInput(
            f"--checkpoint-dir {where!r} is not a place. Give a folder, or a URL such as s3://bucket/folder."
        )
    return f"{text.rstrip('/')}/{job}" if kind else str(Path(text).absolute() / job)
