"""Choose the coordinator: one that this agent hosts, or one to join, from torchrun's options and Pliant's own."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from typing import TYPE_CHECKING

import click

from pliant.cli.run.etcd import EtcdUrl, listen_address
from pliant.cli.run.option_types import ENDPOINT_PORT, EndpointAddress
from pliant.errors import BadInput

if TYPE_CHECKING:
    from pliant.cli.connect import Flags
    from pliant.cli.run.plan import MachineFacts, RunOptions
    from pliant.credentials import CoordinatorAddress, TlsFiles

STATIC_HOST, STATIC_PORT = "127.0.0.1", 29500  # torchrun's defaults
ANSWER_S = 1.0


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """Facts about an endpoint: an address of this machine, in use already, reachable from this machine only."""

    is_local: bool
    is_in_use: bool
    is_loopback: bool = False
    is_other_program: bool = False  # what listens there is no coordinator


def resolve_endpoint(
    options: RunOptions, machine: MachineFacts, flags: Flags, job: str, machines: int, notes: list[str]
) -> tuple[tuple[str, int] | None, CoordinatorAddress | None]:
    """Return the address to host a coordinator at, or the coordinator to join. Neither: host on a free port."""
    from pliant.credentials import CoordinatorAddress

    endpoint = None if options.standalone else requested_endpoint(options, machines, notes)
    if options.standalone:
        if flags.urls:
            raise click.UsageError("--standalone and --coordinator cannot be combined.")
        if options.rdzv_endpoint is not None or options.static_host is not None or options.static_port is not None:
            notes.append("--standalone starts its own coordinator; the endpoint is ignored")
    elif flags.urls or (machine.settings.coordinators and not _has_endpoint_flag(options)):
        if _has_endpoint_flag(options):
            notes.append("--coordinator is given; the endpoint is ignored")
        return None, flags.resolve()
    if endpoint is None:
        if flags.token_file is not None:
            raise click.UsageError(
                "--token-file needs an existing coordinator. Pass its address with --coordinator or --rdzv-endpoint."
            )
        return None, None
    facts = machine.probe_endpoint(endpoint)
    tls = configured_tls(machine, flags)
    if not endpoint.port and not facts.is_local:
        raise BadInput(f"Port 0 of {endpoint} is invalid, because {endpoint.host} is another machine. Pass its port.")
    if facts.is_other_program:
        raise BadInput(
            f"Another program, not a Pliant coordinator, listens at {endpoint}. Stop it, or choose another port, such "
            f"as --rdzv-endpoint {EndpointAddress(endpoint.host, endpoint.port + 1)}."
        )
    if should_host(endpoint, facts, _host_override(options)):
        if facts.is_loopback and endpoint.port and _expects_other_machines(options, machines, endpoint.host):
            notes.append(
                f"{endpoint} is a loopback address, so no other machine can join; "
                "pass another address of this machine with --rdzv-endpoint"
            )
        if not facts.is_loopback and tls.ca_file is None:
            notes.append(_no_tls(f"the coordinator at {endpoint}"))
        return (None if not endpoint.port else (endpoint.host, endpoint.port)), None
    token_file = flags.token_file or machine.settings.token_file
    if token_file is None:
        why = "a process already listens there" if facts.is_in_use else "it is an address of another machine"
        raise BadInput(
            f"This agent joins the coordinator at {endpoint}, because {why}. That needs a token. On the coordinator's "
            f"machine, run `pliant token create --scope join --job {job} --out FILE`. Copy FILE here and pass it with "
            "--token-file."
        )
    scheme = "http" if tls.ca_file is None else "https"
    return None, CoordinatorAddress((f"{scheme}://{endpoint}",), token_file, tls)


def configured_tls(machine: MachineFacts, flags: Flags) -> TlsFiles:
    """Return the files for TLS: with a CA, the coordinator of an endpoint is reached by https."""
    from pliant.credentials import TlsFiles

    found = machine.settings
    return TlsFiles(flags.ca_file or found.ca_file, found.cert_file, found.key_file)


def etcd_endpoint(etcd: EtcdUrl, options: RunOptions, tls: TlsFiles, flags: Flags, notes: list[str]) -> tuple[str, int]:
    """Return the address of this agent's coordinator, whose store is in etcd."""
    if flags.urls or options.standalone or options.metrics_port is not None:
        other = "--coordinator" if flags.urls else "--standalone" if options.standalone else "--metrics-port"
        raise click.UsageError(f"{other} and etcd cannot be combined.")
    listen = listen_address(etcd)
    if not ip_address(listen[0]).is_loopback and tls.ca_file is None:
        notes.append(_no_tls(f"this machine's coordinator, at {listen[0]},"))
    return listen


def _no_tls(which: str) -> str:
    return (
        f"{which} has no TLS: tokens cross the network unencrypted; PLIANT_CA_FILE, PLIANT_CERT_FILE and "
        "PLIANT_KEY_FILE give it a certificate"
    )


def own_tls(listen: tuple[str, int] | None, files: TlsFiles) -> TlsFiles:
    """Return the files with which this agent's coordinator serves an endpoint; none without an endpoint or a CA."""
    from pliant.credentials import NO_TLS_FILES

    if listen is None or files.ca_file is None:
        return NO_TLS_FILES
    if files.cert_file is None or files.key_file is None:
        raise BadInput(
            f"This agent hosts the coordinator at {listen[0]}:{listen[1]}, and the CA {files.ca_file} is given, so the "
            "coordinator needs a certificate. Run `pliant certs issue NAME --ip ADDRESS`, and set PLIANT_CERT_FILE and "
            "PLIANT_KEY_FILE."
        )
    return files


