"""Thousands of random requests: none of them breaks a coordinator or a promise.

Half of them are made by schemathesis from the OpenAPI document, the others from the types of the bodies. Each test
counts its cases and insists on a number, so that a strategy that silently stopped drawing is noticed.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from e2e.bodies import HOPELESS, broken, plausible
from e2e.examples import IN_PATH, TERMS, example, furnish, state
from e2e.running import WRITTEN, Running, token_of
from pliant.core import messages as m
from pliant.core.model.job import JobSpec, Target
from pliant.core.model.names import AgentId, MemberId
from pliant.wire.api import Problem, Scope
from pliant.wire.openapi import document
from pliant.wire.routes import EVENTS, ROUTES, TOKEN, WATCH, Route

FROM_DOCUMENT, FROM_TYPES, FROM_STRANGERS = 1200, 1900, 400  # at least so many cases each
POSTS = [route for route in ROUTES if route.body is not None]
GUARDED = [route for route in ROUTES if route.scope is not Scope.PUBLIC]
DOCUMENTED = {int(status) for status in document()["paths"][WATCH.path]["get"]["responses"]}

load_all_checks()
NAMED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
CONFORMS = [CHECKS.get_one(name) for name in NAMED]


@pytest.fixture(scope="module", autouse=True)
def furnished(coordinator: Running) -> None:
    furnish(coordinator)


@pytest.fixture(scope="module")
def jobs(coordinator: Running) -> Iterator[str]:
    """Names of jobs that nothing has happened to yet: a fuzzed one is soon cancelled, or worse."""

    def fresh() -> Iterator[str]:
        client = coordinator.client()
        for number in itertools.count():
            name = f"fuzz-{number}"
            client.send(name, m.Create(name, JobSpec(1, 4, Target(2))))
            client.send(name, m.AgentJoin(AgentId("a1"), 4))
            for member in ("m1", "m2"):
                client.send(name, m.Join(MemberId(member), AgentId("a1"), TERMS))
            yield name

    return fresh()


def drawn(strategy: st.SearchStrategy[Any], count: int, test: Callable[[Any], None]) -> None:
    """Run a test on `count` examples; the same ones each time, unless `make test` was given a seed."""
    quiet = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    settings(max_examples=count, suppress_health_check=quiet)(given(strategy)(test))()


def path_of(route: Route, job: str) -> dict[str, str]:
    return {name: value for name, value in (IN_PATH | {"job": job}).items() if f"{{{name}}}" in route.path}


# ---------------------------------------------------------------------------------------- from the document


def operations() -> dict[str, Any]:
    """By the names of their routes. The credential is not theirs to vary: `test_auth_matrix` does that."""
    described = document()
    for path in described["paths"].values():
        for operation in path.values():
            del operation["security"]
    found: list[Any] = list(schemathesis.openapi.from_dict(described).get_all_operations())
    return {each.ok().definition.raw["operationId"]: each.ok() for each in found}


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_the_document_describes_is_answered_as_it_says(coordinator: Running, jobs: Iterator[str]) -> None:
    session = requests.Session()
    session.trust_env = False
    session.headers["authorization"] = f"Bearer {coordinator.token.text}"
    described, counts = operations(), Counter[int]()
    assert described.keys() == {route.name for route in ROUTES}

    def run(case: Any) -> None:
        response = case.call(base_url=coordinator.url, session=session, timeout=20)
        counts[response.status_code] += 1
        assert response.status_code < 500, response.text
        case.validate_response(response, checks=CONFORMS)
        remember(case.operation.definition.raw["operationId"], response.status_code, response.content)

    for route in ROUTES:
        # A wait would be waited for; `test_a_number_in_the_query_is_one_number_within_bounds` has its values.
        query = {"wait_s": 0} if any(query.name == "wait_s" for query in route.query) else {}
        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if route.body or route.query else []
        for mode in modes:
            known = path_of(route, next(jobs))
            drawn(described[route.name].as_strategy(generation_mode=mode, path_parameters=known, query=query), 20, run)
        drawn(described[route.name].as_strategy(query=query), 20, run)
    session.close()
    assert sum(counts.values()) >= FROM_DOCUMENT, counts
    assert {200, 404, 422} <= counts.keys()


def remember(route: str, status: int, content: bytes) -> None:
    if route == TOKEN.name and status == 200:
        token_of(msgspec.json.decode(content)["token"])
    else:
        WRITTEN.note(f"an answer to {route}", content)


# ------------------------------------------------------------------------------------------ from the types


def check(route: Route, response: httpx2.Response) -> None:
    """Documented, and of the documented type."""
    assert response.status_code in DOCUMENTED, response.text
    assert response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/json"
    reply: Any = route.reply if response.status_code == 200 else Problem
    msgspec.json.decode(response.content, type=reply)
    remember(route.name, response.status_code, response.content)


def test_any_body_is_answered_and_none_with_a_bug(coordinator: Running, jobs: Iterator[str]) -> None:
    counts = Counter[int]()
    for route in POSTS:
        assert route.body is not None
        url = route.path.format(**path_of(route, next(jobs)))
        post = poster(coordinator.admin, route, url, counts)
        drawn(plausible(route.body), 60, post)
        refused = poster(coordinator.admin, route, url, counts, refused=True)
        drawn(broken(route.body), 50, refused)
        for data in (HOPELESS["far too much"], HOPELESS["deep arrays"], HOPELESS["not UTF-8"]):
            refused(data)
    assert sum(counts.values()) >= FROM_TYPES, counts
    assert {200, 404, 409, 413, 422} <= counts.keys()
    assert "bug" not in coordinator.log


def poster(
    http: httpx2.Client, route: Route, url: str, counts: Counter[int], *, refused: bool = False
) -> Callable[[bytes], None]:
    def post(data: bytes) -> None:
        response = http.post(url, content=data, headers={"content-type": "application/json"})
        counts[response.status_code] += 1
        check(route, response)
        if refused:
            assert response.status_code in (413, 422), (data[:200], response.text)

    return post


@pytest.mark.parametrize("name", ["wait_s", "after", "limit"])
@pytest.mark.parametrize(
    "text",
    [
        "-1",
        "+1",
        "",
        " 1",
        "1 ",
        "1_0",
        "0x1",
        "1e1",
        "nan",
        "inf",
        "NaN",
        "٣",
        "\uff11",
        "1;2",
        "9" * 40,
        "1&{}=2",
        "null",
    ],
)
def test_a_number_in_the_query_is_one_number_within_bounds(coordinator: Running, name: str, text: str) -> None:
    route = EVENTS if name == "limit" else WATCH
    url = route.path.format(job="demo", member="m1")
    response = coordinator.admin.get(f"{url}?{name}={text.format(name)}")
    assert response.status_code == 422
    check(route, response)


@pytest.mark.parametrize("query", ["wait_s=0", "wait_s=60", "wait_s=60.0", "wait_s=0.5", "after=0&wait_s=25", ""])
def test_a_wait_within_bounds_is_taken_and_ends_with_the_first_news(coordinator: Running, query: str) -> None:
    response = coordinator.admin.get(f"{WATCH.path.format(job='other', member='m1')}?{query}")
    assert response.status_code == 200
    assert response.json()["delta"] is not None


@pytest.mark.parametrize("query", ["wait_s=60.1", "wait_s=61", f"after={2**53 + 1}", "nothing=1", "after", "a=1&" * 20])
def test_a_query_outside_its_bounds_is_refused(coordinator: Running, query: str) -> None:
    response = coordinator.admin.get(f"{WATCH.path.format(job='other', member='m1')}?{query}")
    assert response.status_code == 422


# --------------------------------------------------------------------------------------- without a credential


def test_whatever_a_stranger_sends_changes_nothing(coordinator: Running) -> None:
    before, counts, http = state(coordinator), Counter[int](), coordinator.http()

    def check_turned_away(route: Route) -> Callable[[bytes], None]:
        def send(data: bytes) -> None:
            headers = {"content-type": "application/json"}
            response = http.request(route.method, example(route).url, content=data, headers=headers)
            counts[response.status_code] += 1
            assert response.status_code == 401

        return send

    for route in GUARDED:
        bodies = plausible(route.body) if route.body else st.just(b"")
        drawn(st.one_of(bodies, st.sampled_from(list(HOPELESS.values()))), 20, check_turned_away(route))
    assert sum(counts.values()) >= FROM_STRANGERS
    assert state(coordinator) == before


def test_the_cases_are_three_thousand_and_more() -> None:
    assert FROM_DOCUMENT + FROM_TYPES + FROM_STRANGERS >= 3000
