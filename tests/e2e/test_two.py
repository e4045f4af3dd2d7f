"""Two coordinators on one store: one decides, and what the other one knows of it is soon the same."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from e2e.examples import JOB, OTHER, example, furnish
from e2e.raw import Line, bearer, host, request
from e2e.running import Running, start, token_of, wait_for
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import Target
from pliant.core.model.names import MemberId
from pliant.errors import PliantError, Unreachable
from pliant.wire.api import LEADER_HEADER, Scope, TokenRequest
from pliant.wire.routes import ABOUT, HEALTH, METRICS, OPENAPI, READY, ROUTES, Route

Pair = tuple[Running, Running]

# What a standby answers itself. The rest is the leader's.
ANYWHERE = {ABOUT, HEALTH, METRICS, OPENAPI, READY, *(route for route in ROUTES if "tokens" in route.path)}


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """The first one decides; the second one waits for it to go."""
    store = f"sqlite:{tmp_path / 'store.db'}"
    with start(store, home=tmp_path, lease_ttl_s=3600.0) as first:
        furnish(first)
        with start(store, home=tmp_path, lease_ttl_s=3600.0) as second:
            yield first, second


def leads(running: Running) -> bool:
    found: bool = running.admin.get("/v1").json()["leads"]
    return found


def test_a_token_that_was_ended_at_one_is_soon_no_good_at_the_other(pair: Pair) -> None:
    first, second = pair
    token = token_of(first.client().create_token(TokenRequest(Scope.ADMIN)).token)
    http = second.http(token)
    wait_for(lambda: http.get("/v1").status_code == 200, "the other one to know the token")
    first.client().expire_token(token.id)
    wait_for(lambda: http.get("/v1").status_code == 401, "the other one to know its end")
    wish = b'{"scope":"admin"}'
    assert http.post("/v1/tokens", content=wish, headers={"content-type": "application/json"}).status_code == 401


def test_members_are_given_the_same_keys_whoever_decides(pair: Pair) -> None:
    """P7: the keys come with a watch alone, and stand in no event and no log."""
    first, second = pair
    told = first.client().watch(JOB, MemberId("m1"), 0)
    assert [key.generation for key in told.keys] == [1]
    assert first.client().watch(JOB, MemberId("m2"), 0).keys == told.keys
    assert first.client().watch(OTHER, MemberId("m1"), 0).keys != told.keys
    for path in (f"/v1/jobs/{JOB}", f"/v1/jobs/{JOB}/events?limit=1000", "/v1/jobs/@peers/events", "/metrics"):
        assert told.keys[0].key not in first.admin.get(path).text
    first.kill()
    wait_for(lambda: leads(second), "the other one to decide")
    assert second.client().watch(JOB, MemberId("m1"), 0).keys == told.keys
    assert told.keys[0].key not in first.log + second.log


def test_who_waits_at_one_that_lost_its_hold_is_sent_away_at_once(pair: Pair) -> None:
    first, second = pair
    newest = first.client().job(JOB).job.revision
    one = Line(first)
    one.send(request(f"/v1/jobs/{JOB}/members/m1/watch?after={newest}&wait_s=60", host(first), bearer(first)))
    headers = {"accept": "text/event-stream", "authorization": f"Bearer {first.token.text}"}
    with (
        httpx2.Client(base_url=first.url, trust_env=False, timeout=30.0) as http,
        http.stream("GET", f"/v1/jobs/{JOB}/events", headers=headers) as response,
    ):
        stream = response.iter_lines()
        assert next(stream) == "id: 1"
        with first.paused():
            wait_for(lambda: leads(second), "the other one to decide")
            second.client().send(JOB, m.Resize(Target(3)))
        rest = list(stream)  # it ends, and is not filled with "nothing new" until it is closed
    assert one.answer().status == 503
    one.close()
    assert len([line for line in rest if line.startswith(":")]) <= 2
    last = max(int(line[4:]) for line in rest if line.startswith("id: "))
    assert next(second.client().follow(JOB, last))[0] == last + 1
    assert not leads(first)
    assert "Traceback" not in first.log


def test_a_clean_end_hands_over_however_much_is_being_asked(pair: Pair, tmp_path: Path) -> None:
    first, second = pair
    over = threading.Event()

    def hammer(number: int) -> None:
        with Client([first.url], first.token, patience_s=0.0) as client:
            while not over.is_set():
                with contextlib.suppress(PliantError):
                    client.send(JOB, m.Resize(Target(3 + number % 2)))

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    second.kill()
    assert first.stop() == 0
    over.set()
    for thread in threads:
        thread.join()
    with sqlite3.connect(tmp_path / "store.db") as connection:
        leads = connection.execute("SELECT owner FROM holds WHERE name = 'coordinator'").fetchall()
        assert leads == [(None,)]
    connection.close()
    assert "Traceback" not in first.log


@pytest.mark.parametrize("route", [route for route in ROUTES if route not in ANYWHERE], ids=lambda route: route.name)
def test_a_standby_sends_every_request_to_the_leader(shared: Pair, route: Route) -> None:
    first, second = shared
    asked = example(route)
    answer = second.admin.request(asked.method, asked.url, content=asked.body, headers=asked.headers)
    assert answer.status_code == 503
    assert answer.headers[LEADER_HEADER] == first.url
    assert f"leads at {first.url}" in answer.json()["why"]


def test_the_leader_is_named_to_clients_with_a_token_alone(shared: Pair) -> None:
    first, second = shared
    assert second.admin.get("/v1").json()["leader"] == first.url
    assert first.admin.get("/v1").json()["leader"] == ""
    for path in ("/healthz", f"/v1/jobs/{JOB}"):
        answer = second.http().get(path)
        assert answer.status_code in (401, 503)
        assert LEADER_HEADER not in answer.headers
        assert first.url not in answer.text
    assert "another one leads" in second.http().get("/healthz").json()["why"]


def test_a_client_of_one_coordinator_alone_does_not_follow_a_standby_to_the_leader(shared: Pair) -> None:
    _, second = shared
    with Client([second.url], second.token) as follower:
        assert [line.name for line in follower.jobs()] == [JOB, OTHER]
    with (
        Client([second.url], second.token, patience_s=0.0, follow_leader=False) as alone,
        pytest.raises(Unreachable, match="leads at"),
    ):
        alone.jobs()


def test_a_standby_is_ready_and_does_not_lead(shared: Pair) -> None:
    assert [each.http().get("/readyz").status_code for each in shared] == [200, 200]
    assert [each.http().get("/healthz").status_code for each in shared] == [200, 503]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Two coordinators that stay as they are."""
    home = tmp_path_factory.mktemp("pair")
    store = f"sqlite:{home / 'store.db'}"
    with start(store, home=home, lease_ttl_s=3600.0) as first:
        furnish(first)
        with start(store, home=home, lease_ttl_s=3600.0) as second:
            yield first, second


