"""The keyring: who is let in, until when, and what is kept of a token."""

import hmac
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from pliant.coordinator.api import auth
from pliant.coordinator.api.auth import (
    ENDED_KEPT_S,
    STREAM,
    TOKENS_MAX,
    Grant,
    StoredToken,
    StoredTokens,
    TokenRegistry,
)
from pliant.coordinator.api.middleware import RequestGuard
from pliant.core.messages import Cancel
from pliant.credentials import Token, make_token, proof
from pliant.errors import BadInput, StoreUnavailable
from pliant.stores.base import Entry, Write
from pliant.stores.memory import MemoryStore
from pliant.wire.api import UNKNOWN_TOKEN, Scope, TokenRequest
from pliant.wire.codec import decode_state, encode_state
from pliant.wire.routes import COMMANDS, JOB, JOBS, METRICS, RENEW
from unit.coordinator.shaky import Shaky

DAY_S = 86400.0
CANCEL = COMMANDS[Cancel]


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Shaky:
    return Shaky(MemoryStore("unit"))


@pytest.fixture
def keyring(store: Shaky, clock: Clock) -> TokenRegistry:
    return opened(store, clock)


def opened(store: Shaky, clock: Clock) -> TokenRegistry:
    keyring = TokenRegistry(store, clock)
    keyring.load()
    return keyring


def made(
    keyring: TokenRegistry, scope: Scope = Scope.READ, job: str | None = None, ttl_s: float | None = None
) -> Token:
    return keyring.create(TokenRequest(scope, job, ttl_s))[0]


def is_let_in(keyring: TokenRegistry, token: Token) -> bool:
    return isinstance(keyring.check(token.text), Grant)


def everything(store: Shaky) -> bytes:
    """All bytes that the store has."""
    kept = [store.read(name) for name in store.jobs()]
    events = [entry.data for name in store.jobs() for entry in store.events(name, 0, 1000)]
    return b"".join([*events, *(each.record for each in kept if each is not None)])


# ------------------------------------------------------------------------------------------------- who is let in


def test_a_token_that_was_made_is_let_in_as_what_it_was_made_for(keyring: TokenRegistry) -> None:
    token, line = keyring.create(TokenRequest(Scope.JOIN, "demo", None, "for the night run"))
    assert keyring.check(token.text) == Grant(token.id, Scope.JOIN, "demo")
    assert (line.id, line.scope, line.job, line.label, line.ended) == (
        token.id,
        Scope.JOIN,
        "demo",
        "for the night run",
        False,
    )
    assert keyring.lines() == (line,)


@pytest.mark.parametrize("text", [None, "", "pliant", "pliant_xx_yy", "a" * 5000, "pliant_é"])
def test_what_is_no_token_is_not_let_in_and_is_told_why(keyring: TokenRegistry, text: str | None) -> None:
    why = keyring.check(text)
    assert isinstance(why, str)
    assert why


def test_a_known_id_with_another_secret_is_not_let_in(keyring: TokenRegistry) -> None:
    token = made(keyring)
    assert not is_let_in(keyring, Token(token.id, make_token().secret))
    assert is_let_in(keyring, token)


def test_an_unknown_id_is_told_the_same_as_a_wrong_secret(keyring: TokenRegistry) -> None:
    token = made(keyring)
    assert keyring.check(make_token().text) == keyring.check(Token(token.id, make_token().secret).text)


