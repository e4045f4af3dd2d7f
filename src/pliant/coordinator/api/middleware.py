"""What every request passes before anything looks at what it asks for.

In this order: is it of a sensible size, does it name us as its host, does it come from a page of somebody else, does
it carry a credential, and does it mean this store. A browser that was tricked into asking (by a page of another
site, or by a name that was made to point here) fails before its credential is looked at; a stranger is told 401 for
every path alike, so it does not even learn which ones exist.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pliant.coordinator.api.auth import Grant, TokenRegistry
from pliant.coordinator.api.responses import refuse
from pliant.errors import StoreError
from pliant.telemetry import LogLimiter
from pliant.wire.api import PROTOCOL, PROTOCOL_HEADER, STORE_HEADER, Problem
from pliant.wire.api import Scope as Access
from pliant.wire.routes import ROUTES

HEAD_MAX = 16 * 1024
PATH_MAX = 2048
CALLED_MAX = 256
GRANT = "pliant.grant"
HEADERS = "pliant.headers"
"""What the gate leaves in an ASGI scope: the credential, and the headers by name."""
CONNECTION = "pliant.connection"  # what the server leaves in a scope's state: whom to ask to tell of a hangup

PUBLIC = frozenset(route.path for route in ROUTES if route.scope is Access.PUBLIC)

log = logging.getLogger(__name__)


class RequestGuard:
    """ASGI middleware around the whole application.

    `hosts` are the names, besides addresses and localhost, under which this coordinator may be called. `turned_away`
    is called with the reason's code, for whoever counts.
    """

    def __init__(
        self,
        app: ASGIApp,
        keyring: TokenRegistry,
        identity: str,
        hosts: Iterable[str],
        turned_away: Callable[[str], None],
    ) -> None:
        self._app = app
        self._keyring = keyring
        self._identity = identity.encode()
        self._marks = [
            (PROTOCOL_HEADER.encode(), PROTOCOL.encode()),
            (STORE_HEADER.encode(), self._identity),
            (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"),
        ]
        self._seldom = LogLimiter()
        self._called: dict[bytes, bool] = {}  # what was found out about the hosts that were asked for lately
        self._hosts = frozenset(host.lower() for host in hosts) | {"localhost"}
        self._turned_away = turned_away

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        marks = self._marks

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *marks]
            await send(message)

        headers: dict[bytes, bytes] = {}
        repeated = False
        size = 0
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            repeated = repeated or (name in headers and name in _ONCE)
            headers[name] = value
        problem = self._problem(scope, headers, size, repeated)
        if problem is None:
            problem = self._admit(scope, headers)
        if problem is None:
            scope[HEADERS] = headers
            await self._app(scope, receive, marked)
            return
        status, code, why = problem
        self._turned_away(code)
        # A stranger's connection is not kept: there is room for so many, and it is for those who may come in.
        await refuse(marked, status, Problem(code, why), close=True)

    def _problem(
        self, scope: Scope, headers: dict[bytes, bytes], size: int, repeated: bool
    ) -> tuple[int, str, str] | None:
        if size > HEAD_MAX:
            return 431, "too-large", f"the headers have {size} bytes; up to {HEAD_MAX} are taken"
        if len(scope["raw_path"]) + len(scope["query_string"]) > PATH_MAX:
            return 414, "too-large", f"the address is longer than {PATH_MAX} bytes"
        if repeated:
            return 400, "bad", "a header that may be there once is there twice"
        host = headers.get(b"host", b"")
        if not self._is_us(host):
            return 421, "wrong-host", "this coordinator is not called by that name; see --host of pliant coordinator"
        site = headers.get(b"sec-fetch-site", b"none")
        if site not in (b"none", b"same-origin") or not _same_origin(headers.get(b"origin"), host.lower()):
            return 403, "cross-site", "a page of another site may not ask this"
        return None

    def _admit(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if scope["path"] in PUBLIC:
            return None
        scheme, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        try:
            grant = self._keyring.check(text.strip() if scheme.lower() == "bearer" else None)
        except StoreError as error:
            return 503, "unavailable", f"whether this token is known cannot be looked up: {error}"
        if not isinstance(grant, Grant):
            # The path is a stranger's text: shown as a literal, and not for long.
            if (unsaid := self._seldom.admit()) is not None:
                before = f" ({unsaid} more like this before it)" if unsaid else ""
                what = (_peer(scope), scope["method"], scope["path"], grant, before)
                log.warning("turned away %s: %s %.60r: %s%s", *what)
            return 401, "no-credential", grant
        known = headers.get(STORE_HEADER.encode())
        if known is not None and known != self._identity:
            why = "you know another store than this one: its file was replaced, or this is another coordinator"
            return 409, "other-store", why
        scope[GRANT] = grant
        return None

    def _is_us(self, host: bytes) -> bool:
        known = self._called.get(host)
        if known is None:
            if len(self._called) >= CALLED_MAX:
                self._called.clear()
            known = self._called[host] = self._is_ours(host.decode("latin-1"))
        return known

    def _is_ours(self, host: str) -> bool:
        name = _hostname(host)
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
            return True  # an address cannot be made to point elsewhere
        except ValueError:
            return name.lower().rstrip(".") in self._hosts


_ONCE = frozenset({b"host", b"authorization", b"origin", b"content-length", b"content-type", STORE_HEADER.encode()})


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
    return client[0] if client else "somebody"
