"""Tokens, their scopes and their expiry.

The store keeps the tokens as hashes, in a stream of their own beside the jobs. Like any decision, a change is durable
before it is answered.
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from pliant.core.model.names import bad_name
from pliant.credentials import Token, make_token, parse_token, proof
from pliant.errors import BadInput, StoreError, StoreUnavailable
from pliant.stores.base import Store, Write, Written
from pliant.wire.api import UNKNOWN_TOKEN, Scope, TokenLine, TokenRequest
from pliant.wire.codec import Codec, decode_state, encode_state
from pliant.wire.routes import Route

STREAM = "@tokens"
TOKENS_MAX = 10_000
LABEL_MAX = 200
ENDED_KEPT_S = 7 * 86400.0  # how long an expired token stays in the list with its time of expiry
ORPHAN_S = 86400.0  # age from which a token ends whose job does not exist
ORPHANS_AT_ONCE = 100  # in one write
REFRESH_S = 1.0  # how long a token may stay valid here after another coordinator expired it
TRIES = 4
_CHALLENGE = re.compile(r"([0-9a-f]{12}) ([0-9a-f]{32,128})")


@dataclass(frozen=True, slots=True)
class StoredToken:
    """The stored part of a token. Times are wall-clock seconds, because an expiry is a date and not a lease."""

    id: str
    digest: str
    scope: Scope
    job: str | None
    label: str
    made_at: float
    ends_at: float | None
    is_revoked: bool = False  # ended at once, for good: a clock that is set back does not revive it
    until_job_ends: bool = False
    cert: str | None = None  # the name of the client certificate that must come with it


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """All tokens of a store, oldest first."""

    keys: tuple[StoredToken, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCreated:
    key: StoredToken


@dataclass(frozen=True, slots=True)
class TokenExpires:
    id: str
    ends_at: float
    is_revoked: bool = False


_CHANGES: Codec[TokenCreated | TokenExpires] = Codec((TokenCreated, TokenExpires))


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a request."""

    id: str
    scope: Scope
    job: str | None

    def refusal(self, route: Route, job: str | None) -> str:
        """Return why these rights do not cover a route for a job; empty if they do."""
        if not self.scope.covers(route.scope):
            return f"this needs a token with scope {route.scope.value}; yours has scope {self.scope.value}"
        if self.job is None or job == self.job or (job is None and route.shared):
            return ""
        return f"your token is only for job {self.job}"


