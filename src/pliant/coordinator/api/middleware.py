"""The checks that every request passes before it is routed.

In this order: the size of the head, the Host header, the origin, the credential, and the identity of the store. A
browser that was tricked into a request (by a page of another site, or by DNS rebinding) fails before its credential is
checked. A client without a credential gets 401 for every path alike, so it cannot find out which paths exist.

Starlette's TrustedHostMiddleware does not serve here: it has a list of names but does not accept every IP address,
which DNS rebinding cannot forge. Its CORSMiddleware adds headers to answers, but does not refuse requests of other
origins.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pliant.coordinator.api.auth import Grant, TokenRegistry
from pliant.coordinator.api.responses import refuse
from pliant.errors import StoreError
from pliant.telemetry import LogLimiter
from pliant.wire.api import (
    CHALLENGE_HEADER,
    LEADER_HEADER,
    PROOF_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    STORE_HEADER,
    Problem,
)
from pliant.wire.api import Scope as Access
from pliant.wire.protocol import describe_old_client, parse_version
from pliant.wire.routes import ROUTES

HEAD_MAX = 16 * 1024
PATH_MAX = 2048
HOSTS_MAX = 256  # Host headers whose check is cached
# Keys that `RequestGuard` adds to an ASGI scope: the rights of the request, and its headers by name.
GRANT = "pliant.grant"
HEADERS = "pliant.headers"
CONNECTION = "pliant.connection"  # key that the server adds to a scope's state

_CHALLENGE = CHALLENGE_HEADER.encode()
_PROTOCOL = PROTOCOL_HEADER.encode()

PUBLIC = frozenset(route.path for route in ROUTES if route.scope is Access.PUBLIC)

log = logging.getLogger(__name__)


class RequestGuard:
    """ASGI middleware around the whole application.

    `hosts` are the names, besides IP addresses and localhost, that the Host header may have. `on_refusal` is called
    with the code of every refusal. `leader_url` returns the URL of another coordinator that leads, if there is one. All
    answers with status 503 to authorized clients have it in a header.
    """

    def __init__(
        self,
        app: ASGIApp,
        keyring: TokenRegistry,
        identity: str,
        hosts: Iterable[str],
        on_refusal: Callable[[str], None],
        leader_url: Callable[[], str] = str,
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._identity = identity.encode()
        self._response_headers = [
            (PROTOCOL_HEADER.encode(), PROTOCOL.encode()),
            (STORE_HEADER.encode(), self._identity),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        self._log_limiter = LogLimiter()
        self._checked_hosts: dict[bytes, bool] = {}
        self._hosts = frozenset(host.lower() for host in hosts) | {"localhost"}
        self._on_refusal = on_refusal
        self._leader_url = leader_url

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response_headers = self._response_headers

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *response_headers]
                is_refused = message["status"] == HTTPStatus.SERVICE_UNAVAILABLE and GRANT in scope
                if is_refused and (url := self._leader_url()):
                    message["headers"].append((LEADER_HEADER.encode(), url.encode()))
            await send(message)

        headers: dict[bytes, bytes] = {}
        repeated = False
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            repeated = repeated or (name in headers and name in _SINGLE_HEADERS)
            headers[name] = value
        problem = self._check_head(scope, headers, size, repeated)
        if problem is None:
            problem = self._check_credential(scope, headers)
        if problem is None and (challenge := headers.get(_CHALLENGE)) is not None:
            problem, answer = self._answer_challenge(challenge)
            response_headers = [*response_headers, *answer]
        if problem is None:
            scope[HEADERS] = headers
            await self._app(scope, receive, send_with_headers)
            return
        status, code, why = problem
        self._on_refusal(code)
        # Close the connection, because their number is limited and reserved for clients with a credential.
        await refuse(send_with_headers, status, Problem(code, why), close=True)

    def _check_head(
        self, scope: Scope, headers: dict[bytes, bytes], size: int, repeated: bool
    ) -> tuple[int, str, str] | None:
        if size > HEAD_MAX:
            return 431, "too-large", f"the headers have {size} bytes; at most {HEAD_MAX} are accepted"
        if len(scope["raw_path"]) + len(scope["query_string"]) > PATH_MAX:
            return 414, "too-large", f"the path and query have more than {PATH_MAX} bytes"
        if repeated:
            return 400, "bad", "a header that may occur once occurs twice"
        version = parse_version(headers.get(_PROTOCOL, PROTOCOL.encode()).decode("latin-1"))
        if version is None:
            return 400, "bad", f"{PROTOCOL_HEADER} must be a number"
        if old := describe_old_client(version):
            return 426, "old-client", old
        host = headers.get(b"host", b"")
        if not self._is_allowed_host(host):
            return 421, "wrong-host", "the Host header has another name; allow it with `pliant coordinator --host`"
        site = headers.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin") or not _same_origin(headers.get(b"origin"), host.lower()):
            return 403, "cross-site", "requests from pages of another site are refused"
        return None

    def _check_credential(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if scope["path"] in PUBLIC:
            return None
        scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        try:
            connection = scope["state"].get(CONNECTION)
            names = frozenset() if connection is None else connection.certificate_names
            grant = self._keyring.check(text.strip() if scheme.lower() == "bearer" else None, names)
        except StoreError as error:
            return 503, "unavailable", f"the token cannot be looked up: {error}"
        if not isinstance(grant, Grant):
            # The client chose the path: log it as a truncated literal.
            if (omitted := self._log_limiter.admit()) is not None:
                before = f" ({omitted} more like this before it)" if omitted else ""
                what = (_peer(scope), scope["method"], scope["path"], grant, before)
                log.warning("refused %s: %s %.60r: %s%s", *what)
            return 401, "no-credential", grant
        known = headers.get(STORE_HEADER.encode())
        if known is not None and known != self._identity:
            why = "the request is for another store: the file was replaced, or this is another coordinator"
            return 409, "other-store", why
        scope[GRANT] = grant
        return None

    def _answer_challenge(self, challenge: bytes) -> tuple[tuple[int, str, str] | None, list[tuple[bytes, bytes]]]:
        """Return the header that proves to a client that this coordinator knows its token, or the problem."""
        try:
            answer = self._keyring.answer_challenge(challenge.decode("latin-1"))
        except StoreError as error:
            return (503, "unavailable", f"the token cannot be looked up: {error}"), []
        if answer is None:
            return (400, "bad", f"{CHALLENGE_HEADER} must have the id of a token and 32 to 128 hexadecimal digits"), []
        return None, [(PROOF_HEADER.encode(), answer.encode())]

    def _is_allowed_host(self, host: bytes) -> bool:
        known = self._checked_hosts.get(host)
        if known is None:
            if len(self._checked_hosts) >= HOSTS_MAX:
                self._checked_hosts.clear()
            known = self._checked_hosts[host] = self._check_host(host.decode("latin-1"))
        return known

    def _check_host(self, host: str) -> bool:
        name = _hostname(host)
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
            return True  # DNS rebinding cannot forge an address
        except ValueError:
            return name.lower().rstrip(".") in self._hosts


_SINGLE_HEADERS = frozenset(
    {b"host", b"authorization", b"origin", b"content-length", b"content-type", STORE_HEADER.encode()}
)


def _hostname(host: str) -> str | None:
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return None if "@" in host or "/" in host or parts.query or parts.fragment else parts.hostname


def _same_origin(origin: bytes | None, host: bytes) -> bool:
    return origin is None or origin.lower() in (b"http://" + host, b"https://" + host)


def _peer(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "an unknown client"
