"""The HTTP transport of a client: endpoints, retries, and the check that the client's coordinator answers.

Any process can listen on a port whose coordinator is away. So the token goes only into connections whose other end
proved to know it: before a connection carries the token, `/healthz` must answer a nonce with a proof that needs the
token's digest. That costs one request for each new connection, and nothing afterwards. With TLS the server's
certificate is checked before that.
"""

from __future__ import annotations

import hmac
import logging
import random
import secrets
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import httpx2
import msgspec

from pliant import __version__
from pliant.core.endpoints import (
    check_limit_s,
    command_limit_s,
    endpoints_of,
    in_order,
    note_answer,
    note_leader,
    note_silence,
    pause_limit_s,
    renewal_limit_s,
    silence_s,
)
from pliant.core.leases import LEASE_TTL_S
from pliant.core.model.names import bad_path_name
from pliant.credentials import NO_TLS_FILES, TlsFiles, Token, proof, read_token
from pliant.errors import BadInput, NotAllowed, NotSecure, PliantError, Refused, Unreachable
from pliant.tls import FileWatch, client_context, describe_failure
from pliant.wire import api, protocol, routes
from pliant.wire.codec import UNREADABLE
from pliant.wire.routes import Route

PATIENCE_S = 10.0
CONNECT_S = 3.0
QUIET_S = 45.0  # a stream sends at least a comment every 15 s; it is dead after this long without a byte
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0
KEEP_S = 60.0  # less than the server's keep-alive, so that no request goes into a connection that it is closing

for _name in ("httpx2", "httpcore2"):  # a script's logging.basicConfig(level=INFO) must not show our requests
    logging.getLogger(_name).setLevel(logging.WARNING)

_PROBLEM = msgspec.json.Decoder(api.Problem)
_chance = random.Random()  # of its own: user code draws from the module's generator, in another thread


CHECKS = 8  # of new connections for one request; other threads may take the connections that it checked


class _ConnectionNeeded(Exception):
    """A request with the token would open a connection, which nothing has checked."""


class TryAgain(Exception):
    """Retry, perhaps at another endpoint.

    `unsent`: no coordinator acted on the request. `answered`: a coordinator answered that it cannot help now; `leader`
    is the URL that it named. `silent`: nothing came in time. `lasting`: the same endpoint will fail again, so that
    waiting for it is no use.
    """

    def __init__(
        self,
        why: str,
        *,
        unsent: bool = False,
        answered: bool = False,
        silent: bool = False,
        leader: str = "",
        lasting: bool = False,
    ) -> None:
        super().__init__(why)
        self.unsent = unsent
        self.answered = answered
        self.silent = silent
        self.leader = leader
        self.lasting = lasting


