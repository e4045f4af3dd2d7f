"""Every row of the route table against every kind of credential. The table makes the tests: a new row is covered."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import httpx2
import msgspec
import pytest
from starlette.testclient import TestClient

from e2e.examples import JOB, OTHER, Example, example, furnish, state
from e2e.running import WRITTEN, Running, start, token_of, wait_for
from pliant.coordinator.api.app import application
from pliant.credentials import Token, make_token
from pliant.telemetry import CoordinatorMetrics
from pliant.wire.api import Problem, Scope, TokenRequest
from pliant.wire.routes import JOBS, ROUTES, Route

SCOPES = (Scope.READ, Scope.JOIN, Scope.SUBMIT, Scope.ADMIN)
BINDABLE = (Scope.READ, Scope.JOIN, Scope.ADMIN)
STRANGERS = (
    "nothing",
    "an empty header",
    "no scheme",
    "another scheme",
    "garbage",
    "an unknown token",
    "the wrong secret",
    "an expired token",
    "a revoked token",
)
ROWS = [pytest.param(route, id=route.name) for route in ROUTES]
GUARDED = [pytest.param(route, id=route.name) for route in ROUTES if route.scope is not Scope.PUBLIC]
SCOPED = [pytest.param(scope, id=scope.value) for scope in BINDABLE]
CELLS = [(route, scope) for route in ROUTES for scope in SCOPES]
CLOSED = [pytest.param(r, s, id=f"{r.name}-{s.value}") for r, s in CELLS if not s.covers(r.scope)]
OPEN = [pytest.param(r, s, id=f"{r.name}-{s.value}") for r, s in CELLS if s.covers(r.scope)]
IN_A_JOB = [pytest.param(route, id=route.name) for route in ROUTES if "{job}" in route.path]


@dataclass(frozen=True)
class Keys:
    """Credentials of every kind for one coordinator, as the values of an Authorization header."""

    strangers: Mapping[str, str | None]
    free: Mapping[Scope, Token]
    bound: Mapping[Scope, Token]  # to the job OTHER
    own: Mapping[Scope, Token]  # to the job JOB


def make_keys(running: Running) -> Keys:
    client = running.client()

    def make(scope: Scope, job: str | None = None, ttl_s: float | None = None) -> Token:
        return token_of(client.create_token(TokenRequest(scope, job, ttl_s, "made for a test")).token)

    expired, revoked, known = make(Scope.ADMIN, ttl_s=0.001), make(Scope.ADMIN), make(Scope.ADMIN)
    client.expire_token(revoked.id)
    wrong = WRITTEN.secret(Token(known.id, make_token().secret))
    wait_for(lambda: {x.id: x for x in client.tokens()}[expired.id].ended, "a token to expire")
    strangers = {
        "nothing": None,
        "an empty header": "",
        "no scheme": known.text,
        "another scheme": f"Basic {known.text}",
        "garbage": "Bearer ../../etc/passwd\xff",
        "an unknown token": f"Bearer {WRITTEN.secret(make_token()).text}",
        "the wrong secret": f"Bearer {wrong.text}",
        "an expired token": f"Bearer {expired.text}",
        "a revoked token": f"Bearer {revoked.text}",
    }
    return Keys(
        strangers,
        free={scope: make(scope) for scope in SCOPES},
        bound={scope: make(scope, OTHER) for scope in BINDABLE},
        own={scope: make(scope, JOB) for scope in BINDABLE},
    )


@pytest.fixture(scope="module")
def keys(coordinator: Running) -> Keys:
    furnish(coordinator)
    return make_keys(coordinator)


@pytest.fixture(scope="module")
def anonymous(coordinator: Running) -> httpx2.Client:
    return coordinator.http()


def send(http: httpx2.Client, asked: Example, authorization: str | None) -> httpx2.Response:
    credential = {} if authorization is None else {b"authorization": authorization.encode("latin-1")}
    headers = {name.encode(): value.encode() for name, value in asked.headers.items()} | credential
    return http.request(asked.method, asked.url, content=asked.body, headers=headers)


def bearer(token: Token) -> str:
    return f"Bearer {token.text}"


def problem(response: httpx2.Response) -> Problem:
    assert response.headers["content-type"] == "application/json"
    return msgspec.json.decode(response.content, type=Problem)


# ------------------------------------------------------------------------------------------------- who may not


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("route", ROWS)
def test_a_stranger_gets_nowhere_but_to_what_is_public(
    coordinator: Running, anonymous: httpx2.Client, keys: Keys, route: Route, stranger: str
) -> None:
    before = state(coordinator)
    response = send(anonymous, example(route), keys.strangers[stranger])
    if route.scope is Scope.PUBLIC:
        assert response.status_code == 200
    else:
        assert response.status_code == 401
        assert problem(response).code == "no-credential"
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert state(coordinator) == before


@pytest.mark.parametrize(("route", "scope"), CLOSED)
def test_a_scope_that_does_not_go_so_far_is_refused(
    coordinator: Running, anonymous: httpx2.Client, keys: Keys, route: Route, scope: Scope
) -> None:
    before = state(coordinator)
    response = send(anonymous, example(route), bearer(keys.free[scope]))
    assert (response.status_code, problem(response).code) == (403, "not-allowed")
    assert route.scope.value in problem(response).why
    assert state(coordinator) == before


@pytest.mark.parametrize("scope", SCOPED)
@pytest.mark.parametrize("route", GUARDED)
def test_a_token_of_another_job_is_refused_whatever_its_scope(
    coordinator: Running, anonymous: httpx2.Client, keys: Keys, route: Route, scope: Scope
) -> None:
    before = state(coordinator)
    response = send(anonymous, example(route), bearer(keys.bound[scope]))
    if route.shared and scope.covers(route.scope):
        assert response.status_code == 200
    else:
        assert (response.status_code, problem(response).code) == (403, "not-allowed")
    assert state(coordinator) == before


def test_of_what_is_shared_a_token_of_one_job_sees_its_own_job_alone(anonymous: httpx2.Client, keys: Keys) -> None:
    response = send(anonymous, example(JOBS), bearer(keys.bound[Scope.READ]))
    assert [job["name"] for job in response.json()["jobs"]] == [OTHER]


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_does_not_learn_which_paths_exist(anonymous: httpx2.Client, keys: Keys, stranger: str) -> None:
    answers = set()
    for method, url in [("GET", "/"), ("GET", "/v2"), ("PUT", "/v1/jobs"), ("GET", "/docs"), ("GET", "/v1/jobs/")]:
        response = send(anonymous, Example(method, url, None), keys.strangers[stranger])
        answers.add((response.status_code, response.content))
    assert len(answers) == 1
    assert answers.pop()[0] == 401


# ----------------------------------------------------------------------------------------------------- who may


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx2.Client, Keys]]:
    """Return what is allowed changes things (`cancel` ends a job), so it is done to a coordinator of its own."""
    with start(home=tmp_path_factory.mktemp("spoilt"), lease_ttl_s=3600.0, submissions=("*",)) as running:
        furnish(running)
        yield running.http(), make_keys(running)


@pytest.mark.parametrize(("route", "scope"), OPEN)
def test_the_right_credential_opens_every_route(spoilt: tuple[httpx2.Client, Keys], route: Route, scope: Scope) -> None:
    http, made = spoilt
    response = send(http, example(route), bearer(made.free[scope]))
    assert response.status_code in (200, 404, 409, 410, 422), response.text
    if route.method == "GET":
        assert response.status_code == 200
    if response.request.method == "POST" and response.request.url.path == "/v1/tokens":
        token_of(response.json()["token"])


@pytest.mark.parametrize("route", IN_A_JOB)
def test_a_token_of_a_job_opens_every_route_of_that_job(spoilt: tuple[httpx2.Client, Keys], route: Route) -> None:
    http, made = spoilt
    response = send(http, example(route), bearer(made.own[route.scope]))
    assert response.status_code in (200, 404, 409, 410, 422), response.text


def test_with_a_credential_an_unknown_path_is_told_apart_from_a_wrong_method(
    anonymous: httpx2.Client, keys: Keys
) -> None:
    admin = bearer(keys.free[Scope.ADMIN])
    for url in ("/", "/v2", "/v1/jobs/demo/nothing", "/v1/jobs/", "/healthz/", "/V1/jobs", "//v1/jobs"):
        response = send(anonymous, Example("GET", url, None), admin)
        assert (response.status_code, problem(response).code) == (404, "no-path"), url
    for route in ROUTES:
        response = send(anonymous, Example("PUT", example(route).url, None), admin)
        assert (response.status_code, problem(response).code) == (405, "no-method"), route.name
        assert send(anonymous, Example("HEAD", example(route).url, None), admin).status_code == 405


def test_a_token_ends_for_requests_that_come_on_an_open_connection_too(coordinator: Running, keys: Keys) -> None:
    client = coordinator.client()
    token = token_of(client.create_token(TokenRequest(Scope.READ)).token)
    http = coordinator.http(token)
    assert http.get("/v1").status_code == 200
    client.expire_token(token.id)
    assert http.get("/v1").status_code == 401


# ------------------------------------------------------------------------------------ what cannot be forgotten


def test_a_route_without_a_scope_cannot_be_written() -> None:
    with pytest.raises(TypeError, match="scope"):
        Route("new", "GET", "/v1/new", about="Something new.")  # type: ignore[call-arg]


async def nothing(_: object) -> bytes:
    return b""


def test_a_route_without_a_handler_does_not_start() -> None:
    handlers = {route.name: nothing for route in ROUTES}
    application(handlers, CoordinatorMetrics())
    del handlers["cancel"]
    with pytest.raises(TypeError, match="cancel"):
        application(handlers, CoordinatorMetrics())


def test_without_the_gate_nothing_but_what_is_public_is_served() -> None:
    app = application({route.name: nothing for route in ROUTES}, CoordinatorMetrics())
    with closing(TestClient(app)) as http:
        statuses = {r.name: http.request(r.method, example(r).url, content=example(r).body).status_code for r in ROUTES}
    assert {name for name, status in statuses.items() if status != 401} == {"health", "ready"}


def test_every_path_and_method_is_in_the_table_once() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.name for route in ROUTES}) == len(ROUTES)
    assert [route.name for route in ROUTES if route.scope is Scope.PUBLIC] == ["health", "ready"]