@pytest.mark.parametrize("successor_writes", [True, False], ids=["written", "unwritten"])
def test_a_leader_that_was_frozen_changes_nothing_when_it_comes_back(pair: Pair, successor_writes: bool) -> None:
    """A command lies in its socket all the while. Without the hold, the compare-and-swap of the job would succeed."""
    first, second = pair
    one = Line(first)
    with first.paused():
        one.send(post(first, f"/v1/jobs/{JOB}/resize", b'{"target":{"size":4}}'))
        wait_for(lambda: leads(second), "the other coordinator to lead")
        if successor_writes:
            second.client().send(JOB, m.Resize(Target(3)))
        before = history(second)
    answer = one.answer()
    one.close()
    assert (answer.status, answer.headers[LEADER_HEADER]) == (503, second.url)
    assert history(second) == before
    assert not any(isinstance(event, m.MemberGone) for event in before)
    assert not leads(first)
    assert leads(second)
    second.client().send(JOB, m.Resize(Target(4)))  # where the header led the client


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_a_leader_that_ends_is_replaced_and_no_member_is_lost(pair: Pair, end: str) -> None:
    first, second = pair
    before = history(first)
    if end == "killed":
        first.kill()
    else:
        assert first.stop() == 0
    wait_for(lambda: leads(second), "the other coordinator to lead")
    assert history(second) == before
    second.client().send(JOB, m.Resize(Target(3)))
    assert second.admin.get("/healthz").status_code == 200


def history(running: Running) -> list[m.Event]:
    return [event for _, event in running.client().events(JOB, 0, 1000)]


def post(running: Running, path: str, body: bytes) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{running.port}", f"Authorization: Bearer {running.token.text}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
