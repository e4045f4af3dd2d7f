"""Where agents meet: at a coordinator of this machine, or at one on another, by torchrun's flags and ours."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

import click

from pliant.cli.run.option_types import ENDPOINT_PORT, Endpoint
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.agent.setup import Elsewhere
    from pliant.cli.connect import Flags
    from pliant.cli.run.plan import Around, Given

STATIC_HOST, STATIC_PORT = "127.0.0.1", 29500  # torchrun's, where several machines are told of no other
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found at an endpoint: is it this machine's, does somebody answer there, can nobody else reach it?"""

    here: bool
    answers: bool
    loopback: bool = False


def the_place(
    given: Given, around: Around, flags: Flags, job: str, machines: int, notes: list[str]
) -> tuple[tuple[str, int] | None, Elsewhere | None]:
    """Where our own coordinator is to listen, or where another one is; neither: our own on a free port."""
    from pliant.agent.setup import Elsewhere

    wanted = None if given.standalone else endpoint(given, machines, notes)
    if given.standalone:
        if flags.urls:
            raise click.UsageError("--standalone keeps a coordinator, --coordinator names another: leave one away.")
        if given.rdzv_endpoint is not None or given.static_host is not None or given.static_port is not None:
            notes.append("--standalone keeps a coordinator of its own: the endpoint has no effect")
    elif flags.urls or (around.said.coordinators and not _is_said(given)):
        if _is_said(given):
            notes.append("--coordinator says where to ask: the endpoint has no effect")
        place = flags.place()
        return None, Elsewhere(place.urls, place.token_file)
    if wanted is None:
        if flags.token_file is not None:
            raise click.UsageError(
                "--token-file is for a coordinator that is there already: name it with --coordinator, or with "
                "--rdzv-endpoint."
            )
        return None, None
    seen = around.look(wanted)
    if not wanted.port and not seen.here:
        raise BadInput(f"{wanted}: port 0 is a free one of this machine, and {wanted.host} is another. Name its port.")
    if hosts(wanted, seen, _forced(given)):
        if seen.loopback and wanted.port and _others_may_come(given, machines, wanted.host):
            notes.append(
                f"nobody on another machine can join at {wanted}, a loopback address here: "
                "--rdzv-endpoint takes an address of this machine"
            )
        return (None if not wanted.port else (wanted.host, wanted.port)), None
    token_file = flags.token_file or around.said.token_file
    if token_file is None:
        who = "Somebody answers" if seen.answers else "Another machine is"
        raise BadInput(
            f"{who} at {wanted}, so this agent joins there, and needs a token. On the machine that hosts the "
            f"coordinator say `pliant token create --scope join --job {job} --out FILE`, bring the file here, and name "
            "it with --token-file."
        )
    return None, Elsewhere((f"http://{wanted}",), token_file)


def endpoint(given: Given, machines: int, notes: list[str]) -> Endpoint | None:
    """Where agents meet, as torchrun works it out. None: nobody else is expected."""
    static = given.rdzv_kind in (None, "static")
    if not static and given.rdzv_kind != "c10d":
        raise BadInput(
            f"--rdzv-backend {given.rdzv_kind} is not there: agents meet at a coordinator of ours, which needs nothing "
            "else. Leave it away, and say --rdzv-endpoint HOST:PORT, with the machine that is to host it."
        )
    named = given.static_host is not None or given.static_port is not None
    if named and (given.rdzv_endpoint is not None or not static):
        notes.append("--master-addr and --master-port have no effect: --rdzv-endpoint says where agents meet")
    if given.node_rank is not None and not static:
        notes.append("--node-rank has no effect with c10d: who has the endpoint's address hosts the coordinator")
    if given.rdzv_endpoint is not None:
        return given.rdzv_endpoint
    if static and (named or given.node_rank or machines > 1):
        port = STATIC_PORT if given.static_port is None else given.static_port
        return Endpoint(given.static_host or STATIC_HOST, port)
    return Endpoint("localhost", ENDPOINT_PORT) if machines > 1 else None


def hosts(wanted: Endpoint, seen: Seen, forced: bool | None) -> bool:
    """Whether this agent keeps the coordinator at the endpoint; otherwise it joins. `forced`: somebody said which."""
    if forced is None:
        return seen.here and not seen.answers
    if not forced:
        return False
    if not seen.here:
        raise BadInput(
            f"This machine is to host the coordinator, and {wanted.host} is no address of it. Name one of its own, or "
            "leave --node-rank and is_host away: whose address it is hosts."
        )
    if seen.answers:
        raise BadInput(
            f"This machine is to host the coordinator, and somebody listens at {wanted} already. Take another port, or "
            "leave --node-rank and is_host away to join there."
        )
    return True


def _others_may_come(given: Given, machines: int, host: str) -> bool:
    """Whether who wrote this may have meant other machines to join."""
    loopback = host == "localhost" or host.startswith("127.") or host == "::1"
    return machines > 1 or (given.nnodes is None and not loopback)


def _is_said(given: Given) -> bool:
    named = given.rdzv_endpoint is not None or given.static_host is not None or given.static_port is not None
    return named or bool(given.node_rank)


def _forced(given: Given) -> bool | None:
    if given.rdzv_conf is not None and given.rdzv_conf.is_host is not None:
        return given.rdzv_conf.is_host
    if given.node_rank is None or given.rdzv_kind == "c10d":
        return None
    return given.node_rank == 0


def look(wanted: Endpoint) -> Seen:
    """Whose address it is: one of ours is one that can be listened on. And whether somebody does already."""
    try:
        found = socket.getaddrinfo(wanted.host, wanted.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"{wanted.host} is no address, and no name of one: {error.strerror}.") from error
    here = any(_is_ours(family, where) for family, _, _, _, where in found)
    answers = bool(wanted.port) and here and any(_answers(family, where) for family, _, _, _, where in found)
    return Seen(here, answers, loopback=all(ip_address(str(where[0])).is_loopback for *_, where in found))


def _is_ours(family: int, where: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        try:
            trial.bind((where[0], 0, *where[2:]))
        except OSError:
            return False
    return True


def _answers(family: int, where: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.settimeout(ANSWER_S)
        return trial.connect_ex(where) == 0
