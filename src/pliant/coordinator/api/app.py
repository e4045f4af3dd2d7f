"""The ASGI application: one endpoint for each row of the route table.

An endpoint checks what the table declares: the scope, the names in the path, the numbers in the query, and the body.
The handler gets a `Call` that passed all checks and returns bytes.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs

from prometheus_client import Histogram
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.coordinator.api.auth import Grant
from pliant.coordinator.api.middleware import CONNECTION, GRANT, HEADERS
from pliant.coordinator.api.responses import CHUNK_BYTES, UnreadAnswers, answer, refuse
from pliant.coordinator.notifications import ClientDisconnected, CoordinatorClosing
from pliant.core.messages import Code
from pliant.core.model.names import bad_path_name
from pliant.errors import BadInput, StoreError, StoreTimeout
from pliant.telemetry import CoordinatorMetrics
from pliant.wire.api import IN_DOUBT, PROTOCOL_HEADER, Problem
from pliant.wire.api import Scope as Access
from pliant.wire.codec import Body, encode_reply
from pliant.wire.protocol import is_newer, parse_version
from pliant.wire.routes import ROUTES, NameQuery, Query, Route

BODY_MAX = 1024 * 1024
BODY_TIME_S = 10.0
_PROTOCOL = PROTOCOL_HEADER.encode()
_TOO_LARGE = f"the body must have at most {BODY_MAX} bytes"
_NUMBERS = {int: re.compile(r"[0-9]{1,16}"), float: re.compile(r"[0-9]{1,16}(\.[0-9]{1,16})?")}

STATUS: Mapping[str, int] = {
    Code.NO_JOB: 404,
    Code.UNKNOWN: 404,
    Code.GONE: 410,
    Code.EXISTS: 409,
    Code.ENDED: 409,
    Code.SEALED: 409,
    Code.PAST: 409,
    Code.MISMATCH: 409,
    Code.NOT_NEXT: 409,
    Code.SET_BACK: 409,
    Code.RUNNING: 409,
    Code.BAD: 422,
}
"""The HTTP status of each rejection of the core. The body has the code, which is more specific."""

log = logging.getLogger(__name__)


class ApiError(Exception):
    """End a call with a status and a reason."""

    def __init__(self, status: int, code: str, why: str, revision: int = 0) -> None:
        super().__init__(why)
        self.status = status
        self.problem = Problem(code, why, revision)


class ClientConnection(Protocol):
    """The connection that a request came on."""

    def on_close(self, key: object, callback: Callable[[bool], None]) -> None:
        """Call `callback` at the end of the connection, with whether the client closed it; at once if it is over.

        A second callback with the same key replaces the first.
        """


@dataclass(slots=True)
class Call:
    """A request that passed all checks of its route."""

    route: Route
    grant: Grant | None
    path: Mapping[str, str]
    query: Mapping[str, float | str]
    body: object
    headers: Mapping[bytes, bytes]
    receive: Receive
    send: Send
    connection: ClientConnection | None = None  # None under another server than `pliant.coordinator.server`

    @property
    def job(self) -> str:
        return self.path["job"]

    async def wait_disconnected(self) -> None:
        """Return when the client has closed the connection. Run it as a task beside a long wait."""
        while (await self.receive())["type"] != "http.disconnect":
            pass


Handler = Callable[[Call], Awaitable[bytes | None]]
"""Return the body of the answer, or None if the handler sent the answer itself."""


def application(handlers: Mapping[str, Handler], metrics: CoordinatorMetrics) -> ASGIApp:
    """Build the application from a complete set of handlers, by route name."""
    missing = {route.name for route in ROUTES} ^ handlers.keys()
    if missing:
        raise TypeError(f"routes and handlers do not match: {', '.join(sorted(missing))}")
    unread = UnreadAnswers()
    endpoints = [_Endpoint(route, handlers[route.name], metrics, unread) for route in ROUTES]
    routes = [StarletteRoute(each.route.path, each, methods=[each.route.method]) for each in endpoints]
    for route in routes:
        route.methods = {method for method in route.methods or () if method != "HEAD"}  # Starlette adds it
    app = Starlette(routes=routes, exception_handlers={HTTPException: _not_found})
    app.router.redirect_slashes = False
    return _FastRoutes(app, [endpoint for endpoint in endpoints if endpoint.route.name in FAST_ROUTES])


FAST_ROUTES = frozenset({"renew", "watch", "report"})


class _FastRoutes:
    """Dispatch the three routes that are called thousands of times a second without Starlette's router.

    The router tries the regular expression of each route in turn, and these three routes are nearly all of the traffic.
    """

    def __init__(self, app: ASGIApp, endpoints: Iterable[_Endpoint]) -> None:
        self._app = app
        self._endpoints = [(endpoint.route.method, endpoint.route.path.split("/"), endpoint) for endpoint in endpoints]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = scope["path"].split("/")
        for method, parts, endpoint in self._endpoints:
            if len(parts) == len(given) and parts[-1] == given[-1] and method == scope["method"]:
                pairs = list(zip(parts, given, strict=True))
                if all(part == text or part.startswith("{") for part, text in pairs):
                    scope["path_params"] = {part[1:-1]: text for part, text in pairs if part.startswith("{")}
                    await endpoint(scope, receive, send)
                    return
        await self._app(scope, receive, send)


async def _not_found(_: StarletteRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    why = "there is no such path" if error.status_code == 404 else "this path has another method"
    code = "no-path" if error.status_code == 404 else "no-method"
    body = encode_reply(Problem(code, f"{why}; /v1/openapi.json lists them all"))
    return Response(body, error.status_code, error.headers, "application/json")


class _Endpoint:
    """One row of the route table as an ASGI application."""

    def __init__(self, route: Route, handler: Handler, metrics: CoordinatorMetrics, unread: UnreadAnswers) -> None:
        self.route = route
        self._handler = handler
        self._metrics = metrics
        self._unread = unread
        self._body: Body[object] | None = Body(route.body) if route.body is not None else None
        self._media = route.reply if isinstance(route.reply, str) else "application/json"
        self._defaults = _defaults(route.query)
        self._ok_duration: Histogram | None = None  # made at the first use: most routes are never called

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.perf_counter(), 200
        try:
            call = await self._call(scope, receive, send)
            body = await self._handler(call)
            if body is not None:
                await self._answer(call, body)
        except ClientDisconnected:
            status = 499  # the status that nginx logs for a client that did not wait
        except ApiError as refused:
            status = refused.status
            await refuse(send, status, refused.problem)
        except BadInput as error:
            status = 422
            await refuse(send, status, Problem("bad", error.why))
        except StoreTimeout as error:
            status = 503
            await refuse(send, status, Problem(IN_DOUBT, str(error)))
        except (StoreError, CoordinatorClosing) as error:
            status = 503
            await refuse(send, status, Problem("unavailable", str(error)))
        except Exception as error:  # why: the client must get a JSON answer, and the log the traceback
            status = 500
            log.exception("%s failed: this is a bug in Pliant", self.route.name)
            await refuse(send, status, Problem("bug", f"this is a bug in Pliant: {type(error).__name__}; see its log"))
        finally:
            self._duration(status).observe(time.perf_counter() - start)

    async def _answer(self, call: Call, body: bytes) -> None:
        """Send the answer. Views are exempt from the limit: after a takeover all members read theirs at once."""
        if len(body) <= CHUNK_BYTES or call.grant is None or self.route.scope is Access.JOIN:
            await answer(call.send, 200, body, self._media)
            return
        with self._unread.hold(call.grant.id, len(body)) as held:
            if not held:
                why = f"clients with token {call.grant.id} do not read the answers that they have; try again later"
                raise ApiError(503, "busy", why)
            await answer(call.send, 200, body, self._media)

    def _duration(self, status: int) -> Histogram:
        if status != 200:
            return self._metrics.requests.labels(self.route.name, status)
        if self._ok_duration is None:
            self._ok_duration = self._metrics.requests.labels(self.route.name, 200)
        return self._ok_duration

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> Call:
        path: Mapping[str, str] = scope["path_params"]
        grant: Grant | None = scope.get(GRANT)
        if grant is None and self.route.scope is not Access.PUBLIC:
            # The application runs without its guard.
            raise ApiError(401, "no-credential", "the request did not pass the credential check")
        if grant is not None and (why := grant.refusal(self.route, path.get("job"))):
            raise ApiError(403, "not-allowed", why)
        for kind, name in path.items():
            if wrong := bad_path_name(kind, name):
                raise ApiError(422, Code.BAD, wrong)
        headers: Mapping[bytes, bytes] = scope[HEADERS]
        query = _query(scope["query_string"], self.route.query) if scope["query_string"] else self._defaults
        body = None if self._body is None else await self._read_body(receive, headers)
        connection: ClientConnection | None = scope.get("state", {}).get(CONNECTION)
        return Call(self.route, grant, path, query, body, headers, receive, send, connection)

    async def _read_body(self, receive: Receive, headers: Mapping[bytes, bytes]) -> object:
        assert self._body is not None
        version = parse_version(headers.get(_PROTOCOL, b"").decode("latin-1"))
        return self._body.decode(await _read(receive, headers), from_newer=is_newer(version))


async def _read(receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
    """Read the whole body within the limits of size and time."""
    media = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if media != b"application/json":
        raise ApiError(415, "media-type", "send application/json")
    if int(headers.get(b"content-length", b"0")) > BODY_MAX:  # the parser accepts only numbers
        raise ApiError(413, "too-large", _TOO_LARGE)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIME_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                data += message.get("body", b"")
                if len(data) > BODY_MAX:
                    raise ApiError(413, "too-large", _TOO_LARGE)
                if not message.get("more_body", False):
                    return bytes(data)
    except TimeoutError:
        raise ApiError(408, "too-slow", f"the body must arrive within {BODY_TIME_S:g} s") from None


def _defaults(known: tuple[Query | NameQuery, ...]) -> dict[str, float | str]:
    return {query.name: "" if isinstance(query, NameQuery) else query.kind(query.default) for query in known}


def _query(text: bytes, known: tuple[Query | NameQuery, ...]) -> dict[str, float | str]:
    """Parse the query: known parameters, each at most once, with names, or numbers within their bounds."""
    try:
        given = parse_qs(text.decode("ascii"), keep_blank_values=True, strict_parsing=bool(text), max_num_fields=16)
    except ValueError as error:
        raise ApiError(422, Code.BAD, f"the query is malformed: {error}") from None
    values = _defaults(known)
    for name, texts in given.items():
        query = next((query for query in known if query.name == name), None)
        if query is None:
            raise ApiError(422, Code.BAD, f"unknown query parameter {name[:40]!r}")
        if isinstance(query, NameQuery):
            wrong = bad_path_name(name, texts[0]) if len(texts) == 1 else f"{name} must be given once"
            if wrong:
                raise ApiError(422, Code.BAD, wrong)
            values[name] = texts[0]
            continue
        # Python's own parser also accepts "1_0" and " 1".
        is_number = len(texts) == 1 and _NUMBERS[query.kind].fullmatch(texts[0])
        value = query.kind(texts[0]) if is_number else query.high + 1
        if not query.low <= value <= query.high:
            what = f"{name} must be one number from {query.low:g} to {query.high:g}; got {','.join(texts)[:40]!r}"
            raise ApiError(422, Code.BAD, what)
        values[name] = value
    return values
