"""Who may do what: tokens, their scopes, and their ends.

The keyring is kept in the store, in a stream of its own beside the jobs, as hashes. Every change of it is durable
before it is answered, like any decision.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pliant.core.model.names import bad_name
from pliant.credentials import Token, make_token, parse_token
from pliant.errors import BadInput, StoreError, StoreUnavailable
from pliant.stores.base import Store, Write, Written
from pliant.wire.api import Scope, TokenLine, TokenRequest
from pliant.wire.codec import Codec, decode_state, encode_state
from pliant.wire.routes import Route

STREAM = "@tokens"
TOKENS_MAX = 10_000
LABEL_MAX = 200
ENDED_KEPT_S = 7 * 86400.0  # how long an ended token stays in the list, so that one can see when it ended
LOOK_S = 1.0  # how long a token may live on here after another coordinator ended it
TRIES = 4


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token, as much as is kept of it. Times are wall-clock seconds: an end is a date, not a lease."""

    id: str
    digest: str
    scope: Scope
    job: str | None
    label: str
    made_at: float
    ends_at: float | None


@dataclass(frozen=True, slots=True)
class StoredTokens:
    """The keyring's state, oldest first."""

    keys: tuple[StoredToken, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenCreated:
    key: StoredToken


@dataclass(frozen=True, slots=True)
class TokenExpires:
    id: str
    ends_at: float


_CHANGES: Codec[TokenCreated | TokenExpires] = Codec((TokenCreated, TokenExpires))


@dataclass(frozen=True, slots=True)
class Grant:
    """What a request may do."""

    id: str
    scope: Scope
    job: str | None

    def refusal(self, route: Route, job: str | None) -> str:
        """Why this credential does not open that route for that job; empty if it does."""
        if not self.scope.covers(route.scope):
            return f"this takes a token with scope {route.scope.value}; yours has scope {self.scope.value}"
        if self.job is None or job == self.job or (job is None and route.shared):
            return ""
        return f"your token is for job {self.job} alone"


class TokenRegistry:
    """The tokens of one store. `wall` gives the time that ends are compared with."""

    def __init__(self, store: Store, wall: Callable[[], float]) -> None:
        self._store = store
        self._wall = wall
        self._revision = 0
        self._keys: dict[str, StoredToken] = {}
        self._looked_at = -math.inf

    def load(self) -> None:
        """Call once before the first check."""
        stored = self._store.read(STREAM)
        if stored is None:
            return
        keys = {key.id: key for key in decode_state(stored.record, StoredTokens).keys}
        for data in stored.tail:
            _apply(keys, _CHANGES.decode(data))
        self._keys, self._revision = keys, stored.revision

    def check(self, text: str | None) -> Grant | str:
        """What a bearer may do, or why it may not come in. Takes the same time for every wrong secret."""
        if text is None:
            return "a token is needed: send `Authorization: Bearer` with one from a token file"
        token = parse_token(text)
        if token is None:
            return "what was sent is not a token of ours"
        self._follow(token.id)
        key = self._keys.get(token.id)
        matches = hmac.compare_digest(token.digest, key.digest if key else "0" * 64)
        if key is None or not matches:
            return "this token is not known here; it may belong to another coordinator"
        if key.ends_at is not None and self._wall() >= key.ends_at:
            return f"token {key.id} has ended; ask for a new one"
        return Grant(key.id, key.scope, key.job)

    def has_ended(self, id_: str) -> bool:
        """Whether a token that was good is good no more."""
        key = self._keys.get(id_)
        return key is None or (key.ends_at is not None and self._wall() >= key.ends_at)

    def create(self, wish: TokenRequest) -> tuple[Token, TokenLine]:
        """A new token; only its caller ever sees it."""
        _require_sense(wish)
        token, now = make_token(), self._wall()
        ends_at = None if wish.ttl_s is None else now + wish.ttl_s
        self._add(StoredToken(token.id, token.digest, wish.scope, wish.job, wish.label, now, ends_at))
        return token, self._line(self._keys[token.id])

    def adopt(self, token: Token, label: str) -> None:
        """Let in whoever holds a token that was put on this machine by its owner, with scope admin."""
        key = self._keys.get(token.id)
        if key is None:
            self._add(StoredToken(token.id, token.digest, Scope.ADMIN, None, label, self._wall(), None))
        elif isinstance(problem := self.check(token.text), str):
            raise BadInput(f"The coordinator's own token cannot be used: {problem}. Remove its file to get a new one.")

    def expire(self, id_: str, after_s: float) -> TokenLine:
        """Let a token end in `after_s`, unless it ends sooner anyway. One that has ended stays as it is."""
        key = self._keys.get(id_)
        if key is None:
            raise BadInput(f"There is no token {id_[:40]!r}; `pliant token list` shows them.")
        if not 0 <= after_s < math.inf:
            raise BadInput(f"A token ends in 0 s or later, not in {after_s} s.")
        ends_at = self._wall() + after_s
        if key.ends_at is None or ends_at < key.ends_at:
            self._write(TokenExpires(id_, ends_at))
        return self._line(self._keys[id_])

    def lines(self) -> tuple[TokenLine, ...]:
        """Everything that may be shown."""
        return tuple(self._line(key) for key in self._keys.values())

    def _line(self, key: StoredToken) -> TokenLine:
        ended = key.ends_at is not None and self._wall() >= key.ends_at
        return TokenLine(key.id, key.scope, key.job, key.label, key.made_at, key.ends_at, ended)

    def _add(self, key: StoredToken) -> None:
        if len(self._keys) >= TOKENS_MAX:
            raise BadInput(f"There are {TOKENS_MAX} tokens already; end some first.")
        self._write(TokenCreated(key))

    def _write(self, change: TokenCreated | TokenExpires) -> None:
        for _ in range(TRIES):
            keys = dict(self._keys)
            _apply(keys, change)
            kept_from = self._wall() - ENDED_KEPT_S
            keys = {id_: key for id_, key in keys.items() if _is_kept(key, kept_from)}
            record = encode_state(StoredTokens(tuple(keys.values())))
            write = Write(STREAM, self._revision, (_CHANGES.encode(change),), record)
            (outcome,) = self._store.write([write])
            if isinstance(outcome, Written):
                self._keys, self._revision = keys, outcome.revision
                return
            self.load()  # another coordinator was quicker
        raise StoreUnavailable("Others kept changing the tokens; try again.")

    def _follow(self, id_: str) -> None:
        """Another coordinator on the same store may have made or ended tokens; asked once a second at most."""
        now = self._wall()
        if abs(now - self._looked_at) < LOOK_S:
            return
        self._looked_at = now
        try:
            if self._store.events(STREAM, self._revision, 1):
                self.load()
        except StoreError:
            if id_ not in self._keys:
                raise  # whoever is known goes on: a store that does not answer turns nobody away


def _apply(keys: dict[str, StoredToken], change: TokenCreated | TokenExpires) -> None:
    match change:
        case TokenCreated(key):
            keys[key.id] = key
        case TokenExpires(id_, ends_at):
            if id_ in keys:
                sooner = min(ends_at, keys[id_].ends_at or math.inf)  # of two that ended it at once, neither revives it
                keys[id_] = replace(keys[id_], ends_at=sooner)


def _is_kept(key: StoredToken, ended_from: float) -> bool:
    """What could be `adopt`ed again from a forgotten file is kept for good: else it would come back to life."""
    return key.ends_at is None or key.ends_at >= ended_from or (key.scope is Scope.ADMIN and key.job is None)


def _require_sense(wish: TokenRequest) -> None:
    if wish.scope is Scope.PUBLIC:
        raise BadInput("A token has scope read, join or admin; what is public needs none.")
    if wish.job is not None and (wrong := bad_name(wish.job)):
        raise BadInput(f"That is no job's name: {wrong}.")
    if wish.ttl_s is not None and not 0 < wish.ttl_s < math.inf:
        raise BadInput(f"A token lives longer than 0 s and not for ever; got {wish.ttl_s} s. Leave it out for no end.")
    if len(wish.label) > LABEL_MAX:
        raise BadInput(f"A label has up to {LABEL_MAX} characters; this one has {len(wish.label)}.")
