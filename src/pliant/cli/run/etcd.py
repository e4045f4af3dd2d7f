"""torchelastic's etcd: agents that name the same etcd cluster meet there, and no machine is special.

Each agent runs a coordinator whose store is in etcd. One of them leads, and the others stand by. torchelastic names the
cluster by a URL, `etcd://HOST:PORT/JOB?min_workers=1&max_workers=4`, and torchrun by `--rdzv-backend etcd` with
`--rdzv-endpoint HOST:PORT` and `--rdzv-id JOB`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

import click

if TYPE_CHECKING:
    from pliant.cli.run.plan import RunOptions

SCHEME = "etcd://"
KINDS = ("etcd", "etcd-v2")
PORT = 2379
_IGNORED = ("last_call_timeout",)
_FILES = {"cacert": "PLIANT_ETCD_CA_FILE", "cert": "PLIANT_ETCD_CERT_FILE", "key": "PLIANT_ETCD_KEY_FILE"}
_HOSTS = re.compile(r"[A-Za-z0-9_.,:\[\]-]+")
_COUNT = re.compile("[0-9]{1,9}")
_EXAMPLE = "etcd://10.0.0.5:2379/JOB?min_workers=1&max_workers=4"


@dataclass(frozen=True, slots=True)
class EtcdUrl:
    """The parts of torchelastic's URL. `machines` are the smallest and the largest number of agents."""

    hosts: str
    job: str = ""
    machines: tuple[int, int] | None = None
    prefix: str = ""
    wait_limit_s: float | None = None
    ignored: tuple[str, ...] = ()


def parse_etcd_url(text: str) -> EtcdUrl:
    """Parse a URL of torchelastic. Raises click.BadParameter for any other text."""
    try:
        parts = urlsplit(text)
        query = dict(
            parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), max_num_fields=16)
        )
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a URL such as {_EXAMPLE}: {error}.") from None
    if parts.scheme != "etcd" or not _HOSTS.fullmatch(parts.netloc) or parts.fragment:
        raise click.BadParameter(f"{text!r} is not a URL such as {_EXAMPLE}. Name no user: PLIANT_ETCD_USER does.")
    if used := [key for key in _FILES if key in query]:
        raise click.BadParameter(f"{used[0]} of an etcd URL is not read; set {_FILES[used[0]]} to the file.")
    known = {"min_workers", "max_workers", "timeout", "etcd_prefix", "protocol", *_IGNORED}
    if unknown := sorted(query.keys() - known):
        raise click.BadParameter(f"unknown key {unknown[0]!r} in an etcd URL; choose from {', '.join(sorted(known))}.")
    if query.get("protocol", "http") == "https":
        raise click.BadParameter("protocol=https of an etcd URL is not read; set PLIANT_ETCD_CA_FILE to etcd's CA.")
    return EtcdUrl(
        hosts=parts.netloc,
        job=parts.path.strip("/"),
        machines=_machines(query),
        prefix=query.get("etcd_prefix", "").strip("/"),
        wait_limit_s=_count(query, "timeout"),
        ignored=tuple(key for key in _IGNORED if key in query),
    )


def _machines(query: dict[str, str]) -> tuple[int, int] | None:
    low, high = _count(query, "min_workers"), _count(query, "max_workers")
    if low is None and high is None:
        return None
    return low or 1, high or max(low or 1, 1)


def _count(query: dict[str, str], key: str) -> int | None:
    if key not in query:
        return None
    if not _COUNT.fullmatch(query[key]) or not int(query[key]):
        raise click.BadParameter(f"{key} of an etcd URL must be a number from 1, not {query[key]!r}.")
    return int(query[key])


def apply_etcd(options: RunOptions) -> tuple[RunOptions, EtcdUrl | None]:
    """Return the options as if they named no etcd, with the job and the sizes of its URL, and the cluster."""
    from pliant.cli.run.option_types import RdzvConf

    endpoint = options.rdzv_endpoint
    if not isinstance(endpoint, EtcdUrl):
        if options.rdzv_kind not in KINDS:
            return options, None
        if endpoint is None:
            raise click.UsageError(
                f"--rdzv-backend {options.rdzv_kind} needs the address of etcd: --rdzv-endpoint HOST:{PORT}."
            )
        port = endpoint.port if endpoint.has_port else PORT
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        return replace(options, rdzv_kind=None, rdzv_endpoint=None), EtcdUrl(f"{host}:{port}")
    if options.rdzv_kind not in (None, *KINDS):
        raise click.UsageError(f"--rdzv-backend {options.rdzv_kind} and the URL {SCHEME}... cannot be combined.")
    conf = options.rdzv_conf or RdzvConf()
    return (
        replace(
            options,
            rdzv_kind=None,
            rdzv_endpoint=None,
            rdzv_id=options.rdzv_id or endpoint.job or None,
            nnodes=options.nnodes or endpoint.machines,
            rdzv_conf=replace(
                conf,
                wait_limit_s=conf.wait_limit_s or endpoint.wait_limit_s,
                ignored=(*conf.ignored, *endpoint.ignored),
            ),
        ),
        endpoint,
    )


def store_of(etcd: EtcdUrl, job: str) -> str:
    """Return the value of `pliant coordinator --store`. Each job has a prefix of its own."""
    return f"etcd:{etcd.hosts}/{etcd.prefix or 'pliant'}/{job}"


def listen_address(etcd: EtcdUrl) -> tuple[str, int]:
    """Return this machine's address on the way to etcd, where other agents reach it, with port 0 for a free one."""
    from pliant.client.addresses import local_address

    first = etcd.hosts.split(",")[0]
    return local_address(f"http://{first}" if first.rpartition(":")[2].isdecimal() else f"http://{first}:{PORT}"), 0
