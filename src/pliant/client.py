"""How everything else talks to a coordinator: the command line, agents, workers, and programs of yours.

A `Client` keeps asking. What it sends may be sent twice: every command of ours says who or what it is about, so the
second time it finds its work done. So a lost connection, a coordinator that is starting, or one that says "not now" is
tried again, at another endpoint if there is one, with growing pauses, until `patience_s` is over; then `Unreachable`.
A refusal is an answer and is raised at once: `Refused`, `NotAllowed` or `BadInput`.

It makes sure whom it is talking to before it shows its token or believes anything: an answer without our protocol's
header is somebody else's, and a connection to oneself (which loopback can make, when nobody listens on an ephemeral
port) is nobody's. That is against accidents; against somebody who means to deceive there is TLS.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import httpx2
import msgspec

from pliant import __version__
from pliant.core.messages import Command, Create, Event
from pliant.core.model import AgentId, MemberId
from pliant.core.names import bad_name
from pliant.credentials import Token
from pliant.errors import BadInput, NotAllowed, PliantError, Refused, Unreachable
from pliant.wire import api, routes
from pliant.wire.codec import Body
from pliant.wire.routes import Route
from pliant.wire.views import Told

PATIENCE_S = 10.0
ANSWER_S = 10.0  # how long a coordinator may take over one answer, besides what it is asked to wait
CONNECT_S = 3.0
QUIET_S = 45.0  # a stream sends something every 15 s; after this long without a byte it is dead
PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 2.0
KEEP_S = 60.0  # less than the server keeps a connection, so that we never send into one it is closing

T = TypeVar("T")

_PROBLEM = msgspec.json.Decoder(api.Problem)


class _TryAgain(Exception):
    """There was no answer; ask again, perhaps elsewhere. `unsent`: nobody can have acted on it."""

    def __init__(self, why: str, *, unsent: bool = False) -> None:
        super().__init__(why)
        self.unsent = unsent


class Client:
    """Make one and share it between threads; close it, or use it as a context manager.

    `endpoints` are base URLs, `http://127.0.0.1:7711` for instance. `store` is the identity of the store that was
    talked to, once there was an answer: from then on another one is refused.
    """

    def __init__(self, endpoints: Sequence[str], token: Token, *, patience_s: float = PATIENCE_S) -> None:
        if not endpoints:
            raise BadInput("A client needs at least one coordinator's URL.")
        self._endpoints = tuple(_base_url(url) for url in endpoints)
        self._preferred = 0  # where the last answer came from
        self._checked: set[int] = set()  # endpoints that showed themselves to be coordinators
        self._patience_s = patience_s
        self._closed = threading.Event()
        self.store: str | None = None
        self._credential = {"authorization": f"Bearer {token.text}"}
        headers = {"user-agent": f"pliant/{__version__}"}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=8, keepalive_expiry=KEEP_S)
        # Not the environment's proxies: a token is for the coordinator alone.
        self._http = httpx2.Client(headers=headers, trust_env=False, limits=limits)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends waits between tries; what is under way in other threads fails."""
        self._closed.set()
        self._http.close()

    # -------------------------------------------------------------------------------------------- commands

    def send(self, job: str, command: Command, patience_s: float | None = None) -> api.Done:
        """Have a command decided. When this returns it is durable."""
        route = routes.COMMANDS.get(type(command))
        if route is None:
            raise BadInput(f"{type(command).__name__} is nobody's to say but the coordinator's.")
        path = {} if isinstance(command, Create) else {"job": job}
        return self._call(route, api.Done, path, body=command, patience_s=patience_s)

    def renew(self, job: str, member: MemberId, revision: int, patience_s: float | None = None) -> api.Done:
        """Call every third of the lease's time; `revision` is that of the newest view."""
        body = api.Renew(member, revision)
        return self._call(routes.RENEW, api.Done, {"job": job}, body=body, patience_s=patience_s)

    def renew_agent(self, job: str, agent: AgentId, revision: int, patience_s: float | None = None) -> api.Done:
        """The same for an agent."""
        body = api.RenewAgent(agent, revision)
        return self._call(routes.RENEW_AGENT, api.Done, {"job": job}, body=body, patience_s=patience_s)

    # -------------------------------------------------------------------------------------------- watching

    def watch(
        self, job: str, member: MemberId, after: int, wait_s: float = 25.0, patience_s: float | None = None
    ) -> Told:
        """Wait for what is new for a member; `pliant.wire.views.applied` makes a view of it."""
        path = {"job": job, "member": member}
        return self._call(routes.WATCH, Told, path, {"after": after, "wait_s": wait_s}, patience_s=patience_s)

    def orders(
        self, job: str, agent: AgentId, after: int, wait_s: float = 25.0, patience_s: float | None = None
    ) -> api.Orders:
        """Wait for what is new for an agent."""
        path = {"job": job, "agent": agent}
        return self._call(routes.ORDERS, api.Orders, path, {"after": after, "wait_s": wait_s}, patience_s=patience_s)

    def events(self, job: str, after: int, limit: int = 100) -> tuple[tuple[int, Event], ...]:
        """Events after a revision, oldest first; empty if there are none yet."""
        page = self._call(routes.EVENTS, api.EventPage, {"job": job}, {"after": after, "limit": limit})
        return tuple((line.revision, _event(bytes(line.event))) for line in page.events)

    def follow(self, job: str, after: int) -> Generator[tuple[int, Event]]:
        """Events after a revision as they happen, without end, without a gap, across lost connections."""
        _require_names({"job": job})
        attempt, until = 0, time.monotonic() + self._patience_s
        while True:
            try:
                with self._stream(self._endpoint(attempt), job, after) as chunks:
                    attempt = 0
                    for revision, event in _server_sent(chunks):
                        if revision != after + 1:
                            raise PliantError(f"the stream of {job} jumped from revision {after} to {revision}")
                        after = revision
                        yield revision, event
                reason = "the stream ended"
            except _TryAgain as error:
                reason = str(error)
            if not attempt:  # it was a coordinator's stream until now: the patience starts afresh
                until = time.monotonic() + self._patience_s
            attempt += 1
            self._pause(attempt, until, reason)

    # --------------------------------------------------------------------------------------------- reading

    def about(self) -> api.About:
        """Who answers."""
        return self._call(routes.ABOUT, api.About, {})

    def jobs(self) -> tuple[api.JobLine, ...]:
        """Every job that this token may see."""
        return self._call(routes.JOBS, api.JobList, {}).jobs

    def job(self, name: str) -> api.JobStatus:
        """One job with its members and agents."""
        return self._call(routes.JOB, api.JobStatus, {"job": name})

    def openapi(self) -> dict[str, Any]:
        """The API, described."""
        return self._call(routes.OPENAPI, dict, {})

    def metrics(self) -> str:
        """The coordinator's numbers in Prometheus' text format."""
        return self._exchange(routes.METRICS, {}, {}, None, None).decode()

    def healthy(self) -> bool:
        """Whether a coordinator that decides answers, at once."""
        try:
            return self._call(routes.HEALTH, api.Health, {}, patience_s=0.0).ok
        except PliantError:
            return False

    # ---------------------------------------------------------------------------------------------- tokens

    def make_token(self, wish: api.TokenWish) -> api.TokenMade:
        """A new token. Once it may have been made it is not asked for again: each time would make one."""
        return self._call(routes.TOKEN, api.TokenMade, {}, body=wish, once=True)

    def tokens(self) -> tuple[api.TokenLine, ...]:
        """What is known of every token."""
        return self._call(routes.TOKENS, api.TokenList, {}).tokens

    def end_token(self, token_id: str, after_s: float = 0.0) -> api.TokenLine:
        """Let a token end, now or after an overlap."""
        return self._call(routes.TOKEN_END, api.TokenLine, {}, body=api.TokenEnd(token_id, after_s))

    # ---------------------------------------------------------------------------------------------- inside

    def _call(
        self,
        route: Route,
        reply: type[T],
        path: Mapping[str, str],
        query: Mapping[str, float] | None = None,
        body: object = None,
        patience_s: float | None = None,
        *,
        once: bool = False,
    ) -> T:
        data = self._exchange(route, path, query or {}, body, patience_s, once=once)
        try:
            return msgspec.json.decode(data, type=reply)  # a newer coordinator may say more than we know of
        except msgspec.MsgspecError as error:
            raise PliantError(f"the coordinator's answer to {route.name} cannot be read: {error}") from error

    def _exchange(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Mapping[str, float],
        body: object,
        patience_s: float | None,
        *,
        once: bool = False,
    ) -> bytes:
        """Ask until somebody answers, or the patience is over. At least once, and each endpoint once."""
        _require_names(path)
        content = None if body is None else _body(type(body)).encode(body)
        until = time.monotonic() + (self._patience_s if patience_s is None else patience_s)
        attempt = 0
        while True:
            try:
                return self._once(self._endpoint(attempt), route, path, query, content)
            except _TryAgain as error:
                reason = str(error)
                if once and not error.unsent:
                    raise Unreachable(
                        f"{reason}. It may have been done all the same; look before asking again."
                    ) from error
            attempt += 1
            if attempt >= len(self._endpoints):
                self._pause(attempt // len(self._endpoints), until, reason)

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
    def _stream(self, base: int, job: str, after: int) -> Iterator[Iterator[bytes]]:
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
            raise _TryAgain(str(error) or type(error).__name__, unsent=unsent) from error

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
        self._preferred = base

    def _endpoint(self, attempt: int) -> int:
        return (self._preferred + attempt) % len(self._endpoints)

    def _pause(self, attempt: int, until: float, reason: str) -> None:
        """Longer each time and never the same, so that a thousand clients do not come back at once."""
        left_s = until - time.monotonic()
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2 ** min(attempt, 10))
        if left_s <= 0 or self._closed.wait(min(left_s, random.uniform(pause_s / 2, pause_s))):
            where = ", ".join(self._endpoints)
            raise Unreachable(f"No coordinator answers at {where}: {reason}. `pliant doctor` looks closer.")