def test_digests_are_compared_in_constant_time_for_known_and_unknown_ids(
    keyring: TokenRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []
    compare = hmac.compare_digest

    def spy(a: str, b: str) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr("pliant.coordinator.api.auth.hmac.compare_digest", spy)
    token, unknown = made(keyring), make_token()
    keyring.check(token.text)
    keyring.check(unknown.text)
    assert compared == [(token.digest, token.digest), (unknown.digest, "0" * 64)]


# ------------------------------------------------------------------------------------------------ what it opens


def test_a_scope_covers_what_is_below_it_and_a_job_confines_it() -> None:
    anywhere, here = Grant("1", Scope.JOIN, None), Grant("2", Scope.JOIN, "demo")
    assert anywhere.refusal(RENEW, "demo") == ""
    assert anywhere.refusal(JOB, "demo") == ""
    assert "admin" in anywhere.refusal(CANCEL, "demo")
    assert here.refusal(RENEW, "demo") == ""
    assert "only for job demo" in here.refusal(RENEW, "other")
    assert here.refusal(JOBS, None) == ""
    assert "only for job demo" in here.refusal(METRICS, None)
    assert "admin" in Grant("3", Scope.READ, None).refusal(CANCEL, "demo")


# ------------------------------------------------------------------------------------------------------ the end


def test_a_token_ends_at_its_time_and_not_before(keyring: TokenRegistry, clock: Clock) -> None:
    token = made(keyring, ttl_s=60.0)
    clock.now += 59.9
    assert is_let_in(keyring, token)
    clock.now += 0.1
    assert "has expired" in str(keyring.check(token.text))
    assert keyring.lines()[0].ended


def test_a_revoked_token_is_not_let_in_from_then_on(keyring: TokenRegistry) -> None:
    token = made(keyring)
    assert keyring.expire(token.id, 0.0).ended
    assert not is_let_in(keyring, token)


def test_a_revoked_token_stays_revoked_when_the_clock_is_set_back(
    keyring: TokenRegistry, store: Shaky, clock: Clock
) -> None:
    revoked, passed = made(keyring), made(keyring, ttl_s=10.0)
    clock.now += 20.0
    keyring.expire(revoked.id, 0.0)
    keyring.expire(passed.id, 0.0)
    clock.now -= DAY_S
    for each in (keyring, opened(store, clock)):
        assert not is_let_in(each, revoked)
        assert not is_let_in(each, passed)
        assert each.has_expired(revoked.id)
        assert all(line.ended for line in each.lines())


def test_a_coordinator_proves_that_it_knows_a_token_also_one_that_has_ended(keyring: TokenRegistry) -> None:
    token, nonce = made(keyring), "ab" * 32
    assert keyring.answer_challenge(f"{token.id} {nonce}") == proof(token.digest, nonce)
    assert keyring.answer_challenge(f"{make_token().id} {nonce}") == UNKNOWN_TOKEN
    keyring.expire(token.id, 0.0)
    assert keyring.answer_challenge(f"{token.id} {nonce}") == proof(token.digest, nonce)


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 12, f"{'0' * 12} 00", f"{'0' * 12} {'g' * 32}", f"{'0' * 12} {'0' * 999}"]
)
def test_what_is_no_challenge_gets_no_answer(keyring: TokenRegistry, text: str) -> None:
    assert keyring.answer_challenge(text) is None


def test_a_rotation_lets_both_tokens_in_during_the_overlap(keyring: TokenRegistry, clock: Clock) -> None:
    old, new = made(keyring), made(keyring)
    assert not keyring.expire(old.id, 600.0).ended
    clock.now += 599.0
    assert is_let_in(keyring, old)
    assert is_let_in(keyring, new)
    clock.now += 1.0
    assert not is_let_in(keyring, old)
    assert is_let_in(keyring, new)


def test_an_end_is_never_put_off(keyring: TokenRegistry, clock: Clock) -> None:
    token = made(keyring, ttl_s=60.0)
    assert keyring.expire(token.id, 600.0).ends_at == clock.now + 60.0
    assert keyring.expire(token.id, 10.0).ends_at == clock.now + 10.0
    clock.now += 20.0
    assert keyring.expire(token.id, 0.0).ends_at == clock.now - 10.0  # as it was


