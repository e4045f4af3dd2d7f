"""Parsers of texts that people and schedulers write: variables of the environment and options."""

from __future__ import annotations

from collections.abc import Callable

import click

from fuzz.parser import Parser
from pliant import settings
from pliant.agent.logs.capture import StreamMask
from pliant.chaos.plan import parse_kinds
from pliant.cli.run import option_types as options
from pliant.cli.run.etcd import parse_etcd_url
from pliant.coordinator.server import parse_address
from pliant.errors import BadInput
from pliant.stores.etcd import parse_place

BAD = (click.BadParameter, BadInput)


def text(name: str, parse: Callable[[str], object], *corpus: str) -> Parser:
    return Parser(
        name, lambda data: parse(data.decode("utf-8", "replace")), lambda: [each.encode() for each in corpus], BAD
    )


def environment(read: Callable[[dict[str, str]], object]) -> Callable[[str], object]:
    """Read an environment with a `NAME=VALUE` on each line."""

    def parse(lines: str) -> object:
        return read(dict(line.partition("=")[::2] for line in lines.split("\n")))

    return parse


WORKER = "\n".join(
    (
        "WORLD_SIZE=2",
        "LOCAL_RANK=0",
        "RANK=1",
        "MASTER_PORT=29500",
        "PLIANT_GRACE_S=30",
        "PLIANT_OVERRIDE=3",
        "PLIANT_REPLAY_FILE=x",
        "PLIANT_REPLAY_TO=3",
    )
)
COMMAND = "PLIANT_COORDINATOR=http://h:1,http://g:2\nPLIANT_STALL_S=3\nPLIANT_HOME=/x\nPLIANT_JOB=demo"

PARSERS = [
    text("environment of a command", environment(settings.read), COMMAND),
    text("environment of a worker", environment(settings.read_worker), WORKER),
    text("environment of torchrun", environment(settings.read_torchrun), WORKER),
    text("--rdzv-endpoint", options.parse_endpoint, "10.0.0.5:29400", "[::1]:29400", "host"),
    text("etcd://", parse_etcd_url, "etcd://h:2379/JOB?min_workers=1&max_workers=4&timeout=600", "etcd://a,b:1/x"),
    text("--store etcd:", parse_place, "h:2379,g:1/prefix", "[::1]:2379"),
    text("--rdzv-conf", options.parse_rdzv_conf, "timeout=600,is_host=1", "read_timeout=3"),
    text("--local-ranks-filter", options.parse_ranks, "0,1,2", ""),
    text("--filter", options.parse_filters, "apple,,pie,orange"),
    text("--signals-to-handle", options.parse_signals, "SIGTERM,SIGUSR1"),
    text("--preload", options.parse_modules, "torch,numpy.linalg"),
    text("--checkpoint-every", options.parse_interval, "500", "90s", "never"),
    text("--notice", options.parse_notice, "aws", "file:/x", "command:x y"),
    text("--checkpoint-dir", lambda place: options.checkpoint_place("demo", place), "s3://b/x", "/x", "file:///x"),
    text("--redirects", StreamMask.parse, "3", "0:1,1:2"),
    text("--listen", parse_address, "127.0.0.1:7711", "[::1]:0"),
    text("--kinds", parse_kinds, "kill,stop", "kill"),
]