def metrics_address(
    options: RunOptions, listen: tuple[str, int] | None, elsewhere: CoordinatorAddress | None
) -> tuple[str, int] | None:
    """Return the address to host the coordinator at, with the port of --metrics-port if there is one."""
    if options.metrics_port is None:
        return listen
    if elsewhere is not None:
        raise click.UsageError(
            f"--metrics-port needs a coordinator of its own; this agent joins {elsewhere.urls[0]}, which has /metrics."
        )
    if listen is not None:
        raise click.UsageError(
            f"--metrics-port cannot be combined with an endpoint: its port, {listen[1]}, has /metrics too."
        )
    return STATIC_HOST, options.metrics_port


def requested_endpoint(options: RunOptions, machines: int, notes: list[str]) -> EndpointAddress | None:
    """Return the endpoint that the options name, as torchrun does; None for this machine alone."""
    static = options.rdzv_kind in (None, "static")
    if not static and options.rdzv_kind != "c10d":
        raise BadInput(
            f"--rdzv-backend {options.rdzv_kind} is not supported: agents meet at Pliant's own coordinator. Drop the "
            "option and pass --rdzv-endpoint HOST:PORT with the machine that is to host it, or use etcd."
        )
    has_static_flags = options.static_host is not None or options.static_port is not None
    if has_static_flags and (options.rdzv_endpoint is not None or not static):
        notes.append("--master-addr and --master-port are ignored; --rdzv-endpoint and c10d replace them")
    if options.node_rank is not None and not static:
        notes.append(
            "--node-rank is ignored with c10d: the machine that owns the endpoint's address hosts the coordinator"
        )
    if options.rdzv_endpoint is not None:
        assert not isinstance(options.rdzv_endpoint, EtcdUrl)  # `apply_etcd` took it
        return options.rdzv_endpoint
    if static and (has_static_flags or options.node_rank or machines > 1):
        port = STATIC_PORT if options.static_port is None else options.static_port
        return EndpointAddress(options.static_host or STATIC_HOST, port)
    return EndpointAddress("localhost", ENDPOINT_PORT) if machines > 1 else None


def should_host(endpoint: EndpointAddress, facts: EndpointFacts, forced: bool | None) -> bool:
    """Return whether this agent hosts the coordinator. `forced` is the choice of --node-rank or is_host."""
    if forced is None:
        return facts.is_local and not facts.is_in_use
    if not forced:
        return False
    if not facts.is_local:
        raise BadInput(
            f"This machine is to host the coordinator, but {endpoint.host} is not one of its addresses. Pass one of "
            "them, or drop --node-rank and is_host; the machine that owns the endpoint's address becomes the host."
        )
    if facts.is_in_use:
        raise BadInput(
            f"This machine is to host the coordinator, but a process already listens at {endpoint}. Choose another "
            "port, or drop --node-rank and is_host to join there."
        )
    return True


def _expects_other_machines(options: RunOptions, machines: int, host: str) -> bool:
    """Return whether the options suggest that other machines will join."""
    loopback = host == "localhost" or host.startswith("127.") or host == "::1"
    return machines > 1 or (options.nnodes is None and not loopback)


def _has_endpoint_flag(options: RunOptions) -> bool:
    has_static_flags = (
        options.rdzv_endpoint is not None or options.static_host is not None or options.static_port is not None
    )
    return has_static_flags or bool(options.node_rank)


def _host_override(options: RunOptions) -> bool | None:
    if options.rdzv_conf is not None and options.rdzv_conf.is_host is not None:
        return options.rdzv_conf.is_host
    if options.node_rank is None or options.rdzv_kind == "c10d":
        return None
    return options.node_rank == 0


def probe_endpoint(endpoint: EndpointAddress) -> EndpointFacts:
    """Find out whether the address belongs to this machine and whether a process listens there."""
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BadInput(f"The host {endpoint.host} cannot be resolved: {error.strerror}.") from error
    here = any(_is_local_address(family, address) for family, _, _, _, address in found)
    answers = (
        bool(endpoint.port)
        and here
        and any(_accepts_connections(family, address) for family, _, _, _, address in found)
    )
    loopback = all(ip_address(str(address[0])).is_loopback for *_, address in found)
    return EndpointFacts(here, answers, loopback, answers and _is_other_program(endpoint))


def _is_local_address(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address[0], 0, *address[2:]))
        except OSError:
            return False
    return True


def _accepts_connections(family: int, address: tuple[object, ...]) -> bool:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(ANSWER_S)
        return probe.connect_ex(address) == 0


def _is_other_program(endpoint: EndpointAddress) -> bool:
    """Return whether the program there answers, and not as a coordinator. A slow program may be a coordinator."""
    from pliant.wire.api import PROTOCOL_HEADER
    from pliant.wire.routes import HEALTH

    link = HTTPConnection(endpoint.host, endpoint.port, timeout=ANSWER_S)
    try:
        link.request("GET", HEALTH.path)
        return link.getresponse().getheader(PROTOCOL_HEADER) is None
    except TimeoutError:
        return False
    except (HTTPException, OSError):
        return not _is_coordinator_with_tls(endpoint)
    finally:
        link.close()


def _is_coordinator_with_tls(endpoint: EndpointAddress) -> bool:
    """Return whether a coordinator with TLS may be there. Nothing is sent that needs trust, so none is checked."""
    import ssl

    from pliant.wire.api import PROTOCOL_HEADER
    from pliant.wire.routes import HEALTH

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    link = HTTPSConnection(endpoint.host, endpoint.port, timeout=ANSWER_S, context=context)
    try:
        link.request("GET", HEALTH.path)
        return link.getresponse().getheader(PROTOCOL_HEADER) is not None
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")  # it wants a client's certificate
    except (HTTPException, OSError):
        return False
    finally:
        link.close()
