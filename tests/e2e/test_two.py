"""Two coordinators on one store: one decides, and what the other one knows of it is soon the same."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from e2e.examples import JOB, OTHER, furnish
from e2e.raw import Line, bearer, host, request
from e2e.running import Running, start, token_of, wait_for
from pliant.client import Client
from pliant.core import messages as m
from pliant.core.model.job import Target
from pliant.core.model.names import MemberId
from pliant.errors import PliantError
from pliant.wire.api import Scope, TokenRequest

Pair = tuple[Running, Running]


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
        assert connection.execute("SELECT owner FROM holds").fetchall() == [(None,)]
    connection.close()
    assert "Traceback" not in first.log
