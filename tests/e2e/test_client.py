"""The client against real coordinators, against none, and against what only looks like one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from e2e.running import Running, start, token_of
from pliant.client import Client
from pliant.client.transport import is_self
from pliant.core import messages as m
from pliant.core.messages import Code
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import Token, make_token, proof
from pliant.errors import BadInput, NotAllowed, PliantError, Refused, Unreachable
from pliant.wire.api import (
    CHALLENGE_HEADER,
    PROOF_HEADER,
    PROTOCOL,
    PROTOCOL_HEADER,
    UNKNOWN_TOKEN,
    Scope,
    TokenRequest,
)
from pliant.wire.routes import PAGE_MAX
from pliant.wire.views import apply_update
from unit.core.build import TERMS

A, X = MemberId("a"), AgentId("x")
CREATE = m.Create("demo", JobSpec(1, 4, Target(2)))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with start(home=tmp_path) as found:
        yield found


@contextmanager
def somebody_else(
    status: int = 200, headers: dict[str, str] | None = None, knows: Token | None = None, port: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """A web server that is no coordinator; its URL, and what it was asked for.

    With `knows` it proves that it knows this token. It notes each credential that it gets.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections

        def do_GET(self) -> None:  # the library's name
            asked.append(self.path)
            asked.extend(self.headers.get_all("authorization", []))
            self.send_response(status)
            if knows is not None and CHALLENGE_HEADER in self.headers:
                self.send_header(PROOF_HEADER, proof(knows.digest, self.headers[CHALLENGE_HEADER].split()[1]))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def do_POST(self) -> None:  # the library's name
            asked.append(self.path)
            self.close_connection = True  # without an answer

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def free_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def client_of(url: str, token: Token | None = None, patience_s: float = 0.0) -> Client:
    return Client([url], token or make_token(), patience_s=patience_s)


# ------------------------------------------------------------------------------------------------ no coordinator


def test_without_a_coordinator_it_says_where_it_looked_and_what_to_do() -> None:
    url = free_url()
    with client_of(url) as client, pytest.raises(Unreachable, match=f"No coordinator answers at {url}.*pliant doctor"):
        client.jobs()


def test_a_web_server_that_is_no_coordinator_is_not_believed() -> None:
    with somebody_else() as (url, asked), client_of(url) as client:
        with pytest.raises(Unreachable, match="not a Pliant coordinator"):
            client.jobs()
        assert asked == ["/healthz"]  # where no token is shown
        assert not client.is_healthy()


def test_a_coordinator_of_an_older_protocol_is_not_believed() -> None:
    headers = {PROTOCOL_HEADER: "0"}
    with (
        somebody_else(headers=headers) as (url, _),
        client_of(url) as client,
        pytest.raises(
            Unreachable,
            match=r"has protocol 0, .* upgrade Pliant on the coordinator.s machine",
        ),
    ):
        client.jobs()


def test_an_answer_that_cannot_be_read_is_an_error_of_its_own() -> None:
    headers, token = {PROTOCOL_HEADER: PROTOCOL}, make_token()
    with (
        somebody_else(headers=headers, knows=token) as (url, _),
        client_of(url, token) as client,
        pytest.raises(PliantError, match="cannot be decoded"),
    ):
        client.jobs()


def test_not_now_is_asked_again_until_the_patience_is_over() -> None:
    ours, token = {PROTOCOL_HEADER: PROTOCOL}, make_token()
    with somebody_else(503, ours, token) as (url, asked), client_of(url, token, patience_s=0.3) as client:
        with pytest.raises(Unreachable):
            client.jobs()
        assert asked.count("/v1/jobs") > 1


@pytest.mark.parametrize("answer", [None, UNKNOWN_TOKEN, "0" * 64, "\xff"])
def test_a_stranger_on_the_port_gets_no_token(answer: str | None) -> None:
    headers = {PROTOCOL_HEADER: PROTOCOL} | ({} if answer is None else {PROOF_HEADER: answer})
    with somebody_else(headers=headers) as (url, asked), client_of(url) as client:
        with pytest.raises(NotAllowed if answer == UNKNOWN_TOKEN else Unreachable, match="not sent"):
            client.jobs()
        client.store = "known"  # of the coordinator that was there before
        client.is_healthy()
        for _ in range(2):
            with pytest.raises(Unreachable, match="not sent"):
                next(client.follow("demo", 0))
        assert set(asked) == {"/healthz"}


def test_a_proof_of_an_earlier_challenge_is_worth_nothing() -> None:
    token = make_token()
    headers = {PROTOCOL_HEADER: PROTOCOL, PROOF_HEADER: proof(token.digest, "00" * 32)}
    with somebody_else(headers=headers) as (url, asked), client_of(url, token) as client:
        with pytest.raises(Unreachable, match="does not know this token"):
            client.jobs()
        assert set(asked) == {"/healthz"}