_bodies: dict[type, Body[Any]] = {}


def _body(cls: type) -> Body[Any]:
    if cls not in _bodies:
        _bodies[cls] = Body(cls)
    return _bodies[cls]


def _base_url(text: str) -> str:
    try:
        url = httpx2.URL(text)
    except httpx2.InvalidURL as error:
        raise BadInput(f"{text!r} is not a coordinator's URL: {error}.") from error
    plain = url.host and not url.query and not url.userinfo and url.path in ("", "/")
    if url.scheme not in ("http", "https") or not plain or not 0 < (url.port or 80) < 65536:
        raise BadInput(f"A coordinator's URL looks like http://127.0.0.1:7711; got {text!r}.")
    return str(url).rstrip("/")


def _is_self(response: httpx2.Response) -> bool:
    """Whether we are talking to ourselves: TCP connects a socket to itself if its own port happens to be the one."""
    stream = response.extensions.get("network_stream")
    if stream is None:
        return False
    try:
        ours = stream.get_extra_info("client_addr")
        return ours is not None and ours == stream.get_extra_info("server_addr")
    except OSError:
        return False  # closed after this answer, as the other side asked: there is nothing to compare any more


def _require_names(path: Mapping[str, str]) -> None:
    """What goes into a path must be a name: anything else could lead somewhere else."""
    for name in path.values():
        if wrong := bad_name(name):
            raise BadInput(f"{wrong[:1].upper()}{wrong[1:]}.")


