"""The coordinator as a program: store, service, API, socket, and clean shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import re
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvicorn
from prometheus_client import Counter

from pliant.coordinator.api.app import application
from pliant.coordinator.api.auth import REFRESH_S, TokenRegistry
from pliant.coordinator.api.handlers import Handlers
from pliant.coordinator.api.http_protocol import KEEP_ALIVE_S, BoundedProtocol, close_slow_connections
from pliant.coordinator.api.middleware import RequestGuard
from pliant.coordinator.async_service import AsyncService
from pliant.coordinator.generation_keys import GenerationKeys
from pliant.coordinator.history import JobHistory
from pliant.coordinator.housekeeping import Housekeeper
from pliant.coordinator.pool_registry import PoolRegistry
from pliant.coordinator.service.autoscaler import Autoscaler
from pliant.coordinator.service.inbox import Accepted, Answer, Pumped, Unavailable
from pliant.coordinator.service.pump import Service
from pliant.coordinator.store_thread import StoreThread
from pliant.coordinator.submission_registry import SubmissionRegistry
from pliant.coordinator.tls_listener import TlsListener, TlsServer
from pliant.core.leases import LEASE_TTL_S
from pliant.credentials import read_or_create_token
from pliant.errors import BadInput, PliantError
from pliant.stores.archive.segments import Archive
from pliant.stores.base import Store
from pliant.telemetry import CoordinatorMetrics

BACKLOG = 2048
WORKERS_GONE_S = 3600.0  # after the end of a job; until then its workers may save and leave
START_S = 5.0  # for the first pump, before requests are accepted
SHUTDOWN_S = 5  # for answers under way, after the request to stop

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port to listen on."""

    host: str
    port: int
    scheme: str = "http"

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `HOST:PORT` or `[v6]:PORT`. Port 0 selects a free one."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise BadInput(f"--listen must be HOST:PORT, for instance 127.0.0.1:7711; got {text!r}.")
    return Address(host, int(port))


def advertised_url(address: Address, given: str | None) -> str:
    """Return the URL that other coordinators pass to their clients; empty if this one listens on every address."""
    if given is None:
        is_wildcard = address.host in ("0.0.0.0", "::")
        return "" if is_wildcard else address.url
    parts = urlsplit(given)
    try:
        is_complete = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        is_complete = False
    if not is_complete or parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BadInput(f"--advertise must be http(s)://HOST:PORT, for instance http://10.0.0.2:7711; got {given!r}.")
    return given.rstrip("/")


def listen(address: Address, *, expose: bool, encrypted: bool = False) -> socket.socket:
    """Return a listening socket. Refuse any address but loopback unless `expose` is set.

    `encrypted`: with TLS, or the user accepts that there is none.
    """
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadInput(f"{address.host} is not an address of this machine: {error.strerror}.") from error
    family, kind, protocol, _, where = found[0]
    if not ipaddress.ip_address(where[0]).is_loopback:
        _check_exposure(address, expose=expose, encrypted=encrypted)
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(where)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        is_in_use = error.errno == errno.EADDRINUSE
        hint = "Perhaps a coordinator runs there already; `pliant doctor` checks that." if is_in_use else ""
        raise BadInput(f"Cannot listen on {address.host}:{address.port}: {error.strerror}. {hint}".strip()) from error
    return bound


def _check_exposure(address: Address, *, expose: bool, encrypted: bool) -> None:
    """Raise BadInput unless other machines may reach the address, and tokens do not cross the network in the clear."""
    if not expose:
        raise BadInput(
            f"{address.host} can be reached from other machines. Pass --expose, with --tls-cert and --tls-key; or "
            "listen on 127.0.0.1 and use a tunnel."
        )
    if not encrypted:
        raise BadInput(
            f"Without TLS, tokens would cross the network of {address.host} unencrypted. Pass --tls-cert and --tls-key "
            "(`pliant certs init`, then `pliant certs issue`). On a network that you trust, pass --insecure instead."
        )


