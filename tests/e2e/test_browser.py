"""A browser that was tricked: by a name that was made to point here (DNS rebinding), or by a page of another site.

Either is refused before its credential is looked at, so the tests send a good one, a bad one and none.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.examples import example, furnish, state
from e2e.raw import ask, bearer, host, request
from e2e.running import Running, start
from pliant.wire.routes import CREATE, JOBS, ROUTES

CREDENTIALS = ("good", "bad", "none")
JSON = "content-type: application/json"


@pytest.fixture(scope="module", autouse=True)
def furnished(coordinator: Running) -> None:
    furnish(coordinator)


def credential(running: Running, kind: str) -> list[str]:
    wrong = "authorization: Bearer pliant_000000000000_" + "x" * 43
    return {"good": [bearer(running)], "bad": [wrong], "none": []}[kind]


def looked_at(running: Running) -> float:
    """Return how many credentials were looked at and found wanting, by the coordinator's own count."""
    lines = running.admin.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("pliant_http_refused_total")]
    return sum(float(line.split()[-1]) for line in counts if 'reason="no-credential"' in line)


# ------------------------------------------------------------------------------------------------ DNS rebinding


@pytest.mark.parametrize("kind", CREDENTIALS)
@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "evil.example:7711",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example#127.0.0.1",
        "evil.example/127.0.0.1",
        "2130706433",
        "0x7f.1",
        "[::1",
        "127.0.0.1:port",
        "127.0.0.1:99999",
        "",
    ],
)
def test_a_name_that_is_not_ours_is_refused_on_every_route(coordinator: Running, name: str, kind: str) -> None:
    before, count = state(coordinator), looked_at(coordinator)
    for route in ROUTES:
        asked = example(route)
        data = request(
            asked.url,
            f"host: {name}",
            *credential(coordinator, kind),
            *([JSON] if asked.body else []),
            method=asked.method,
            body=asked.body or b"",
        )
        assert ask(coordinator, data).status == 421, route.name
    assert looked_at(coordinator) == count
    assert state(coordinator) == before


@pytest.mark.parametrize("kind", CREDENTIALS)
def test_a_request_names_one_host(coordinator: Running, kind: str) -> None:
    sent = credential(coordinator, kind)
    assert ask(coordinator, request(JOBS.path, *sent)).status == 421
    assert ask(coordinator, request(JOBS.path, *sent, version="HTTP/1.0")).status == 421
    assert ask(coordinator, request(JOBS.path, host(coordinator), "host: evil.example", *sent)).status == 400
    assert ask(coordinator, request(JOBS.path, "host: evil.example", host(coordinator), *sent)).status == 400
    assert ask(coordinator, request(JOBS.path, host(coordinator), host(coordinator), *sent)).status == 400


@pytest.mark.parametrize("target", ["http://evil.example/v1/jobs", "evil.example:80", "*", "http://127.0.0.1/v1/jobs"])
@pytest.mark.parametrize("method", ["GET", "CONNECT", "OPTIONS"])
def test_we_are_nobodys_proxy(coordinator: Running, target: str, method: str) -> None:
    before = state(coordinator)
    answer = ask(coordinator, request(target, host(coordinator), bearer(coordinator), method=method))
    assert answer.status == 400
    assert state(coordinator) == before


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST:7711", "localhost.", "[::1]:7711", "10.1.2.3"])
def test_addresses_and_localhost_are_ours(coordinator: Running, name: str) -> None:
    assert ask(coordinator, request(JOBS.path, f"host: {name}", bearer(coordinator))).status == 200


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with start(home=tmp_path_factory.mktemp("named"), hosts=("Head.Cluster.example",)) as running:
        yield running


def test_a_name_that_was_allowed_is_ours(named: Running) -> None:
    for name in ("head.cluster.example", "HEAD.cluster.EXAMPLE:7711", "head.cluster.example.", "localhost"):
        assert ask(named, request(JOBS.path, f"host: {name}", bearer(named))).status == 200
    for name in ("cluster.example", "x.head.cluster.example", "evil.example"):
        assert ask(named, request(JOBS.path, f"host: {name}", bearer(named))).status == 421


# --------------------------------------------------------------------------------------------------- cross-site


@pytest.mark.parametrize("kind", CREDENTIALS)
@pytest.mark.parametrize(
    "header",
    [
        "origin: http://evil.example",
        "origin: https://evil.example",
        "origin: null",
        "origin: ",
        "origin: http://127.0.0.1:1",
        "origin: http://localhost",
        "origin: file://",
        "sec-fetch-site: cross-site",
        "sec-fetch-site: same-site",
        "sec-fetch-site: whatever comes next",
    ],
)
@pytest.mark.parametrize("media", ["application/json", "text/plain", "application/x-www-form-urlencoded"])
def test_a_page_of_another_site_is_refused(coordinator: Running, media: str, header: str, kind: str) -> None:
    before, count = state(coordinator), looked_at(coordinator)
    body = b'{"name":"theirs","spec":{"size_min":1,"size_max":1}}'
    sent = [host(coordinator), f"content-type: {media}", header, *credential(coordinator, kind)]
    assert ask(coordinator, request(CREATE.path, *sent, method="POST", body=body)).status == 403
    assert ask(coordinator, request(JOBS.path, *sent)).status == 403
    assert looked_at(coordinator) == count
    assert state(coordinator) == before


def test_what_a_form_can_send_is_no_command_even_with_a_credential(coordinator: Running) -> None:
    before = state(coordinator)
    body = b'{"name":"theirs","spec":{"size_min":1,"size_max":1}}'
    for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"):
        sent = [host(coordinator), f"content-type: {media}", bearer(coordinator)]
        assert ask(coordinator, request(CREATE.path, *sent, method="POST", body=body)).status == 415
    assert state(coordinator) == before


def test_no_answer_lets_another_site_read_it(coordinator: Running) -> None:
    preflight = ["origin: http://evil.example", "access-control-request-method: POST"]
    for sent in ([host(coordinator), *preflight], [host(coordinator), bearer(coordinator)], [host(coordinator)]):
        for method in ("OPTIONS", "GET"):
            answer = ask(coordinator, request(JOBS.path, *sent, method=method))
            assert not [name for name in answer.headers if name.startswith("access-control")]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"


def test_our_own_page_may_ask(coordinator: Running) -> None:
    origin = f"origin: http://127.0.0.1:{coordinator.port}"
    for headers in ([origin], ["sec-fetch-site: same-origin"], ["sec-fetch-site: none"], [origin.upper()]):
        sent = [host(coordinator), bearer(coordinator), *headers]
        assert ask(coordinator, request(JOBS.path, *sent)).status == 200


def test_the_log_says_who_was_turned_away_in_one_line(tmp_path: Path) -> None:
    with start(home=tmp_path) as running:
        ask(running, request("/v1/jobs/a%0A12:00:00%20fake%1b[2J", host(running)))
        turned = [line for line in running.log.splitlines() if "refused " in line]
        assert len(turned) == 1
        assert "127.0.0.1: GET '/v1/jobs/a\\n12:00:00 fake\\x1b[2J'" in turned[0]