class TokenRegistry:
    """The tokens of one store. `wall` returns the current time, for expiry.

    Any coordinator may change them, also one that does not lead: they are one record with its own compare-and-swap, and
    a token must be revocable wherever an operator can reach. `load`, `refresh`, `create` and `expire` call the store;
    the server calls them in one thread. They replace the tokens as a whole, so all others may be called on the loop.

    `has_ended` returns whether a job is over for its workers as well, which still save and leave after its end. It
    returns False for a job that it does not know.
    """

    def __init__(
        self, store: Store, wall: Callable[[], float], has_ended: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._store = store
        self._wall = wall
        self._has_ended = has_ended
        self._revision = 0
        self._keys: dict[str, StoredToken] = {}
        self._problem: StoreError | None = None  # why the last refresh failed

    def load(self) -> None:
        """Read the tokens from the store. Call it once before the first check."""
        stored = self._store.read(STREAM)
        if stored is None:
            return
        keys = {key.id: key for key in decode_state(stored.record, StoredTokens).keys}
        for data in stored.tail:
            _apply(keys, _CHANGES.decode(data))
        self._keys, self._revision = keys, stored.revision

    def check(self, text: str | None, certificate: frozenset[str] = frozenset()) -> Grant | str:
        """Return the rights of a bearer token, or why it is refused. Takes the same time for every wrong secret.

        `certificate` has the names of the client's certificate.
        """
        if text is None:
            return "a token is required: send `Authorization: Bearer` with one from a token file"
        token = parse_token(text)
        if token is None:
            return "the credential is not a Pliant token"
        key = self._get(token.id)
        matches = hmac.compare_digest(token.digest, key.digest if key else "0" * 64)
        if key is None or not matches:
            return "this token is unknown here; it may belong to another coordinator"
        if self._is_over(key):
            return f"token {key.id} has expired{_with_job(key)}; ask for a new one"
        if key.cert is not None and key.cert not in certificate:
            own = f"this client's is {', '.join(sorted(certificate))}" if certificate else "this client has none"
            return f"token {key.id} is bound to the certificate {key.cert}, and {own}"
        return Grant(key.id, key.scope, key.job)

    def answer_challenge(self, challenge: str) -> str | None:
        """Return the proof that this coordinator knows a token, for a challenge of its id and a nonce.

        UNKNOWN_TOKEN if it does not, None if this is not a challenge. An expired token is answered as well, so that
        its owner is told that it has expired.
        """
        form = _CHALLENGE.fullmatch(challenge)
        if form is None:
            return None
        id_, nonce = form.groups()
        key = self._get(id_)
        return UNKNOWN_TOKEN if key is None else proof(key.digest, nonce)

    def has_expired(self, id_: str) -> bool:
        """Return whether a token that was valid has expired."""
        key = self._keys.get(id_)
        return key is None or self._is_over(key)

    def _is_over(self, key: StoredToken) -> bool:
        if key.is_revoked or (key.ends_at is not None and self._wall() >= key.ends_at):
            return True
        return key.until_job_ends and key.job is not None and self._has_ended(key.job)

    def create(self, request: TokenRequest) -> tuple[Token, TokenLine]:
        """Create a token. Only the caller ever sees it."""
        _check_request(request)
        token, now = make_token(), self._wall()
        ends_at = None if request.ttl_s is None else now + request.ttl_s
        of = (request.scope, request.job, request.label, now, ends_at)
        until = request.until_job_ends
        self._add(StoredToken(token.id, token.digest, *of, until_job_ends=until, cert=request.cert))
        return token, self._line(self._keys[token.id])

    def adopt(self, token: Token, label: str) -> None:
        """Give scope admin to a token that the owner of this machine put in a file."""
        key = self._keys.get(token.id)
        if key is None:  # beyond the maximum as well, or the coordinator could not start
            self._write(TokenCreated(StoredToken(token.id, token.digest, Scope.ADMIN, None, label, self._wall(), None)))
        elif isinstance(problem := self.check(token.text), str):
            raise BadInput(f"The coordinator's own token cannot be used: {problem}. Remove its file to get a new one.")

    def expire(self, id_: str, after_s: float) -> TokenLine:
        """Let a token expire in `after_s`, unless it expires sooner; in 0 s means for good."""
        key = self._keys.get(id_)
        if key is None:
            raise BadInput(f"There is no token {id_[:40]!r}; `pliant token list` shows all.")
        if not 0 <= after_s < math.inf:
            raise BadInput(f"A token can expire in 0 s or later, got {after_s} s.")
        ends_at = self._wall() + after_s
        is_revoked = after_s == 0
        if key.ends_at is None or ends_at < key.ends_at or (is_revoked and not key.is_revoked):
            self._write(TokenExpires(id_, ends_at, is_revoked))
        return self._line(self._keys[id_])

    def end_orphans(self, jobs: Collection[str]) -> None:
        """End the tokens that are valid until the end of a job that no longer exists.

        `jobs` are all jobs of the store. A new token is left alone: its job may be about to be created.
        """
        now = self._wall()
        orphans = [key.id for key in self._keys.values() if key.made_at < now - ORPHAN_S and _is_orphan(key, jobs)]
        for first in range(0, len(orphans), ORPHANS_AT_ONCE):
            self._write(*(TokenExpires(id_, now, is_revoked=True) for id_ in orphans[first : first + ORPHANS_AT_ONCE]))

    def lines(self) -> tuple[TokenLine, ...]:
        """Return all tokens without their secrets."""
        return tuple(self._line(key) for key in self._keys.values())

    def _line(self, key: StoredToken) -> TokenLine:
        of = (key.scope, key.job, key.label, key.made_at, key.ends_at)
        return TokenLine(key.id, *of, self._is_over(key), key.until_job_ends, key.cert)

    def _add(self, key: StoredToken) -> None:
        if len(self._keys) >= TOKENS_MAX and not any(map(self._is_removable, self._keys.values())):
            raise BadInput(f"There are already {TOKENS_MAX} valid tokens, the maximum. Expire some first.")
        self._write(TokenCreated(key))

    def _is_removable(self, key: StoredToken) -> bool:
        """Return whether a token is over and cannot come back from the coordinator's own file."""
        return self._is_over(key) and not _is_own(key)

    def _kept(self, keys: dict[str, StoredToken]) -> dict[str, StoredToken]:
        """Drop tokens that expired long ago; at the maximum, drop all that have expired."""
        ended_from = self._wall() - ENDED_KEPT_S
        if len(keys) <= TOKENS_MAX:
            return {id_: key for id_, key in keys.items() if _is_kept(key, ended_from)}
        return {id_: key for id_, key in keys.items() if not self._is_removable(key)}

    def _write(self, *changes: TokenCreated | TokenExpires) -> None:
        for _ in range(TRIES):
            keys = dict(self._keys)
            for change in changes:
                _apply(keys, change)
            keys = self._kept(keys)
            record = encode_state(StoredTokens(tuple(keys.values())))
            write = Write(STREAM, self._revision, tuple(map(_CHANGES.encode, changes)), record)
            (outcome,) = self._store.write([write])
            if isinstance(outcome, Written):
                self._keys, self._revision = keys, outcome.revision
                return
            self.load()  # another coordinator was faster
        raise StoreUnavailable("Other coordinators kept changing the tokens; try again.")

    def refresh(self) -> None:
        """Read changes of other coordinators on the same store. Call it once in `REFRESH_S`."""
        try:
            if self._store.events(STREAM, self._revision, 1):
                self.load()
            self._problem = None
        except StoreError as error:
            self._problem = error

    def _get(self, id_: str) -> StoredToken | None:
        """Return a token. Known ones stay valid while the store does not answer, but an unknown one may be new."""
        key = self._keys.get(id_)
        problem = self._problem
        if key is None and problem is not None:
            raise StoreUnavailable(f"The tokens could not be read: {problem}")
        return key


def _is_orphan(key: StoredToken, jobs: Collection[str]) -> bool:
    return key.until_job_ends and not key.is_revoked and key.job is not None and key.job not in jobs


def _apply(keys: dict[str, StoredToken], change: TokenCreated | TokenExpires) -> None:
    match change:
        case TokenCreated(key):
            keys[key.id] = key
        case TokenExpires(id_, ends_at, is_revoked):
            if id_ in keys:
                key = keys[id_]
                given = math.inf if key.ends_at is None else key.ends_at
                sooner = min(ends_at, given)  # the earlier of two concurrent expiries counts
                keys[id_] = replace(key, ends_at=sooner, is_revoked=key.is_revoked or is_revoked)


def _is_kept(key: StoredToken, ended_from: float) -> bool:
    """Return whether to keep a token. `adopt` could revive an expired admin token from its file, so those stay."""
    return key.ends_at is None or key.ends_at >= ended_from or _is_own(key)


def _is_own(key: StoredToken) -> bool:
    """Return whether a coordinator's own file may hold this token."""
    return key.scope is Scope.ADMIN and key.job is None


def _with_job(key: StoredToken) -> str:
    return f" with job {key.job}" if key.until_job_ends and not key.is_revoked else ""


def _check_request(request: TokenRequest) -> None:
    if request.scope is Scope.PUBLIC:
        raise BadInput("A token must have scope read, join, submit or admin; public routes need no token.")
    if request.scope is Scope.SUBMIT and request.job is not None:
        raise BadInput("A token with scope submit cannot be bound to a job: its jobs do not exist yet.")
    if request.job is not None and (wrong := bad_name(request.job)):
        raise BadInput(f"This is not the name of a job: {wrong}.")
    if request.until_job_ends and request.job is None:
        raise BadInput("A token that ends with its job needs a job.")
    if request.cert is not None and (wrong := bad_name(request.cert)):
        raise BadInput(f"This is not the name of a certificate: {wrong}.")
    if request.ttl_s is not None and not 0 < request.ttl_s < math.inf:
        raise BadInput(
            f"The lifetime of a token must be finite and above 0 s; got {request.ttl_s} s. Omit it for no expiry."
        )
    if len(request.label) > LABEL_MAX:
        raise BadInput(f"A label must have at most {LABEL_MAX} characters; this one has {len(request.label)}.")
