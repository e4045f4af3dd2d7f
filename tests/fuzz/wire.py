"""Parsers of what a coordinator and its clients send to each other."""

from __future__ import annotations

from typing import Any

from e2e.examples import TERMS, example, value_of
from fuzz.parser import Parser
from pliant.client.client import decode_event, decode_reply, server_sent_events
from pliant.client.transport import base_url, decode_problem
from pliant.coordinator.api import app, auth, middleware
from pliant.core import messages as m
from pliant.core.data.ledger import GENESIS
from pliant.core.model.job import Job
from pliant.core.model.names import AgentId
from pliant.core.model.view import View, view_of
from pliant.errors import BadInput, PliantError
from pliant.stores.memory import MemoryStore
from pliant.wire import api
from pliant.wire.codec import Body, decode_state, encode_reply, encode_state
from pliant.wire.routes import EVENTS, ROUTES, WATCH, Route
from pliant.wire.views import ViewDelta, ViewUpdate, apply_update, view_delta
from unit.core.build import A, B, checkpoint, lines, new_job, running

JOB = running(3, steps=4)
VIEW = view_of(JOB, 9, A)


def bodies() -> list[Parser]:
    """One for each route with a body, fed with small and with full examples."""
    return [_body(route) for route in ROUTES if route.body is not None]


def _body(route: Route) -> Parser:
    assert route.body is not None
    body: Body[Any] = Body(route.body)
    found = [data for data in (example(route).body, *_RICH.get(route.body, ())) if data is not None]
    return Parser(f"body of {route.name}", body.decode, lambda: found, (BadInput,))


_JOIN = m.Join(A, AgentId("a1"), TERMS, 2, "10.0.0.1:5", 77, (("torch", "2.13"),), 1.5)
_RICH: dict[type, list[bytes]] = {
    m.Join: [Body(m.Join).encode(_JOIN)],
    m.Publish: [Body(m.Publish).encode(m.Publish(A, 1, checkpoint(GENESIS, "step-1-g1-0000000000000001-w1")))],
}


def answers() -> list[Parser]:
    """One for each type of answer, as a client decodes it."""
    kinds: dict[str, type] = {route.reply.__name__: route.reply for route in ROUTES if isinstance(route.reply, type)}
    found = [_answer(kind) for name, kind in sorted(kinds.items()) if name not in ("EventPage", "ViewUpdate")]
    return [*found, Parser("answer EventPage", _read_page, _pages, (PliantError,))]


def _answer(kind: type) -> Parser:
    corpus = [encode_reply(value_of(kind))]
    return Parser(
        f"answer {kind.__name__}", lambda data: decode_reply(data, kind, "a request"), lambda: corpus, (PliantError,)
    )


def _pages() -> list[bytes]:
    found = [b'{"revision":%d,"event":%b}' % (at, data) for at, data in enumerate(_events(), 1)]
    return [b'{"events":[' + b",".join(found) + b"]}", b'{"events":[]}']


def _read_page(data: bytes) -> None:
    page = decode_reply(data, api.EventPage, EVENTS.name)
    for line in page.events:
        decode_event(bytes(line.event))


def _events() -> list[bytes]:
    given: list[m.Event] = [
        m.JobCreated(1.0, "demo", JOB.spec),
        m.MemberGone(2.0, A, "left", "drained"),
        m.StateChanged(3.0, JOB.state, "why"),
        m.StepsCommitted(4.0, 1, A, lines(GENESIS, 1, 2)),
        m.WorldFormed(5.0, JOB.worlds[-1]),
        m.CheckpointPublished(6.0, 1, checkpoint(JOB.durable)),
    ]
    return [api.EVENTS.encode(each) for each in given]