class Transport:
    """The endpoints of one client. `store` is the identity of their store, known after the first answer.

    `lease_ttl_s` bounds how long a request waits at one of several coordinators (`pliant.core.endpoints`).
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        token: Token,
        patience_s: float,
        tls: TlsFiles = NO_TLS_FILES,
        *,
        follow_leader: bool = True,
    ) -> None:
        if not endpoints:
            raise BadInput("A client needs the URL of at least one coordinator.")
        self._known = endpoints_of(tuple(base_url(url) for url in endpoints))
        for url in self._known.urls:
            tls.check_url(url)
        self._lock = threading.Lock()
        self.lease_ttl_s = LEASE_TTL_S
        self._token = token
        self.patience_s = patience_s
        self._follow_leader = follow_leader
        self._closed = threading.Event()
        self._unknown_at: set[int] = set()  # endpoints whose coordinator does not know the token
        self.store: str | None = None
        self._credential = {"authorization": f"Bearer {token.text}"}
        self._tls = tls
        self._files = FileWatch(tls.all, self._reload)
        self._http = self._open()
        self._retired: httpx2.Client | None = None  # the one before, whose requests may be under way

    def close(self) -> None:
        self._closed.set()
        self._http.close()
        if self._retired is not None:
            self._retired.close()

    def _open(self) -> httpx2.Client:
        headers = {"user-agent": f"pliant/{__version__}", api.PROTOCOL_HEADER: api.PROTOCOL}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=KEEP_S)
        # Ignore the proxies of the environment: only the coordinator may see the token.
        return httpx2.Client(
            headers=headers, trust_env=False, limits=limits, verify=_context(self._known.urls, self._tls)
        )

    def _reload(self) -> None:
        """Use the changed files for new connections. A context in use would trust a removed CA for ever."""
        new = self._open()
        with self._lock:
            over, self._retired, self._http = self._retired, self._http, new
        if over is not None:
            over.close()

    def exchange(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, float | str],
        content: bytes | None,
        patience_s: float | None,
        *,
        once: bool = False,
    ) -> bytes:
        """Send a request until a coordinator answers or the patience is over.

        Tries each endpoint at least once, except those that were silent a moment ago while others were not.
        """
        require_names(path)
        until = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        limit_s = self._limit_s(route)
        circle = 0
        while True:
            todo = list(in_order(self._known, time.monotonic()))
            asked: set[int] = set()
            last: TryAgain | None = None
            while todo:
                base, asked_at = todo.pop(0), time.monotonic()
                asked.add(base)
                try:
                    return self._send_once(base, route, path, query, content, limit_s)
                except TryAgain as error:
                    if last is None or not error.lasting:  # one that a retry may cure decides
                        last = error
                    if once and not error.unsent:
                        raise Unreachable(
                            f"{error}. The request may have been carried out; check before sending it again."
                        ) from error
                    leader = self.note_failure(base, error, silence_s(self.lease_ttl_s), asked_at)
                    if leader is not None and leader not in asked:
                        todo = [leader, *(each for each in todo if each != leader)]
            circle += 1
            assert last is not None  # there is at least one endpoint
            self.pause(circle, until, last)

    def _limit_s(self, route: Route) -> float:
        limit = renewal_limit_s if route in (routes.RENEW, routes.RENEW_AGENT) else command_limit_s
        return limit(self.lease_ttl_s, len(self._known.urls))

    @property
    def moved_at(self) -> float:
        """The time since when another coordinator leads, or the same one answers again after a silence."""
        return self._known.moved_at

    def note_failure(self, base: int, error: TryAgain, silent_s: float, asked_at: float) -> int | None:
        """Note why an endpoint could not be used; return the endpoint that it named as the leader's, if any.

        If it was silent, the others are asked for `silent_s`.
        """
        now = time.monotonic()
        with self._lock:
            if error.silent:
                self._known = note_silence(self._known, base, silent_s, asked_at, now)
            if not error.leader or not self._follow_leader:
                return None
            self._known, leader = note_leader(self._known, error.leader, now)
            return leader

    def _send_once(
        self,
        base: int,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, float | str],
        content: bytes | None,
        limit_s: float,
    ) -> bytes:
        asked_at = time.monotonic()
        with self._token_renewed():
            request = self._request(
                base, route, path, query, content, limit_s, limit_s + float(query.get("wait_s", 0.0))
            )
            response = self._send(base, request)
            self._accept(base, route, response, asked_at)
        return response.content

    @contextmanager
    def _token_renewed(self) -> Iterator[None]:
        """Raise TryAgain where the token is refused, and its file has another one by now."""
        token = self._token
        try:
            yield
        except NotAllowed as error:
            if not self._take_new_token(token):
                raise
            raise TryAgain("the token was replaced", unsent=True) from error

    def _take_new_token(self, refused: Token) -> bool:
        """Use the token that is in the file now. Return whether it is another one than the refused one."""
        with self._lock:
            if self._token is refused and refused.file is not None:
                with suppress(BadInput):  # the refusal says more than an unreadable file
                    self._token = read_token(refused.file)
                self._credential = {"authorization": f"Bearer {self._token.text}"}
                self._unknown_at.clear()
            return self._token != refused

    def _send(self, base: int, request: httpx2.Request, *, stream: bool = False) -> httpx2.Response:
        """Send a request. If it carries the token, send it only through a checked connection."""
        for _ in range(CHECKS):
            try:
                with _retried():
                    return self._http.send(request, stream=stream)
            except _ConnectionNeeded:
                self._check(base)  # its connection is free afterwards, and carries the request
        raise TryAgain("the server there closes its connections after each answer", unsent=True)

    def _check(self, base: int) -> None:
        """Open a connection, and keep it if the coordinator of this token answers there. It need not lead."""
        self._files.look()
        limit_s = check_limit_s(self.lease_ttl_s, len(self._known.urls))
        nonce = secrets.token_hex(32)
        request = self._request(base, routes.HEALTH, {}, {}, None, limit_s, limit_s)
        request.headers[api.CHALLENGE_HEADER] = f"{self._token.id} {nonce}"
        del request.headers["connection"]
        with _retried(unsent=True):
            response = self._http.send(request, stream=True)
            try:
                self._require_proof(base, response, nonce)
                response.read()  # then the connection is kept
            finally:
                response.close()  # closes the connection if the answer was not read

    def _require_proof(self, base: int, response: httpx2.Response, nonce: str) -> None:
        _require_coordinator(response)
        found = response.headers.get(api.PROOF_HEADER, "")
        if found == api.UNKNOWN_TOKEN and self.store is None:
            self._unknown_at.add(base)
            why = f"token {self._token.id} is unknown at {self._known.urls[base]}, so it was not sent there"
            if len(self._unknown_at) < len(self._known.urls):  # it may be new; the others learn of it within a second
                raise TryAgain(why, unsent=True)
            raise NotAllowed(f"Not allowed: {why}. It may belong to another coordinator.")
        if not hmac.compare_digest(found.encode(), proof(self._token.digest, nonce).encode()):
            raise TryAgain("the server there does not know this token, so the token was not sent", unsent=True)

    @contextmanager
    def stream(self, base: int, job: str, after: int) -> Iterator[Iterator[bytes]]:
        """Open an event stream and yield its bytes."""
        asked_at, limit_s = time.monotonic(), self._limit_s(routes.EVENTS)
        with self._token_renewed():
            request = self._request(base, routes.EVENTS, {"job": job}, {"after": after}, None, limit_s, QUIET_S)
            request.headers["accept"] = routes.EVENTS.streams
            response = self._send(base, request, stream=True)
        with _retried():
            try:
                if response.status_code != 200:
                    response.read()
                with self._token_renewed():
                    self._accept(base, routes.EVENTS, response, asked_at)
                yield response.iter_bytes()
            finally:
                response.close()

    def _request(
        self,
        base: int,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, float | str],
        content: bytes | None,
        limit_s: float,
        answer_s: float,
    ) -> httpx2.Request:
        headers = {"content-type": "application/json"} if content is not None else {}
        extensions = None
        if route.scope is api.Scope.PUBLIC:
            headers["connection"] = "close"  # unchecked, so no request with the token may find it open
        else:
            headers |= self._credential
            extensions = {"trace": _refuse_to_connect}
            if self.store is not None:
                headers[api.STORE_HEADER] = self.store
        url = self._known.urls[base] + route.path.format(**path)
        timeout = httpx2.Timeout(limit_s, connect=min(CONNECT_S, limit_s), read=answer_s)
        return self._http.build_request(
            route.method,
            url,
            params=query or None,
            content=content,
            headers=headers,
            timeout=timeout,
            extensions=extensions,
        )

    def _accept(self, base: int, route: Route, response: httpx2.Response, asked_at: float) -> None:
        """Raise unless a coordinator accepted the request."""
        _require_coordinator(response)
        if response.status_code != 200:
            raise _error(response)
        if self.store is None and route.scope is not api.Scope.PUBLIC:
            self.store = response.headers.get(api.STORE_HEADER)
        with self._lock:
            self._known = note_answer(self._known, base, asked_at, time.monotonic())

    def endpoint(self, attempt: int) -> int:
        """Return the endpoint for an attempt, from 0."""
        order = in_order(self._known, time.monotonic())
        return order[attempt % len(order)]

    def pause(self, attempt: int, until: float, last: TryAgain) -> None:
        """Wait before a retry: longer each time, and random, so that a thousand clients do not retry at once."""
        left_s = until - time.monotonic()
        limit_s = pause_limit_s(self.lease_ttl_s, len(self._known.urls))
        pause_s = min(PAUSE_MAX_S, limit_s, PAUSE_FIRST_S * 2 ** min(attempt, 10))
        if left_s <= 0 or last.lasting or self._closed.wait(min(left_s, _chance.uniform(pause_s / 2, pause_s))):
            where, why = ", ".join(self._known.urls), str(last).rstrip(".")
            if last.lasting:
                raise NotSecure(f"No secure connection to {where}: {why}.")
            if last.answered:
                raise Unreachable(f"The coordinator at {where} cannot do this now: {why}. Try again.")
            raise Unreachable(f"No coordinator answers at {where}: {why}. Run `pliant doctor` to find out why.")


def _refuse_to_connect(event: str, _: Mapping[str, object]) -> None:
    """Stop a request that is about to open a connection. httpx calls this for each phase of a request."""
    if event == "connection.connect_tcp.started":
        raise _ConnectionNeeded


@contextmanager
def _retried(*, unsent: bool = False) -> Iterator[None]:
    """Turn every error of the transport into `TryAgain`."""
    try:
        yield
    except (httpx2.RequestError, httpx2.StreamError, RuntimeError) as error:
        unsent = unsent or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        if (failure := _tls_failure(error)) is not None:
            raise TryAgain(failure, unsent=True, lasting=True) from error
        silent = isinstance(error, httpx2.TimeoutException)
        raise TryAgain(_describe_error(error), unsent=unsent, silent=silent) from error


def _context(endpoints: Sequence[str], tls: TlsFiles) -> ssl.SSLContext:
    """Return the context for all connections. The system's CAs take long to load; only https needs them."""
    if any(url.startswith("https://") for url in endpoints):
        return client_context(tls)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nothing