def test_ended_tokens_are_forgotten_after_a_week_with_the_next_change(
    keyring: TokenRegistry, store: Shaky, clock: Clock
) -> None:
    token, bound = made(keyring), made(keyring, Scope.ADMIN, "demo")
    keyring.expire(token.id, 0.0)
    keyring.expire(bound.id, 0.0)
    clock.now += ENDED_KEPT_S
    kept = made(keyring)
    assert {line.id for line in keyring.lines()} == {token.id, bound.id, kept.id}
    clock.now += 1.0
    newest = made(keyring)
    assert [line.id for line in keyring.lines()] == [kept.id, newest.id]
    assert opened(store, clock).lines() == keyring.lines()


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "wish",
    [
        TokenRequest(Scope.PUBLIC),
        TokenRequest(Scope.READ, "no/name"),
        TokenRequest(Scope.READ, ""),
        TokenRequest(Scope.READ, None, 0.0),
        TokenRequest(Scope.READ, None, -1.0),
        TokenRequest(Scope.READ, None, float("inf")),
        TokenRequest(Scope.READ, None, float("nan")),
        TokenRequest(Scope.READ, None, None, "x" * 201),
        TokenRequest(Scope.JOIN, until_job_ends=True),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused(keyring: TokenRegistry, store: Shaky, wish: TokenRequest) -> None:
    with pytest.raises(BadInput):
        keyring.create(wish)
    assert store.writes == []


def test_what_cannot_end_is_refused(keyring: TokenRegistry) -> None:
    token = made(keyring)
    for after_s in (-1.0, float("inf"), float("nan")):
        with pytest.raises(BadInput, match="0 s or later"):
            keyring.expire(token.id, after_s)
    with pytest.raises(BadInput, match="no token"):
        keyring.expire("stranger", 0.0)


def test_there_is_a_most(store: Shaky, clock: Clock) -> None:
    many = tuple(StoredToken(f"{n:012x}", "0" * 64, Scope.READ, None, "", 0.0, None) for n in range(TOKENS_MAX))
    store.inner.write([Write(STREAM, 0, (b"{}",), encode_state(StoredTokens(many)))])
    with pytest.raises(BadInput, match="Expire some"):
        made(opened(store, clock))


def test_at_the_most_an_ended_token_makes_room_for_a_new_one(store: Shaky, clock: Clock) -> None:
    of = (Scope.JOIN, "demo", "", 0.0)
    lasting = tuple(StoredToken(f"{n:012x}", "0" * 64, *of, None) for n in range(TOKENS_MAX - 2))
    ended = StoredToken("e" * 12, "0" * 64, *of, clock.now - 1.0)
    with_job = StoredToken("f" * 12, "0" * 64, *of, None, until_job_ends=True)
    store.inner.write([Write(STREAM, 0, (b"{}",), encode_state(StoredTokens((*lasting, ended, with_job))))])
    over: set[str] = set()
    keyring = TokenRegistry(store, clock, over.__contains__)
    keyring.load()
    first = made(keyring)
    assert is_let_in(keyring, first)
    assert {"e" * 12} == {ended.id, with_job.id} - {line.id for line in keyring.lines()}
    with pytest.raises(BadInput, match="Expire some"):
        made(keyring)
    over.add("demo")
    assert is_let_in(keyring, made(keyring))
    assert with_job.id not in {line.id for line in keyring.lines()}
    assert len(keyring.lines()) == TOKENS_MAX


def test_a_coordinator_can_start_with_a_token_of_its_own_at_the_most(store: Shaky, clock: Clock) -> None:
    many = tuple(StoredToken(f"{n:012x}", "0" * 64, Scope.READ, None, "", 0.0, None) for n in range(TOKENS_MAX))
    store.inner.write([Write(STREAM, 0, (b"{}",), encode_state(StoredTokens(many)))])
    keyring, own = opened(store, clock), make_token()
    keyring.adopt(own, "own")
    assert is_let_in(keyring, own)


def test_a_token_until_the_end_of_its_job_ends_with_it_and_others_do_not(store: Shaky, clock: Clock) -> None:
    over: set[str] = set()
    keyring = TokenRegistry(store, clock, over.__contains__)
    token, _ = keyring.create(TokenRequest(Scope.JOIN, "demo", until_job_ends=True))
    other = made(keyring, Scope.JOIN, "demo")
    assert is_let_in(keyring, token)
    over.add("demo")
    assert keyring.check(token.text) == f"token {token.id} has expired with job demo; ask for a new one"
    assert keyring.has_expired(token.id)
    assert [line.ended for line in keyring.lines()] == [True, False]
    assert is_let_in(keyring, other)
    over.clear()  # another attempt of the job
    assert is_let_in(keyring, token)
    keyring.expire(token.id, 0.0)
    assert not is_let_in(keyring, token)


# -------------------------------------------------------------------------------------------------- what is kept


def test_a_token_until_the_end_of_a_job_that_was_deleted_ends_a_day_after_it_was_made(
    keyring: TokenRegistry, clock: Clock
) -> None:
    of_gone = [keyring.create(TokenRequest(Scope.JOIN, "gone", until_job_ends=True))[0] for _ in range(3)]
    kept = keyring.create(TokenRequest(Scope.JOIN, "kept", until_job_ends=True))[0]
    lasting = made(keyring, Scope.JOIN, "gone")
    keyring.end_orphans(frozenset({"kept"}))
    assert all(is_let_in(keyring, token) for token in (*of_gone, kept, lasting))  # the job may not exist yet
    clock.now += DAY_S + 1
    young = keyring.create(TokenRequest(Scope.JOIN, "soon", until_job_ends=True))[0]
    keyring.end_orphans(frozenset({"kept"}))
    assert not any(is_let_in(keyring, token) for token in of_gone)
    assert all(is_let_in(keyring, token) for token in (kept, lasting, young))


def test_orphaned_tokens_end_in_few_writes_and_once(
    keyring: TokenRegistry, store: Shaky, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "ORPHANS_AT_ONCE", 4)
    tokens = [keyring.create(TokenRequest(Scope.JOIN, "gone", until_job_ends=True))[0] for _ in range(10)]
    clock.now += DAY_S + 1
    before = len(store.events(STREAM, 0, 1000))
    keyring.end_orphans(frozenset())
    assert len(store.events(STREAM, 0, 1000)) == before + 10
    assert not any(is_let_in(opened(store, clock), token) for token in tokens)
    keyring.end_orphans(frozenset())
    assert len(store.events(STREAM, 0, 1000)) == before + 10


def test_the_store_has_hashes_and_no_secret(keyring: TokenRegistry, store: Shaky) -> None:
    own = make_token()
    keyring.adopt(own, "own")
    tokens = [own, *(made(keyring) for _ in range(3))]
    keyring.expire(tokens[-1].id, 0.0)
    data = everything(store)
    for token in tokens:
        assert token.digest.encode() in data
        assert token.secret.encode() not in data
        assert token.secret not in repr(keyring.lines())


def test_a_keyring_comes_back_from_the_store(keyring: TokenRegistry, store: Shaky, clock: Clock) -> None:
    token, ended = made(keyring, Scope.JOIN, "demo", 60.0), made(keyring)
    keyring.expire(ended.id, 0.0)
    again = opened(store, clock)
    assert again.lines() == keyring.lines()
    assert again.check(token.text) == keyring.check(token.text)
    assert not is_let_in(again, ended)


def test_events_after_the_record_are_read_too(store: Shaky, clock: Clock) -> None:
    first, second = make_token(), make_token()
    keyring = opened(store, clock)
    keyring.adopt(first, "own")
    key = StoredToken(second.id, second.digest, Scope.READ, None, "", 0.0, None)
    events = (
        auth._CHANGES.encode(auth.TokenCreated(key)),
        auth._CHANGES.encode(auth.TokenExpires(first.id, clock.now)),
    )
    store.inner.write([Write(STREAM, 1, events)])
    again = opened(store, clock)
    assert is_let_in(again, second)
    assert not is_let_in(again, first)


def test_a_change_is_not_answered_before_it_is_durable(keyring: TokenRegistry, store: Shaky) -> None:
    store.trouble["write"] = [StoreUnavailable("the disk is away")]
    with pytest.raises(StoreUnavailable):
        made(keyring)
    assert keyring.lines() == ()


# ---------------------------------------------------------------------------------------- several coordinators


def test_what_another_coordinator_made_or_ended_is_known_a_moment_later(
    keyring: TokenRegistry, store: Shaky, clock: Clock
) -> None:
    other = opened(store, clock)
    token = made(other)
    keyring.refresh()
    assert is_let_in(keyring, token)
    other.expire(token.id, 0.0)
    keyring.refresh()
    assert not is_let_in(keyring, token)


def test_strangers_cannot_make_the_store_busy(
    keyring: TokenRegistry, store: Shaky, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def events(job: str, after: int, limit: int) -> tuple[Entry, ...]:
        asked.append(job)
        return store.inner.events(job, after, limit)

    monkeypatch.setattr(store, "events", events)
    for _ in range(100):
        keyring.check(make_token().text)
    assert asked == []
    keyring.refresh()
    assert asked == [STREAM]


def test_two_that_change_the_keyring_at_once_lose_nothing(keyring: TokenRegistry, store: Shaky, clock: Clock) -> None:
    other = opened(store, clock)
    theirs = made(other)
    ours = made(keyring)
    assert {line.id for line in keyring.lines()} == {theirs.id, ours.id}


def test_a_later_end_does_not_revive_what_another_coordinator_has_ended(
    keyring: TokenRegistry, store: Shaky, clock: Clock
) -> None:
    token = made(keyring)
    other = opened(store, clock)
    other.expire(token.id, 0.0)
    assert keyring.expire(token.id, 3600.0).ended
    assert not is_let_in(keyring, token)


def test_who_keeps_losing_the_race_is_told_to_try_again(keyring: TokenRegistry, store: Shaky, clock: Clock) -> None:
    other = opened(Shaky(store.inner), clock)
    store.before_write = [lambda: made(other) for _ in range(auth.TRIES)]
    with pytest.raises(StoreUnavailable, match="try again"):
        made(keyring)


def test_while_the_store_does_not_answer_the_known_go_on_and_the_unknown_are_not_judged(
    keyring: TokenRegistry, store: Shaky, clock: Clock
) -> None:
    token = made(keyring)
    store.trouble["events"] = [StoreUnavailable("locked")]
    keyring.refresh()
    assert is_let_in(keyring, token)
    with pytest.raises(StoreUnavailable):
        keyring.check(make_token().text)
    keyring.refresh()
    assert "unknown here" in str(keyring.check(make_token().text))


# --------------------------------------------------------------------------------------- the coordinator's own


def test_the_token_in_the_owners_file_is_let_in_as_admin_and_written_once(keyring: TokenRegistry, store: Shaky) -> None:
    token = make_token()
    keyring.adopt(token, "own")
    keyring.adopt(token, "own")
    assert keyring.check(token.text) == Grant(token.id, Scope.ADMIN, None)
    assert len(store.writes) == 1


def test_an_own_token_that_was_ended_is_not_adopted_again_however_long_ago(
    keyring: TokenRegistry, store: Shaky, clock: Clock
) -> None:
    token = make_token()
    keyring.adopt(token, "own")
    keyring.expire(token.id, 0.0)
    for _ in range(3):
        clock.now += ENDED_KEPT_S + DAY_S
        made(keyring)
        again = opened(store, clock)
        with pytest.raises(BadInput, match="has expired"):
            again.adopt(token, "own")
        assert not is_let_in(again, token)


def test_a_file_with_a_known_id_and_another_secret_is_refused(keyring: TokenRegistry) -> None:
    token = make_token()
    keyring.adopt(token, "own")
    with pytest.raises(BadInput, match="unknown here"):
        keyring.adopt(Token(token.id, make_token().secret), "own")


def test_the_record_is_what_the_events_say(keyring: TokenRegistry, store: Shaky) -> None:
    keyring.expire(made(keyring).id, 5.0)
    kept = store.read(STREAM)
    assert kept is not None
    keys: dict[str, StoredToken] = {}
    for entry in store.events(STREAM, 0, 100):
        auth._apply(keys, auth._CHANGES.decode(entry.data))
    assert decode_state(kept.record, StoredTokens).keys == tuple(keys.values())


# ------------------------------------------------------------------------------------------------------ the gate


def test_a_credential_that_cannot_be_looked_up_is_asked_for_again_and_not_refused(
    keyring: TokenRegistry, store: Shaky
) -> None:
    turned_away: list[str] = []
    gate = RequestGuard(application, keyring, "unit", (), turned_away.append)
    store.trouble["events"] = [StoreUnavailable("locked")]
    keyring.refresh()
    with closing(TestClient(gate, base_url="http://localhost")) as http:
        response = http.get("/v1", headers={"authorization": f"Bearer {make_token().text}"})
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert turned_away == ["unavailable"]


async def application(scope: object, receive: object, send: object) -> None:
    raise AssertionError("not reached")