def streams() -> list[Parser]:
    def read(data: bytes) -> None:
        third = max(1, len(data) // 3)  # in three chunks, cut anywhere
        chunks = [data[:third], data[third : 2 * third], data[2 * third :]]
        for _ in server_sent_events(iter(chunks)):
            pass

    def corpus() -> list[bytes]:
        sent = [b"id: %d\nevent: x\ndata: %b\n\n" % (at, data) for at, data in enumerate(_events(), 1)]
        return [b"".join(sent), b": nothing new\n\n" + sent[0], sent[-1]]

    return [Parser("server-sent events", read, corpus, (PliantError,))]


def views() -> list[Parser]:
    def applied(data: bytes) -> View | None:
        return apply_update(VIEW, decode_reply(data, ViewUpdate, WATCH.name))

    def corpus() -> list[bytes]:
        later = view_of(running(4, steps=5), 12, B)
        found = []
        for before, after in ((None, VIEW), (VIEW, later)):
            found.append(Body(ViewUpdate).encode(_update(after, view_delta(before, after))))
        found.append(Body(ViewUpdate).encode(_update(VIEW, None)))
        return found

    return [Parser("view", applied, corpus, (PliantError,))]


def _update(view: View, delta: ViewDelta | None) -> ViewUpdate:
    return ViewUpdate(view.revision, True, False, 0.0, 1, 0, 3, view.durable, (), delta=delta)


def records() -> list[Parser]:
    """Records and events as they come out of a store."""
    job, tokens = encode_state(JOB), encode_state(auth.StoredTokens((_token(),)))
    changes = [
        auth._CHANGES.encode(auth.TokenCreated(_token())),
        auth._CHANGES.encode(auth.TokenExpires("a" * 12, 1.0)),
    ]
    return [
        Parser(
            "record of a job", lambda data: decode_state(data, Job), lambda: [job, encode_state(new_job())], (BadInput,)
        ),
        Parser("record of tokens", lambda data: decode_state(data, auth.StoredTokens), lambda: [tokens], (BadInput,)),
        Parser("change of a token", auth._CHANGES.decode, lambda: changes, (BadInput,)),
        Parser("event", api.EVENTS.decode, _events, (BadInput,)),
    ]


def _token() -> auth.StoredToken:
    return auth.StoredToken("a" * 12, "b" * 64, api.Scope.JOIN, "demo", "label", 1.0, None)


def heads() -> list[Parser]:
    """Parts of the head of a request, and of an answer."""
    registry = auth.TokenRegistry(MemoryStore("s"), lambda: 1.0)
    guard = middleware.RequestGuard(_no_app, registry, "s", ("host",), lambda _: None)
    query = [b"after=1&limit=10", b"after=0", b"limit=1000&after=9007199254740992"]
    urls = [b"http://127.0.0.1:7711", b"https://[::1]:1/", b"http://h"]
    hosts = [b"127.0.0.1:7711", b"localhost", b"[::1]:7711", b"host:1"]
    return [
        Parser("query", lambda data: app._query(data, EVENTS.query), lambda: query, (app.ApiError,)),
        Parser("Host header", guard._is_allowed_host, lambda: hosts),
        Parser(
            "Origin header", lambda data: middleware._same_origin(data, b"localhost"), lambda: [b"http://localhost"]
        ),
        Parser(
            "bearer token",
            lambda data: registry.check(data.decode("latin-1")),
            lambda: [b"pliant_" + b"a" * 12 + b"_" + b"b" * 43],
            state=registry.lines,
        ),
        Parser(
            "challenge",
            lambda data: registry.answer_challenge(data.decode("latin-1")),
            lambda: [b"a" * 12 + b" " + b"0" * 64],
        ),
        Parser("problem", decode_problem, lambda: [encode_reply(api.Problem("bad", "why", 3))]),
        Parser(
            "URL of a coordinator", lambda data: base_url(data.decode("utf-8", "replace")), lambda: urls, (BadInput,)
        ),
    ]


async def _no_app(*_: object) -> None:
    raise AssertionError


PARSERS = [*bodies(), *answers(), *streams(), *views(), *records(), *heads()]