def test_a_stranger_on_the_port_of_a_coordinator_that_stopped_gets_no_token(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    first = start(store, home=tmp_path)
    with Client([first.url], first.token, patience_s=0.0) as client:
        client.jobs()
        first.stop()
        with somebody_else(headers={PROTOCOL_HEADER: PROTOCOL}, port=first.port) as (_, asked):
            for _ in range(2):
                with pytest.raises(Unreachable, match="does not know this token"):
                    client.jobs()
            assert set(asked) == {"/healthz"}
        with start(store, home=tmp_path, port=first.port):
            assert client.jobs() == ()


def test_a_kept_connection_is_checked_once(running: Running) -> None:
    with client_of(running.url, running.token) as client:
        paths: list[str] = []
        client._transport._http.event_hooks = {"response": [lambda answer: paths.append(answer.request.url.path)]}
        for _ in range(5):
            client.jobs()
        assert paths == ["/healthz"] + ["/v1/jobs"] * 5


def test_a_connection_to_oneself_is_noticed() -> None:
    """Loopback connects a socket to itself if no process listens and its own port happens to be the one asked for."""
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())

        class Stream:
            def get_extra_info(self, info: str) -> object:
                return {"client_addr": alone.getsockname(), "server_addr": alone.getpeername()}[info]

        assert is_self(httpx2.Response(200, extensions={"network_stream": Stream()}))


def test_a_connection_to_a_coordinator_is_none_to_oneself(running: Running) -> None:
    with running.http(running.token).stream("GET", "/v1") as response:
        assert "network_stream" in response.extensions
        assert not is_self(response)


# ------------------------------------------------------------------------------------------ several coordinators


def test_where_one_endpoint_is_dead_the_next_is_asked(running: Running) -> None:
    with Client([free_url(), running.url], running.token, patience_s=0.0) as client:
        assert client.jobs() == ()
        assert client._transport._known.preferred == 1
        assert client.jobs() == ()


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:7711", "ftp://a", "http://", "http://a/path", "http://u:p@a", "http://a?x=1", "http://a:99999"],
)
def test_what_is_no_coordinator_s_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput, match="URL"):
        client_of(url)


def test_without_any_url_there_is_no_client() -> None:
    with pytest.raises(BadInput, match="at least one"):
        Client([], make_token())