def _tls_failure(error: BaseException | None) -> str | None:
    """Return the failure of TLS that caused an error of the transport, if a retry would fail as well."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return None if error is None else describe_failure(error)


def _describe_error(error: Exception) -> str:
    if isinstance(error, httpx2.ConnectTimeout):
        return f"no reply to a connection attempt within {CONNECT_S:g} s (a wrong address, or a firewall)"
    if isinstance(error, httpx2.TimeoutException):
        return "connected, but no answer came in time"
    return str(error) or type(error).__name__


def base_url(text: str) -> str:
    """Return the URL of a coordinator without a slash at its end. Raises BadInput for any other text."""
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise BadInput(f"{text!r} is not the URL of a coordinator: {error}.") from error
    plain = url.host and not url.query and not url.userinfo and url.path in ("", "/")
    if url.scheme not in ("http", "https") or not plain or not 0 < (url.port or 80) < 65536:
        raise BadInput(f"The URL of a coordinator must look like http://127.0.0.1:7711; got {text!r}.")
    return str(url).rstrip("/")


def is_self(response: httpx2.Response) -> bool:
    """Return whether the connection is to itself. TCP allows that if the local port equals the remote one."""
    stream = response.extensions.get("network_stream")
    if stream is None:
        return False
    try:
        ours = stream.get_extra_info("client_addr")
        return ours is not None and ours == stream.get_extra_info("server_addr")
    except OSError:
        return False  # the server closed the connection with this answer, so there are no addresses to compare


def require_names(path: Mapping[str, str]) -> None:
    """Raise BadInput unless each part of a path is a name. Any other text could change the path."""
    for kind, name in path.items():
        if wrong := bad_path_name(kind, name):
            raise BadInput(f"{wrong[:1].upper()}{wrong[1:]}.")


def _require_coordinator(response: httpx2.Response) -> None:
    """Raise TryAgain unless a coordinator answered whose protocol this version knows, and which knows this one."""
    version = protocol.parse_version(response.headers.get(api.PROTOCOL_HEADER, ""))
    if version is None or is_self(response):
        raise TryAgain("the server there is not a Pliant coordinator", unsent=True)
    if response.status_code == 426:
        why = f"the coordinator there has protocol {version} and refuses {protocol.VERSION}, that of this Pliant"
        raise TryAgain(f"{why}: upgrade Pliant on this machine", unsent=True)
    if old := protocol.describe_old_coordinator(version):
        raise TryAgain(old, unsent=True)


def decode_problem(data: bytes) -> api.Problem | None:
    """Decode the body of a refusal; None if it is not one."""
    try:
        return _PROBLEM.decode(data)
    except UNREADABLE:
        return None


def _leader_named(response: httpx2.Response) -> str:
    """Return the leader's URL that a standby named; empty if it named none, or no URL of a coordinator."""
    try:
        return base_url(response.headers.get(api.LEADER_HEADER, ""))
    except BadInput:
        return ""


def _error(response: httpx2.Response) -> Exception:
    """Return the exception for an answer that is not 200."""
    status = response.status_code
    problem = decode_problem(response.content) or api.Problem("", f"status {status}")
    if status in (408, 429, 503):
        leader = _leader_named(response) if status == 503 else ""
        return TryAgain(problem.why, unsent=problem.code != api.IN_DOUBT, answered=True, leader=leader)
    if status in (401, 403):
        return NotAllowed(f"Not allowed: {problem.why}.")
    if status in (413, 414, 415, 422, 431):
        return BadInput(problem.why)
    if status >= 500:
        return PliantError(problem.why)
    return Refused(problem.why, problem.code, problem.revision)
