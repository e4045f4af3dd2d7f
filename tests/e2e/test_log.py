"""A coordinator's log: no secret, no line break from a request, no endless line."""

from pathlib import Path

from e2e.examples import JOB, TERMS, furnish
from e2e.raw import ask, host, request
from e2e.running import Written, start, token_of
from pliant.core import messages as m
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import make_token
from pliant.telemetry import LINE_MAX
from pliant.wire.api import Scope, TokenRequest


def test_a_secret_that_was_written_is_found() -> None:
    written, token = Written(), make_token()
    written.secret(token)
    written.note("a log", f"turned away {token.id}".encode())
    assert written.leaks() == []
    written.note("another log", f"turned away {token.text}".encode())
    assert written.leaks() == [f"a secret {token.secret[:6]}... in another log"]


def test_tokens_are_made_used_refused_and_ended_and_their_secrets_stand_nowhere(tmp_path: Path) -> None:
    with start(f"sqlite:{tmp_path / 'store.db'}", home=tmp_path) as running:
        furnish(running)
        client = running.client()
        token = token_of(client.create_token(TokenRequest(Scope.READ, JOB, None, "for the night run")).token)
        http = running.http(token)
        answers = [http.get(path) for path in ("/v1", f"/v1/jobs/{JOB}", "/v1/tokens", "/v1/jobs/other", "/metrics")]
        assert [answer.status_code for answer in answers] == [200, 200, 403, 403, 403]
        client.expire_token(token.id)
        answers += [http.get("/v1"), running.admin.get("/v1/tokens"), running.admin.get("/metrics")]
        ask(running, request("/v1", host(running), f"authorization: Basic {token.text}"))
        ask(running, request("/v1", host(running), f"authorization: bearer  {token.text}x"))
    written = Written()
    for known in (token, running.token):
        written.secret(known)
    for answer in answers:
        written.note(str(answer.url), str(answer.headers).encode() + answer.content)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "token":
            written.note(path.name, path.read_bytes())
    assert {"store.db", running.log_file.name} <= set(written.texts.values())
    assert written.leaks() == []
    assert token.id in running.log  # who was turned away can be told, by what may be shown


def test_what_others_say_is_quoted_in_one_line_of_bounded_length(tmp_path: Path) -> None:
    with start(home=tmp_path) as running:
        furnish(running)
        client = running.client()
        client.send(JOB, m.Drain(MemberId("m1"), 1.0, "one\n12:00:00 all is well\r\x1b[2J\u202e\x9b"))
        client.send(JOB, m.Join(MemberId("m3"), AgentId("a1"), TERMS))
        client.send(JOB, m.Drain(MemberId("m3"), 1.0, "x" * 100_000))
        log = running.log
    assert "one\\n12:00:00 all is well\\r\\x1b[2J\\u202e\\x9b" in log
    assert not any(line.startswith("12:00:00 all") for line in log.splitlines())
    assert max(map(len, log.splitlines())) < LINE_MAX + 100