def _require_ours(response: httpx2.Response) -> None:
    if response.headers.get(api.PROTOCOL_HEADER) != api.PROTOCOL or _is_self(response):
        raise _TryAgain("what answers there is not a Pliant coordinator, or one of another protocol", unsent=True)


def _server_sent(chunks: Iterator[bytes]) -> Iterator[tuple[int, Event]]:
    """The events in a stream of bytes; of a line that did not come to its end nothing is used."""
    revision, rest = 0, b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")  # and nowhere else: text may hold what Unicode takes for a new line
        for line in lines:
            if line.startswith(b"id:"):
                revision = int(line[3:])
            elif line.startswith(b"data:"):
                yield revision, _event(line[5:].strip())


def _event(data: bytes) -> Event:
    try:
        return api.EVENTS.decode(data)
    except BadInput as error:
        raise PliantError(
            f"this event cannot be read, perhaps the coordinator is newer than we are: {error}"
        ) from error


def _error(response: httpx2.Response) -> Exception:
    """What to raise for an answer that is not a yes."""
    status = response.status_code
    try:
        problem = _PROBLEM.decode(response.content)
    except msgspec.MsgspecError:
        problem = api.Problem("", f"status {status}")
    if status in (408, 429, 503):
        return _TryAgain(problem.why)
    if status in (401, 403):
        return NotAllowed(f"Not allowed: {problem.why}.")
    if status in (413, 414, 415, 422, 431):
        return BadInput(problem.why)
    if status >= 500:
        return PliantError(problem.why)
    return Refused(problem.why, problem.code, problem.revision)