def test_a_token_does_not_go_to_a_proxy_of_the_environment(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    with somebody_else() as (proxy, asked):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        assert running.client().jobs() == ()
        assert asked == []


# ------------------------------------------------------------------------------------------------- refusals


def test_a_refusal_has_its_code_its_reason_and_what_it_rests_on(running: Running) -> None:
    client = running.client()
    with pytest.raises(Refused, match="there is no such job") as refused:
        client.send("demo", m.Cancel("x"))
    assert refused.value.code == Code.NO_JOB
    revision = client.send("demo", CREATE).revision
    with pytest.raises(Refused) as unknown:
        client.renew("demo", A, -1)
    assert (unknown.value.code, unknown.value.revision) == (Code.UNKNOWN, revision)


def test_what_makes_no_sense_is_bad_input(running: Running) -> None:
    with pytest.raises(BadInput, match="1 <= min <= max"):
        running.client().send("demo", m.Create("demo", JobSpec(3, 2, Target(2))))


def test_a_command_of_time_s_own_cannot_be_sent(running: Running) -> None:
    with pytest.raises(BadInput, match="Expire"):
        running.client().send("demo", m.Expire(A))


def test_a_wrong_token_is_told_apart_from_a_narrow_one(running: Running) -> None:
    with (
        client_of(running.url) as stranger,
        pytest.raises(NotAllowed, match=f"is unknown at {running.url}, so it was not sent there"),
    ):
        stranger.jobs()
    reader = token_of(running.client().create_token(TokenRequest(Scope.READ)).token)
    with pytest.raises(NotAllowed, match="scope admin; yours has scope read"):
        running.client(reader).send("demo", CREATE)


# --------------------------------------------------------------------------------------- a coordinator that dies


def test_what_is_asked_while_the_coordinator_is_away_is_done_once_when_it_is_back(tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'store.db'}"
    first = start(store, home=tmp_path)
    client = Client([first.url], first.token, patience_s=60.0)
    client.send("demo", CREATE)
    first.kill()
    asking = threading.Thread(target=client.send, args=("demo", m.Resize(Target(3))))
    asking.start()
    with start(store, home=tmp_path, port=first.port):
        asking.join(60)
        events = [type(event).__name__ for _, event in client.events("demo", 0)]
        assert events.count("TargetChanged") == 1
        assert client.job("demo").target == Target(3)
    client.close()


def test_a_coordinator_with_another_store_is_refused(tmp_path: Path) -> None:
    first = start(home=tmp_path)
    client = Client([first.url], first.token, patience_s=60.0)
    client.jobs()
    known = client.store
    first.stop()
    with start(home=tmp_path, port=first.port):
        with pytest.raises(Refused, match="another store") as refused:
            client.jobs()
        assert refused.value.code == "other-store"
        assert client.store == known
    client.close()


def test_a_watch_that_knows_more_than_the_store_is_refused(running: Running) -> None:
    client = running.client()
    client.send("demo", CREATE)
    client.send("demo", m.Join(A, X, TERMS))
    known = apply_update(None, client.watch("demo", A, 0))
    with pytest.raises(Refused, match="an older copy of the store") as refused:
        client.watch("demo", A, known.revision + 5)
    assert refused.value.code == Code.SET_BACK


def test_closing_it_ends_a_wait_between_two_tries() -> None:
    client = client_of(free_url(), patience_s=600.0)
    failed: list[Exception] = []

    def ask() -> None:
        try:
            client.jobs()
        except Unreachable as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    client.close()
    asking.join(30)
    assert not asking.is_alive()
    assert len(failed) == 1


def test_a_token_that_may_have_been_made_is_not_asked_for_again() -> None:
    token = make_token()
    with somebody_else(headers={PROTOCOL_HEADER: PROTOCOL}, knows=token) as (url, asked):
        with (
            client_of(url, token, patience_s=600.0) as client,
            pytest.raises(Unreachable, match="may have been carried out"),
        ):
            client.create_token(TokenRequest(Scope.READ))
        assert asked.count("/v1/tokens") == 1


def test_a_token_is_asked_for_where_somebody_is(running: Running) -> None:
    with Client([free_url(), running.url], running.token, patience_s=0.0) as client:
        token_of(client.create_token(TokenRequest(Scope.READ)).token)
        assert len(client.tokens()) == 2


def test_a_name_that_is_none_is_refused_before_anybody_is_asked() -> None:
    with (
        client_of(free_url(), patience_s=600.0) as client,
        pytest.raises(BadInput, match="letters, digits"),
    ):
        client.job("../tokens")


def test_an_event_s_text_may_hold_whatever_unicode_takes_for_the_end_of_a_line(running: Running) -> None:
    client = running.client()
    why = "one\u2028two\u0085three\u2029four"
    client.send("demo", CREATE)
    client.send("demo", m.Cancel(why))
    followed = client.follow("demo", 0)
    events = [next(followed)[1] for _ in client.events("demo", 0)]
    followed.close()
    assert why in [event.why for event in events if isinstance(event, m.StateChanged)]


def test_asking_for_health_does_not_change_which_store_is_known(tmp_path: Path) -> None:
    with start(home=tmp_path / "one") as one, start(home=tmp_path / "two") as two:
        client = Client([one.url, two.url], one.token)
        assert client.is_healthy()
        assert client.store is None
        client.jobs()
        known = client.store
        one.kill()
        assert client.is_healthy()
        assert client.store == known
        client.close()


def test_health_is_told_without_a_credential(running: Running) -> None:
    with client_of(running.url) as stranger:
        assert stranger.is_healthy()
    with client_of(free_url()) as absent:
        assert not absent.is_healthy()


def test_a_long_list_of_jobs_comes_in_pages_and_misses_none(running: Running) -> None:
    names = [f"job-{number:04}" for number in range(PAGE_MAX + 2)]
    headers = {"authorization": f"Bearer {running.token.text}"}
    with running.client() as client, httpx2.Client(headers=headers, base_url=running.url) as raw:
        for name in names:
            client.send(name, m.Create(name, JobSpec(1, 4, Target(2))))
        client.send(names[0], m.Cancel("enough"))
        assert [line.name for line in client.jobs()] == names
        first = raw.get("/v1/jobs").json()
        assert [len(first["jobs"]), first["next"]] == [PAGE_MAX, names[PAGE_MAX - 1]]
        second = raw.get("/v1/jobs", params={"after": first["next"]}).json()
        assert ([line["name"] for line in second["jobs"]], second["next"]) == (names[PAGE_MAX:], "")
        assert raw.get("/v1/jobs", params={"after": "zzz"}).json()["jobs"] == []
        for wrong in ("after=no+name", "after=a&after=b"):
            assert raw.get(f"/v1/jobs?{wrong}").status_code == 422