class Coordinator:
    """One coordinator over a store. The caller opens and closes the store. `advertise` is its URL for other clients.

    `archive` takes the old events of jobs. Ended jobs are deleted after `keep_ended_s`; None keeps them. Submissions
    are accepted for images that match one of `submission_images`, so without them there are none.
    """

    def __init__(
        self,
        store: Store,
        token_file: Path,
        hosts: tuple[str, ...] = (),
        lease_ttl_s: float = LEASE_TTL_S,
        *,
        advertise: str = "",
        tls: TlsListener | None = None,
        archive: Archive | None = None,
        keep_ended_s: float | None = None,
        submission_images: tuple[str, ...] = (),
    ) -> None:
        self._tls = tls
        self.metrics = CoordinatorMetrics()
        self._counters: dict[tuple[str, str], Counter] = {}  # cached, because looking up labels is slow
        owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        service = Service(store, owner, time.time, lease_ttl_s, advertise)
        self.service = AsyncService(service, GenerationKeys(store), self._count_pump, self._count_answer)
        self.keyring = TokenRegistry(store, time.time, self._has_ended)
        self.keyring.load()
        token, self.made_token = read_or_create_token(token_file)
        self.keyring.adopt(token, f"made by the coordinator, in {token_file.name}")
        self._pools = PoolRegistry(store)
        self._pools.load()
        service.scheduler.pool = self._pools.pool
        submissions = SubmissionRegistry(store, submission_images)
        submissions.load()
        self._autoscaler = Autoscaler(service)
        self._reads = StoreThread("pliant-reads")
        self._housekeeper = Housekeeper(self.service, store, archive, keep_ended_s, end_tokens=self._end_tokens)
        history = JobHistory(store, archive)
        self._handlers = Handlers(
            self.service,
            store,
            self._reads,
            history,
            self._housekeeper,
            self.keyring,
            self._pools,
            submissions,
            self.metrics,
            lease_ttl_s,
        )
        api = application(self._handlers.by_name(), self.metrics)
        self.app = RequestGuard(
            api, self.keyring, store.identity, hosts, self._count_refusal, lambda: service.leader_url
        )

    def _has_ended(self, name: str) -> bool:
        """Return whether a job ended so long ago that its workers are gone. False for a job that is not known here."""
        service = self.service.service
        found = service.job(name)
        if found is None and service.leads:
            # It ended long ago, and is loaded for the next request if it exists. The thread of the tokens may get here
            # as well: it only appends to a list, and a lost entry is asked for again.
            service.look_up(name, ticket=None)
        return found is not None and found[0].state.ended and time.time() - found[0].state_since >= WORKERS_GONE_S

    async def serve(self, bound: socket.socket, ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGINT or SIGTERM. Then release all watchers, finish the requests under way, and return."""
        config = uvicorn.Config(
            self.app,
            http=BoundedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=SHUTDOWN_S,
            backlog=BACKLOG,
        )
        BoundedProtocol.connections_max = _connection_limit()
        server = _Server(config, self._tls)
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._stop, server)
        await self.service.start(START_S)
        _tune_garbage_collector()
        background = [
            loop.create_task(close_slow_connections(server.server_state)),
            loop.create_task(self._refresh_tokens()),
            *([] if self._tls is None else [loop.create_task(self._tls.follow_files())]),
            loop.create_task(self._housekeeper.run()),
        ]
        serving = loop.create_task(server.serve(sockets=[bound]))
        ready()
        try:
            await serving
        finally:
            for task in background:
                task.cancel()
            await self.service.close(SHUTDOWN_S)
            self._reads.close()

    async def _refresh_tokens(self) -> None:
        trouble = ""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._reads.call(self.keyring.refresh)
                await self._reads.call(self._pools.refresh)
                trouble = ""
            except PliantError as error:  # such as a record that a newer coordinator wrote
                if error.why != trouble:
                    log.warning("changes of tokens and pool by other coordinators are not read: %s", error.why)
                trouble = error.why
            self.service.service.scheduler.pool = self._pools.pool

    async def _end_tokens(self, jobs: frozenset[str]) -> None:
        await self._reads.call(partial(self.keyring.end_orphans, jobs))

    def _stop(self, server: uvicorn.Server) -> None:
        if server.should_exit:
            server.force_exit = True  # the second signal drops the answers under way
            return
        server.should_exit = True
        log.info("stopping: nothing is lost; members keep training and wait for the next coordinator")
        self.service.stop()

    def _count_pump(self, pumped: Pumped, seconds: float) -> None:
        metrics = self.metrics
        self._handlers.note_pump(pumped)
        self._autoscaler.note_pump(pumped.decided)
        metrics.pumps.observe(seconds)
        metrics.bugs.inc(len(pumped.bugs))
        for job, events in pumped.decided:
            for event in events:
                metrics.count_event(job, event)

    def _count_answer(self, command: str, answer: Answer) -> None:
        if isinstance(answer, Accepted):
            outcome = "accepted"
        else:
            outcome = "unavailable" if isinstance(answer, Unavailable) else answer.code.value
        key = (command, outcome)
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = self.metrics.answers.labels(*key)
        counter.inc()

    def _count_refusal(self, code: str) -> None:
        self.metrics.refused.labels(code).inc()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: TlsListener | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. uvicorn limits neither the time nor the number of TLS handshakes, so with TLS it does not accept."""
        if self._tls is None:
            return await super().startup(sockets)
        await super().startup([])
        for sock in sockets or ():
            server = TlsServer(sock, self._tls.context, self._protocol)
            self.servers.append(cast(asyncio.Server, server))
        return None

    def _protocol(self) -> BoundedProtocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the coordinator, which releases its watchers before the server waits for them."""
        yield


def _tune_garbage_collector() -> None:
    """Collect cycles rarely. Nearly all garbage is freed without it, and with thousands of connections one collection
    takes long enough to delay the slowest renewals."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _connection_limit() -> int:
    """Raise the limit of open files as far as possible, and return it less a reserve for the store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max(64, min(soft, 65536) - 64)
