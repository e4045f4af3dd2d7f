"""The way to a coordinator: which endpoint is asked, how often, and whether it is one at all."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx2
import msgspec

from pliant import __version__
from pliant.core.model.names import bad_name
from pliant.credentials import Token
from pliant.errors import BadInput, NotAllowed, PliantError, Refused, Unreachable
from pliant.wire import api, routes
from pliant.wire.routes import Route

PATIENCE_S = 10.0
ANSWER_S = 10.0  # how long a coordinator may take over one answer, besides what it is asked to wait
CONNECT_S = 3.0
QUIET_S = 45.0  # a stream sends something every 15 s; after this long without a byte it is dead
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0
KEEP_S = 60.0  # less than the server keeps a connection, so that we never send into one it is closing

_PROBLEM = msgspec.json.Decoder(api.Problem)


class TryAgain(Exception):
    """There was no answer; ask again, perhaps elsewhere. `unsent`: nobody can have acted on it."""

    def __init__(self, why: str, *, unsent: bool = False) -> None:
        super().__init__(why)
        self.unsent = unsent


class Transport:
    """The endpoints of one client. `store` is the identity of the store talked to, once there was an answer."""

    def __init__(self, endpoints: Sequence[str], token: Token, patience_s: float) -> None:
        if not endpoints:
            raise BadInput("A client needs at least one coordinator's URL.")
        self._endpoints = tuple(_base_url(url) for url in endpoints)
        self.preferred = 0  # where the last answer came from
        self._checked: set[int] = set()  # endpoints that showed themselves to be coordinators
        self.patience_s = patience_s
        self._closed = threading.Event()
        self.store: str | None = None
        self._credential = {"authorization": f"Bearer {token.text}"}
        headers = {"user-agent": f"pliant/{__version__}"}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=KEEP_S)
        # Not the environment's proxies: a token is for the coordinator alone.
        self._http = httpx2.Client(headers=headers, trust_env=False, limits=limits)

    def close(self) -> None:
        self._closed.set()
        self._http.close()

    def exchange(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, float],
        content: bytes | None,
        patience_s: float | None,
        *,
        once: bool = False,
    ) -> bytes:
        """Ask until somebody answers, or the patience is over. At least once, and each endpoint once."""
        require_names(path)
        until = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        attempt = 0
        while True:
            try:
                return self._once(self.endpoint(attempt), route, path, query, content)
            except TryAgain as error:
                reason = str(error)
                if once and not error.unsent:
                    raise Unreachable(
                        f"{reason}. It may have been done all the same; look before asking again."
                    ) from error
            attempt += 1
            if attempt >= len(self._endpoints):
                self.pause(attempt // len(self._endpoints), until, reason)

    def _once(
        self, base: int, route: Route, path: Mapping[str, str], query: Mapping[str, float], content: bytes | None
    ) -> bytes:
        if route.scope is not api.Scope.PUBLIC and base not in self._checked:
            self._check(base)
        request = self._request(base, route, path, query, content, ANSWER_S + query.get("wait_s", 0.0))
        with self._asking(base):
            response = self._http.send(request)
        self._accept(base, route, response)
        return response.content

    def _check(self, base: int) -> None:
        """See who is there before the token is sent; a coordinator that does not decide is one all the same."""
        with self._asking(base, unsent=True):
            response = self._http.send(self._request(base, routes.HEALTH, {}, {}, None, ANSWER_S))
        _require_ours(response)
        self._checked.add(base)

    @contextmanager
    def stream(self, base: int, job: str, after: int) -> Iterator[Iterator[bytes]]:
        """The bytes of a stream of events."""
        if base not in self._checked:
            self._check(base)
        request = self._request(base, routes.EVENTS, {"job": job}, {"after": after}, None, QUIET_S)
        request.headers["accept"] = routes.EVENTS.streams
        with self._asking(base):
            response = self._http.send(request, stream=True)
            try:
                if response.status_code != 200:
                    response.read()
                self._accept(base, routes.EVENTS, response)
                yield response.iter_bytes()
            finally:
                response.close()

    @contextmanager
    def _asking(self, base: int, *, unsent: bool = False) -> Iterator[None]:
        """Whatever goes wrong on the way is tried again, and whoever is there then has to show itself again."""
        try:
            yield
        except (httpx2.RequestError, httpx2.StreamError, RuntimeError) as error:
            self._checked.discard(base)
            unsent = unsent or isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise TryAgain(str(error) or type(error).__name__, unsent=unsent) from error

    def _request(
        self,
        base: int,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, float],
        content: bytes | None,
        answer_s: float,
    ) -> httpx2.Request:
        headers = {"content-type": "application/json"} if content is not None else {}
        if route.scope is not api.Scope.PUBLIC:
            headers |= self._credential
            if self.store is not None:
                headers[api.STORE_HEADER] = self.store
        url = self._endpoints[base] + route.path.format(**path)
        timeout = httpx2.Timeout(ANSWER_S, connect=CONNECT_S, read=answer_s)
        return self._http.build_request(
            route.method, url, params=query or None, content=content, headers=headers, timeout=timeout
        )

    def _accept(self, base: int, route: Route, response: httpx2.Response) -> None:
        """Raise unless this is a coordinator's yes."""
        _require_ours(response)
        if response.status_code != 200:
            raise _error(response)
        if self.store is None and route.scope is not api.Scope.PUBLIC:
            self.store = response.headers.get(api.STORE_HEADER)
        self.preferred = base

    def endpoint(self, attempt: int) -> int:
        return (self.preferred + attempt) % len(self._endpoints)

    def pause(self, attempt: int, until: float, reason: str) -> None:
        """Longer each time and never the same, so that a thousand clients do not come back at once."""
        left_s = until - time.monotonic()
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(attempt, 10))
        if left_s <= 0 or self._closed.wait(min(left_s, random.uniform(pause_s / 2, pause_s))):
            where = ", ".join(self._endpoints)
            raise Unreachable(f"No coordinator answers at {where}: {reason}. `pliant doctor` looks closer.")


