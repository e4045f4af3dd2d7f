"""What may be written behind an option of `pliant run`: each function is about one of them."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import click

from pliant.errors import BadInput

ENDPOINT_PORT = 29400  # torchrun's
PORT_MAX = 65535
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # torchrun's

_AT_ONCE = "worlds form as soon as nobody else can be expected"
_LEASES = "leases say who is alive"
_IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "last_call_timeout": _AT_ONCE,
        "close_timeout": "a job that has ended is closed",
        "heartbeat_timeout": _LEASES,
        "keep_alive_interval": _LEASES,
        "keep_alive_max_attempt": _LEASES,
        "read_timeout": "a coordinator that does not answer is asked again",
        "store_type": "there is no such store here",
        "rank": "the coordinator hands out ranks",
    }
)
_WAIT = ("join_timeout", "timeout")
_YES, _NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")
CONF_KEYS = (*_WAIT, "is_host", *_IGNORED)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """HOST:PORT, where agents meet. Port 0: a free one, and nobody else is expected."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Conf:
    """What --rdzv-conf says that matters here, and what does not, with the reason."""

    wait_limit_s: float | None = None
    is_host: bool | None = None
    ignored: tuple[tuple[str, str], ...] = ()


def endpoint(text: str) -> Endpoint | None:
    """`HOST[:PORT]`, an IPv6 address in brackets; nothing means none."""
    if not text.strip():
        return None
    found = re.fullmatch(r"\[([^\[\]]+)\](?::(\d{1,5}))?|([\w.-]+)(?::(\d{1,5}))?", text.strip())
    port = None if found is None else found[2] or found[4]
    if found is None or int(port or 0) > PORT_MAX:
        raise click.BadParameter(f"{text!r} is not HOST or HOST:PORT, 10.0.0.5:29400 or [::1]:29400 for instance.")
    host = found[1] or found[3]
    if host in ("0.0.0.0", "::"):
        raise click.BadParameter(f"{host} is every address of a machine. Name the one that others reach it at.")
    return Endpoint(host, ENDPOINT_PORT if port is None else int(port))


def conf(text: str) -> Conf:
    """`KEY=VALUE,...`, torchrun's keys."""
    wait_limit_s, is_host, ignored = None, None, []
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in CONF_KEYS:
            raise click.BadParameter(f"there is no {key!r}; there are {', '.join(CONF_KEYS)}.")
        if not value:
            raise click.BadParameter(f"{key} has no value: it is {key}=VALUE.")
        if key in _IGNORED:
            ignored.append((key, _IGNORED[key]))
        elif key == "is_host":
            is_host = _truth(key, value)
        elif value.isdecimal() and int(value) > 0:
            wait_limit_s = float(value)
        else:
            raise click.BadParameter(f"{key} takes a number of seconds from 1 on, not {value!r}.")
    return Conf(wait_limit_s, is_host, tuple(ignored))


def _truth(key: str, value: str) -> bool:
    if value.lower() not in _YES + _NO:
        raise click.BadParameter(f"{key} is true or false, not {value!r}.")
    return value.lower() in _YES


def ranks(text: str) -> frozenset[int] | None:
    """`0,1,2`; nothing means all."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [""]:
        return None
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} is no list of local ranks, 0,1 for instance.")
    return frozenset(map(int, parts))


def filters(text: str) -> tuple[str, ...]:
    """`apple,orange`; two commas are one that is meant."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def signals(text: str) -> tuple[signal.Signals, ...]:
    """`SIGTERM,SIGUSR1`."""
    found = []
    for name in (part.strip() for part in text.split(",")):
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            raise click.BadParameter(
                f"{name!r} is no signal that can be handled; SIGTERM and SIGUSR1 are, for instance."
            )
        found.append(signal.Signals[name])
    return tuple(dict.fromkeys(found))


def modules(text: str) -> tuple[str, ...]:
    """`torch,numpy`; nothing means none."""
    names = [part.strip() for part in text.split(",")] if text.strip() else []
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise click.BadParameter(f"{name!r} is no module's name. Say for instance torch,numpy, or '' for none.")
    return tuple(names)


def every(text: str) -> tuple[int, float]:
    """`500` steps, or `90s`, `10m`, `2h`; `never`. As steps and seconds, of which one is 0."""
    found = re.fullmatch(r"(\d{1,9})(s|m|h)?", text.strip())
    if text.strip() == "never":
        return (0, 0.0)
    if found is None or not int(found[1]):
        raise click.BadParameter(f"{text!r} is neither a number of steps nor a time: 500, 90s, 10m, 2h or never.")
    if found[2] is None:
        return (int(found[1]), 0.0)
    return (0, float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]])


def notice(text: str) -> str:
    """`aws`, `gcp`, `azure`, `file:PATH` or `command:CMD`."""
    kind, colon, what = text.partition(":")
    if not (text in ("aws", "gcp", "azure") or (kind in ("file", "command") and colon and what)):
        raise click.BadParameter(f"{text!r} is not aws, gcp, azure, file:PATH or command:COMMAND.")
    return text


def place_of(job: str, where: str | None) -> str | None:
    """Where that job's checkpoints are, named from here and not from where a worker may go.

    Two jobs never share a folder: each would take the other's checkpoints for garbage of its own.
    """
    if where is None:
        return None
    text = where.removeprefix("file://")
    kind, _, rest = text.rpartition("://")
    if not text or (kind and not rest.strip("/")):
        raise BadInput(
            f"--checkpoint-dir {where!r} names no place: give a folder, or a URL such as s3://bucket/folder."
        )
    return f"{text.rstrip('/')}/{job}" if kind else str(Path(text).absolute() / job)
