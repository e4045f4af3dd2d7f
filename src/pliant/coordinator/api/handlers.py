"""What the coordinator does for each route of the table."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from pliant import __version__
from pliant.coordinator.api.app import STATUS, ApiError, Call, ClientConnection, Handler
from pliant.coordinator.api.auth import TokenRegistry
from pliant.coordinator.api.job_status import job_line, job_status
from pliant.coordinator.async_service import AsyncService
from pliant.coordinator.notifications import ClientDisconnected, CoordinatorClosing, LongPoll
from pliant.coordinator.service.inbox import (
    Accepted,
    AgentWatchClosed,
    Reply,
    Request,
    Unavailable,
    WatchClosed,
    set_back,
    truncate_texts,
)
from pliant.core.accounting.activity import Category, at_work, doings
from pliant.core.messages import AgentJoin, Code, Create, Join, Rejection
from pliant.core.model.job import JobState
from pliant.core.model.names import AgentId, MemberId, bad_name
from pliant.errors import StoreError
from pliant.stores.base import Entry, Store
from pliant.telemetry import CoordinatorMetrics
from pliant.wire import api
from pliant.wire.codec import encode_reply
from pliant.wire.openapi import document
from pliant.wire.routes import COMMANDS, RENEW, RENEW_AGENT

STREAM_PAGE = 200
USES_MAX = 1024  # of one agent
STREAM_QUIET_S = 15.0  # a comment is sent so often, so that a dead connection is noticed by both sides


class Handlers:
    """Everything a handler needs, and a handler for every route."""

    def __init__(
        self, desk: AsyncService, store: Store, keyring: TokenRegistry, metrics: CoordinatorMetrics, ttl_s: float
    ) -> None:
        self._desk = desk
        self._store = store
        self._keyring = keyring
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._watching: dict[tuple[str, WatchClosed | AgentWatchClosed], Call] = {}  # by what its end would mean
        self._spoke_on: dict[
            tuple[str, WatchClosed | AgentWatchClosed], ClientConnection
        ] = {}  # joined or watched last
        self._uses: dict[str, dict[AgentId, tuple[api.Use, ...]]] = {}  # by job; what was said last

    def by_name(self) -> dict[str, Handler]:
        """For `pliant.coordinator.api.app.application`."""
        return {route.name: self._command for route in (*COMMANDS.values(), RENEW, RENEW_AGENT)} | {
            "create": self._create,
            "health": self._health,
            "metrics": self._render_metrics,
            "about": self._about,
            "openapi": self._openapi,
            "jobs": self._jobs,
            "job": self._job,
            "events": self._events,
            "watch": self._watch,
            "orders": self._orders,
            "tokens": self._tokens,
            "token": self._token,
            "token-end": self._token_end,
        }

    # ------------------------------------------------------------------------------------------- commands

    async def _create(self, call: Call) -> bytes:
        assert isinstance(call.body, Create)
        if wrong := bad_name(call.body.name):
            raise ApiError(422, Code.BAD, wrong)
        return await self._ask(call.body.name, call.body)

    async def _command(self, call: Call) -> bytes:
        request: Request = truncate_texts(call.body)  # type: ignore[arg-type]  # the table says which ones come here
        if isinstance(request, api.Renew | api.RenewAgent):
            self._require_known(call, request.revision)
        answer = await self._ask(call.job, request)
        if isinstance(request, Join):
            self._listen(call, WatchClosed(request.member))
        elif isinstance(request, AgentJoin):
            self._listen(call, AgentWatchClosed(request.agent))
        if isinstance(request, api.RenewAgent) and request.uses:
            self._note_use(call.job, request)
        return answer

    def _note_use(self, name: str, said: api.RenewAgent) -> None:
        """Remember what an agent's workers take, as long as it is one of the job's."""
        found = self._desk.service.job(name)
        known = {agent.id for agent in found[0].agents} if found else set()
        uses = {**self._uses.get(name, {}), said.agent: said.uses[:USES_MAX]}
        self._uses[name] = {agent: each for agent, each in uses.items() if agent in known}

    async def _ask(self, job: str, request: Request) -> bytes:
        reply = await self._desk.execute(job, request)
        _require(reply)
        view = reply.answer.view if isinstance(reply.answer, Accepted) else None
        return encode_reply(api.Done(reply.revision, view.durable if view is not None else None))

    # ------------------------------------------------------------------------------------------- watching

    async def _watch(self, call: Call) -> bytes:
        job, member, after = call.job, MemberId(call.path["member"]), int(call.query["after"])
        self._require_known(call, after)
        with self._noticed(call, WatchClosed(member)):
            # To watch is a sign of life, and the end of a suspicion that an earlier watch was closed.
            _require(await self._desk.execute(job, api.Renew(member, after)))
            self._listen(call, WatchClosed(member))
            with _waiting(call) as wait:
                return self._found(await self._desk.notifications.watch(job, member, after, wait), job)

    @contextmanager
    def _noticed(self, call: Call, closed: WatchClosed | AgentWatchClosed) -> Iterator[None]:
        """For a watch, so that its end is noted if the other side hangs up and has not come back elsewhere already."""
        key = (call.job, closed)
        self._watching[key] = call
        try:
            yield
        except ClientDisconnected:
            if self._watching.get(key) is call:
                self._desk.watch_closed(call.job, closed)
            raise
        finally:
            if self._watching.get(key) is call:
                del self._watching[key]

    def _listen(self, call: Call, closed: WatchClosed | AgentWatchClosed) -> None:
        """Note the end of a connection also while no watch is open on it: between two, or before the first.

        Whoever dies just then hangs up as well, and that must not be taken for silence (ADR 0019).
        """
        key, connection = (call.job, closed), call.connection
        if connection is None or self._spoke_on.get(key) is connection:
            return

        def over(by_them: bool) -> None:
            if self._spoke_on.get(key) is not connection:
                return
            del self._spoke_on[key]
            watch = self._watching.get(key)
            if by_them and (watch is None or watch.connection is connection):
                self._desk.record_hangup(call.job, closed)

        self._spoke_on[key] = connection
        connection.on_close(key, over)

    def _require_known(self, call: Call, revision: int) -> None:
        """Refuse a revision that is not there yet, from somebody who does not say of which store it is.

        With the store's name beside it, it is evidence that the store was set back, and stops the job (ADR 0009). That
        must not happen to a job because somebody mistyped a number.
        """
        known = self._desk.service.job(call.job)
        if known is not None and revision > known[1] and api.STORE_HEADER.encode() not in call.headers:
            raise ApiError(STATUS[Code.SET_BACK], Code.SET_BACK, set_back(call.job, revision, known[1]), known[1])

    async def _orders(self, call: Call) -> bytes:
        job, agent, after = call.job, AgentId(call.path["agent"]), int(call.query["after"])
        self._require_known(call, after)
        with self._noticed(call, AgentWatchClosed(agent)):
            _require(await self._desk.execute(job, api.RenewAgent(agent, after)))
            self._listen(call, AgentWatchClosed(agent))
            with _waiting(call) as wait:
                return self._found(await self._desk.notifications.orders(job, agent, after, wait), job)

    async def _events(self, call: Call) -> bytes | None:
        known = self._desk.service.job(call.job)
        after = int(call.query["after"])
        accept = call.headers.get(b"accept", b"")
        if known is None:
            raise self._no_job(call.job)
        if call.route.streams.encode() in accept:
            await self._stream(call, _last_event_id(call, after))
            return None
        entries = self._store.events(call.job, after, int(call.query["limit"]))
        return b'{"events":[' + b",".join(map(_event_line, entries)) + b"]}"

    async def _stream(self, call: Call, after: int) -> None:
        """Server-sent events: read what there is, send it, wait, and so on. There is no buffer to overflow.

        Where that cannot go on the stream ends, and whoever reads it comes back with the last id and is told why.
        """
        self._store.events(call.job, after, 1)  # a store that cannot be read is told before anything else is
        headers = [(b"content-type", call.route.streams.encode() + b"; charset=utf-8")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        with _waiting(call, STREAM_QUIET_S) as wait, suppress(StoreError, CoordinatorClosing):
            while not wait.disconnected.done() and not self._desk.notifications.closing and self._is_good(call):
                known = self._desk.service.job(call.job)
                entries = self._store.events(call.job, after, STREAM_PAGE)
                if known is None or (known[1] > after and not entries):
                    break  # another coordinator decides now, or the store was set back
                after = entries[-1].revision if entries else after
                data = b"".join(map(_server_sent, entries)) or b": nothing new\n\n"
                await call.send({"type": "http.response.body", "body": data, "more_body": True})
                if len(entries) < STREAM_PAGE:
                    await self._desk.notifications.wait_for_events(call.job, after, wait)
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _is_good(self, call: Call) -> bool:
        """Whether the token that opened a stream is good still: one that was ended must not go on reading."""
        return call.grant is not None and not self._keyring.has_ended(call.grant.id)

    # -------------------------------------------------------------------------------------------- reading

    async def _health(self, call: Call) -> bytes:
        if not self._desk.service.leads:
            raise _not_deciding()
        return encode_reply(api.Health(True))

    async def _render_metrics(self, call: Call) -> bytes:
        service, metrics = self._desk.service, self._metrics
        jobs = [found[0] for name in service.names() if (found := service.job(name))]
        states = [job.state for job in jobs]
        for state in JobState:
            metrics.jobs.labels(state.value).set(states.count(state))
        metrics.members.set(sum(len(job.members) for job in jobs if not job.state.ended))
        going_on = [job for job in jobs if not job.state.ended]
        doing = Counter(what for job in going_on for what in doings(job, at_work(job)).values())
        for category in Category:
            metrics.workers.labels(category.value).set(doing[category])
        metrics.waiting.set(self._desk.notifications.waiting)
        metrics.leads.set(service.leads)
        return metrics.render()

    async def _about(self, call: Call) -> bytes:
        service, grant = self._desk.service, call.grant
        assert grant is not None  # no route but the public ones gets this far without
        return encode_reply(
            api.About(
                version=__version__,
                protocol=api.PROTOCOL,
                store=self._store.identity,
                leads=service.leads,
                why=service.why,
                lease_ttl_s=self._ttl_s,
                scope=grant.scope,
                job=grant.job,
                now=time.time(),
            )
        )

    async def _openapi(self, call: Call) -> bytes:
        return _described()

    async def _jobs(self, call: Call) -> bytes:
        service = self._desk.service
        if not service.leads:
            raise _not_deciding()
        only = call.grant.job if call.grant else None
        found = [known for name in service.names() if only in (None, name) and (known := service.job(name))]
        silent_s = service.isolated_s(time.monotonic())
        return encode_reply(api.JobList(tuple(job_line(job, revision, silent_s) for job, revision in found)))

    async def _job(self, call: Call) -> bytes:
        known = self._desk.service.job(call.job)
        if known is None:
            raise self._no_job(call.job)
        uses = {use.member: use for said in self._uses.get(call.job, {}).values() for use in said}
        return encode_reply(job_status(*known, uses, self._desk.service.isolated_s(time.monotonic())))

    def _found(self, body: bytes | None, name: str) -> bytes:
        if body is None:
            raise self._no_job(name)
        return body

    def _no_job(self, name: str) -> ApiError:
        if not self._desk.service.leads:
            return _not_deciding()
        return ApiError(404, Code.NO_JOB, f"there is no job {name}; `pliant jobs` lists them")

    # --------------------------------------------------------------------------------------------- tokens

    async def _tokens(self, call: Call) -> bytes:
        return encode_reply(api.TokenList(self._keyring.lines()))

    async def _token(self, call: Call) -> bytes:
        assert isinstance(call.body, api.TokenWish)
        token, shown = self._keyring.create(call.body)
        return encode_reply(api.TokenMade(token.text, shown))

    async def _token_end(self, call: Call) -> bytes:
        assert isinstance(call.body, api.TokenEnd)
        return encode_reply(self._keyring.expire(call.body.id, call.body.after_s))


@cache
def _described() -> bytes:
    return json.dumps(document()).encode()


def _not_deciding() -> ApiError:
    return ApiError(503, "unavailable", "this coordinator does not decide at the moment")


def _require(reply: Reply) -> None:
    """Raise unless the coordinator accepted."""
    match reply.answer:
        case Accepted():
            return
        case Rejection(code, why):
            raise ApiError(STATUS[code], code, why, reply.revision)
        case Unavailable(why):
            raise ApiError(503, "unavailable", why)


@contextmanager
def _waiting(call: Call, seconds: float | None = None) -> Iterator[LongPoll]:
    """A wait that ends when the other side hangs up."""
    gone = asyncio.get_running_loop().create_task(call.wait_disconnected())
    try:
        yield LongPoll(call.query["wait_s"] if seconds is None else seconds, gone)
    finally:
        gone.cancel()


def _last_event_id(call: Call, after: int) -> int:
    text = call.headers.get(b"last-event-id", b"")
    if not text:
        return after
    if not (text.isdigit() and len(text) <= 16):
        raise ApiError(422, Code.BAD, "Last-Event-ID is the revision of the last event that was read")
    return int(text)


def _event_line(entry: Entry) -> bytes:
    return b'{"revision":%d,"event":%b}' % (entry.revision, entry.data)


def _server_sent(entry: Entry) -> bytes:
    kind = entry.data[9 : entry.data.find(b'"', 9)]  # our own encoding: {"type":"...
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (entry.revision, kind, entry.data)