def _base_url(text: str) -> str:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise BadInput(f"{text!r} is not a coordinator's URL: {error}.") from error
    plain = url.host and not url.query and not url.userinfo and url.path in ("", "/")
    if url.scheme not in ("http", "https") or not plain or not 0 < (url.port or 80) < 65536:
        raise BadInput(f"A coordinator's URL looks like http://127.0.0.1:7711; got {text!r}.")
    return str(url).rstrip("/")


def is_self(response: httpx2.Response) -> bool:
    """Whether we are talking to ourselves: TCP connects a socket to itself if its own port happens to be the one."""
    stream = response.extensions.get("network_stream")
    if stream is None:
        return False
    try:
        ours = stream.get_extra_info("client_addr")
        return ours is not None and ours == stream.get_extra_info("server_addr")
    except OSError:
        return False  # closed after this answer, as the other side asked: there is nothing to compare any more


def require_names(path: Mapping[str, str]) -> None:
    """What goes into a path must be a name: anything else could lead somewhere else."""
    for name in path.values():
        if wrong := bad_name(name):
            raise BadInput(f"{wrong[:1].upper()}{wrong[1:]}.")


def _require_ours(response: httpx2.Response) -> None:
    if response.headers.get(api.PROTOCOL_HEADER) != api.PROTOCOL or is_self(response):
        raise TryAgain("what answers there is not a Pliant coordinator, or one of another protocol", unsent=True)


def _error(response: httpx2.Response) -> Exception:
    """What to raise for an answer that is not a yes."""
    status = response.status_code
    try:
        problem = _PROBLEM.decode(response.content)
    except msgspec.MsgspecError:
        problem = api.Problem("", f"status {status}")
    if status in (408, 429, 503):
        return TryAgain(problem.why, unsent=problem.code != api.IN_DOUBT)
    if status in (401, 403):
        return NotAllowed(f"Not allowed: {problem.why}.")
    if status in (413, 414, 415, 422, 431):
        return BadInput(problem.why)
    if status >= 500:
        return PliantError(problem.why)
    return Refused(problem.why, problem.code, problem.revision)
