"""The handler of each route."""

from __future__ import annotations

import asyncio
import json
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial

from pliant import __version__
from pliant.coordinator.api.app import STATUS, ApiError, Call, ClientConnection, Handler
from pliant.coordinator.api.auth import TokenRegistry
from pliant.coordinator.api.ended_jobs import EndedJobs
from pliant.coordinator.api.job_status import job_line, job_status
from pliant.coordinator.api.pool import PoolHandlers
from pliant.coordinator.api.submissions import SubmissionHandlers
from pliant.coordinator.async_service import AsyncService
from pliant.coordinator.history import JobHistory
from pliant.coordinator.housekeeping import Housekeeper
from pliant.coordinator.notifications import ClientDisconnected, CoordinatorClosing, LongPoll
from pliant.coordinator.pool_registry import PoolRegistry
from pliant.coordinator.service.inbox import (
    Accepted,
    DeletionReply,
    Pumped,
    RenewalReply,
    Reply,
    Sender,
    Unavailable,
    describe_set_back,
    truncate_texts,
)
from pliant.coordinator.store_thread import StoreThread
from pliant.coordinator.submission_registry import SubmissionRegistry
from pliant.core.accounting.activity import Category, categories_of, running_workers
from pliant.core.messages import AgentJoin, Code, Command, Create, Join, Rejection
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import AgentId, MemberId, bad_name
from pliant.core.ps.messages import JoinServers
from pliant.core.tasks.messages import JoinTasks
from pliant.errors import StoreError
from pliant.stores.base import Entry, Store
from pliant.telemetry import CoordinatorMetrics, JobSample
from pliant.wire import api
from pliant.wire.codec import encode_reply
from pliant.wire.openapi import document
from pliant.wire.routes import COMMANDS, PAGE_MAX, RENEW, RENEW_AGENT

STREAM_PAGE = 200  # events
PAGE_BYTES = 1 << 18
READ_AT_ONCE = 128  # events; one may have a megabyte
STREAMS_MAX = 32  # open event streams of one token
NOT_LEADING = "this coordinator does not decide at the moment"
ENDED_SHOWN_S = 3600.0  # how long the metrics have a job after its end
JOBS_SHOWN_MAX = 500
USES_MAX = 1024  # workers of one agent
OPERATOR_SHOWN_S = 60.0
OPERATOR_TEXT_MAX = 1 << 16
_OPERATOR_LINE = re.compile(r"(# (HELP|TYPE) )?pliant_operator_[ -~]*")
STREAM_QUIET_S = 15.0  # then a comment is sent, so that both sides notice a dead connection


class Handlers:
    """A handler for every route.

    A handler never calls the store itself: decisions go through the service, and the rest through the thread `reads`.
    """

    def __init__(
        self,
        service: AsyncService,
        store: Store,
        reads: StoreThread,
        history: JobHistory,
        housekeeper: Housekeeper,
        tokens: TokenRegistry,
        pools: PoolRegistry,
        submissions: SubmissionRegistry,
        metrics: CoordinatorMetrics,
        lease_ttl_s: float,
    ) -> None:
        self._service = service
        self._store = store
        self._reads = reads
        self._history = history
        self._housekeeper = housekeeper
        self._registry = tokens
        self._metrics = metrics
        self._lease_ttl_s = lease_ttl_s
        self._watches: dict[tuple[str, Sender], Call] = {}  # open watches, by job and sender
        self._connections: dict[tuple[str, Sender], ClientConnection] = {}  # on which a sender last joined or watched
        self._ended = EndedJobs(service.service, store, reads)
        housekeeper.on_ended = self._ended.remember
        self._submissions = SubmissionHandlers(submissions, reads, self._require_leadership)
        self._pool_handlers = PoolHandlers(service.service, pools, reads, self._require_leadership)
        self._operator_text = (b"", -OPERATOR_SHOWN_S)  # the operator's metrics, and when they came
        self._streams: Counter[str] = Counter()  # open event streams, by token
        self._uses: dict[str, dict[AgentId, tuple[api.WorkerUsage, ...]]] = {}  # by job, as last reported by each agent

    def note_pump(self, pumped: Pumped) -> None:
        """Note the results of a pump. Call it after every one."""
        self._ended.note_pump(pumped, self._service.service.leads)

    def by_name(self) -> dict[str, Handler]:
        """Return the handlers by route name, for `pliant.coordinator.api.app.application`."""
        return {route.name: self._command for route in COMMANDS.values()} | {
            "create": self._create,
            "delete": self._delete,
            RENEW.name: self._renew,
            RENEW_AGENT.name: self._renew_agent,
            "health": self._health,
            "ready": self._ready,
            "metrics": self._render_metrics,
            "about": self._about,
            "openapi": self._openapi,
            "jobs": self._jobs,
            "job": self._job,
            "events": self._events,
            "watch": self._watch,
            "orders": self._orders,
            **self._pool_handlers.by_name(),
            **self._submissions.by_name(),
            "operator-metrics": self._note_operator,
            "tokens": self._tokens,
            "token": self._token,
            "token-end": self._token_end,
        }

    # ------------------------------------------------------------------------------------------- commands

    async def _create(self, call: Call) -> bytes:
        assert isinstance(call.body, Create)
        if wrong := bad_name(call.body.name):
            raise ApiError(422, Code.BAD, wrong)
        return await self._execute(call.body.name, call.body)

    async def _delete(self, call: Call) -> bytes:
        assert isinstance(call.body, api.JobDeletion)
        reply = await self._housekeeper.delete(call.job, call.body.ended_before)
        self._uses.pop(call.job, None)
        return _encode_done(reply)

    async def _command(self, call: Call) -> bytes:
        command: Command = truncate_texts(call.body)  # type: ignore[arg-type]  # these routes have commands as bodies
        answer = await self._execute(call.job, command)
        if isinstance(command, Join | JoinTasks | JoinServers):
            self._track_connection(call, Sender("member", command.member))
        elif isinstance(command, AgentJoin):
            self._track_connection(call, Sender("agent", command.agent))
        return answer

    async def _execute(self, job: str, command: Command) -> bytes:
        return _encode_done(await self._service.execute(job, command))

    # ------------------------------------------------------------------------------------------- renewals

    async def _renew(self, call: Call) -> bytes:
        assert isinstance(call.body, api.Renew)
        renewal = call.body
        self._require_plausible(call, renewal.revision)
        sender = Sender("member", renewal.member)
        return _encode_done(await self._service.renew(call.job, sender, renewal.revision))

    async def _renew_agent(self, call: Call) -> bytes:
        assert isinstance(call.body, api.RenewAgent)
        renewal = call.body
        self._require_plausible(call, renewal.revision)
        sender = Sender("agent", renewal.agent)
        answer = _encode_done(await self._service.renew(call.job, sender, renewal.revision))
        found = self._service.service.job(call.job)
        if found is not None and found[0].spec.queue:
            workers = (use.member for use in renewal.usage)
            self._service.service.scheduler.note_workers(call.job, renewal.agent, workers, time.monotonic())
        if renewal.usage:
            self._note_uses(call.job, renewal)
        return answer

    def _note_uses(self, name: str, renewal: api.RenewAgent) -> None:
        """Remember the resource use of an agent's workers, as long as the agent belongs to the job."""
        found = self._service.service.job(name)
        agents = {agent.id for agent in found[0].agents} if found else set()
        uses = {**self._uses.get(name, {}), renewal.agent: renewal.usage[:USES_MAX]}
        self._uses[name] = {agent: each for agent, each in uses.items() if agent in agents}

    # ------------------------------------------------------------------------------------------- watching

    async def _watch(self, call: Call) -> bytes:
        job, member, after = call.job, MemberId(call.path["member"]), int(call.query["after"])
        self._require_plausible(call, after)
        sender = Sender("member", member)
        with self._suspecting(call, sender):
            # A watch is a sign of life, and clears the suspicion of an earlier watch that was closed.
            _require_accepted(await self._service.renew(job, sender, after))
            self._track_connection(call, sender)
            await self._require_found(job)
            with _long_poll(call) as poll:
                return self._require_job(await self._service.notifications.watch(job, member, after, poll), job)

    async def _orders(self, call: Call) -> bytes:
        job, agent, after = call.job, AgentId(call.path["agent"]), int(call.query["after"])
        self._require_plausible(call, after)
        sender = Sender("agent", agent)
        with self._suspecting(call, sender):
            _require_accepted(await self._service.renew(job, sender, after))
            self._track_connection(call, sender)
            await self._require_found(job)
            with _long_poll(call) as poll:
                return self._require_job(await self._service.notifications.orders(job, agent, after, poll), job)

    @contextmanager
    def _suspecting(self, call: Call, sender: Sender) -> Iterator[None]:
        """Suspect the sender if it closes this watch and has not opened another one already."""
        key = (call.job, sender)
        self._watches[key] = call
        try:
            yield
        except ClientDisconnected:
            if self._watches.get(key) is call:
                self._service.suspect(call.job, sender)
            raise
        finally:
            if self._watches.get(key) is call:
                del self._watches[key]

    def _track_connection(self, call: Call, sender: Sender) -> None:
        """Note the end of a connection also while no watch is open on it: between two, or before the first.

        A process that dies at such a moment closes its connection too. That must not be taken for silence (ADR 0019).
        """
        key, connection = (call.job, sender), call.connection
        if connection is None or self._connections.get(key) is connection:
            return

        def on_close(by_client: bool) -> None:
            if self._connections.get(key) is not connection:
                return
            del self._connections[key]
            watch = self._watches.get(key)
            if by_client and (watch is None or watch.connection is connection):
                self._service.record_hangup(call.job, sender)

        self._connections[key] = connection
        connection.on_close(key, on_close)

    def _require_plausible(self, call: Call, revision: int) -> None:
        """Refuse a revision that does not exist yet, if the request does not name the store that it is of.

        With the store's identity, such a revision proves that the store was set back, and stops the job (ADR 0009). A
        mistyped number must not do that.
        """
        known = self._service.service.job(call.job)
        if known is not None and revision > known[1] and api.STORE_HEADER.encode() not in call.headers:
            why = describe_set_back(call.job, revision, known[1])
            raise ApiError(STATUS[Code.SET_BACK], Code.SET_BACK, why, known[1])

    async def _events(self, call: Call) -> bytes | None:
        after = int(call.query["after"])
        accept = call.headers.get(b"accept", b"")
        await self._require_found(call.job)
        if call.route.streams.encode() in accept:
            await self._stream(call, _last_event_id(call, after))
            return None
        entries, _ = await self._read_events(call.job, after, int(call.query["limit"]))
        return b'{"events":[' + b",".join(map(_event_line, entries)) + b"]}"

    async def _stream(self, call: Call, after: int) -> None:
        """Send server-sent events: read the new ones, send them, wait, repeat.

        If that cannot go on, the stream ends. The client reconnects with the last id and gets the reason. A client that
        does not read holds one page in memory, so the pages and the number of streams are limited.
        """
        assert call.grant is not None
        token = call.grant.id
        if self._streams[token] >= STREAMS_MAX:
            raise ApiError(503, "busy", f"token {token} has {STREAMS_MAX} event streams open, the maximum; close some")
        self._streams[token] += 1
        try:
            await self._send_events(call, after)
        finally:
            self._streams[token] -= 1
            self._streams += Counter()  # removes zeros

    async def _send_events(self, call: Call, after: int) -> None:
        await self._read_events(call.job, after, 1)  # an unreadable store is reported before the response starts
        headers = [(b"content-type", call.route.streams.encode() + b"; charset=utf-8")]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        with _long_poll(call, STREAM_QUIET_S) as poll, suppress(StoreError, CoordinatorClosing):
            while not poll.disconnected.done() and not self._service.notifications.closing and self._is_valid(call):
                if await self._service.find(call.job) is not None or (known := self._known(call.job)) is None:
                    break  # another coordinator leads now
                entries, is_last = await self._read_events(call.job, after, STREAM_PAGE)
                if known[1] > after and not entries:
                    break  # the store was set back
                after = entries[-1].revision if entries else after
                data = b"".join(map(_server_sent, entries)) or b": nothing new\n\n"
                await call.send({"type": "http.response.body", "body": data, "more_body": True})
                if is_last:
                    await self._service.notifications.wait_for_events(call.job, after, poll)
        await call.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_events(self, job: str, after: int, limit: int) -> tuple[list[Entry], bool]:
        return await self._reads.call(partial(read_page, self._history, job, after, limit, PAGE_BYTES))

    def _is_valid(self, call: Call) -> bool:
        """Return whether the token that opened a stream is still valid, so that an expired one stops reading."""
        return call.grant is not None and not self._registry.has_expired(call.grant.id)

    # -------------------------------------------------------------------------------------------- reading

    async def _health(self, call: Call) -> bytes:
        service = self._service.service
        if not service.is_sure(time.monotonic()):
            # Without names, because this route needs no token.
            why = "another one leads" if service.is_standby else "its store does not answer, or it has just started"
            raise ApiError(503, "unavailable", f"{NOT_LEADING}: {why}")
        return encode_reply(api.Health(True))

    async def _ready(self, call: Call) -> bytes:
        if self._service.service.is_standby:
            return encode_reply(api.Health(True))
        return await self._health(call)

    async def _render_metrics(self, call: Call) -> bytes:
        service, metrics = self._service.service, self._metrics
        jobs = [found[0] for name in service.names() if (found := service.job(name))]
        states = [job.state for job in jobs]
        for state in JobState:
            metrics.jobs.labels(state.value).set(states.count(state))
        metrics.members.set(sum(len(job.members) for job in jobs if not job.state.ended))
        going_on = [job for job in jobs if not job.state.ended]
        doing = Counter(what for job in going_on for what in categories_of(job, running_workers(job)).values())
        for category in Category:
            metrics.workers.labels(category.value).set(doing[category])
        metrics.sample_jobs(_job_samples(jobs, time.time()))
        metrics.waiting.set(self._service.notifications.waiting)
        metrics.leads.set(service.leads)
        text, at = self._operator_text
        return metrics.render() + (text if time.monotonic() - at < OPERATOR_SHOWN_S else b"")

    async def _note_operator(self, call: Call) -> bytes:
        self._require_leadership()
        assert isinstance(call.body, api.OperatorReport)
        text = call.body.text
        if len(text) > OPERATOR_TEXT_MAX or not all(map(_OPERATOR_LINE.fullmatch, text.splitlines())):
            raise ApiError(422, Code.BAD, "text must have metrics whose names begin with pliant_operator_")
        self._operator_text = (text.encode(), time.monotonic())
        return encode_reply(api.Done(0))

    async def _about(self, call: Call) -> bytes:
        service, grant = self._service.service, call.grant
        assert grant is not None  # only public routes are called without one
        return encode_reply(
            api.About(
                version=__version__,
                protocol=api.PROTOCOL,
                store=self._store.identity,
                leads=service.leads,
                why=service.why,
                lease_ttl_s=self._lease_ttl_s,
                scope=grant.scope,
                job=grant.job,
                now=time.time(),
                leader=service.leader_url,
            )
        )

    async def _openapi(self, call: Call) -> bytes:
        return _openapi_document()

    async def _jobs(self, call: Call) -> bytes:
        service = self._service.service
        if not service.leads:
            raise _not_leading(service.why)
        only = call.grant.job if call.grant else None
        if only is not None and (refusal := await self._service.find(only)) is not None:
            raise ApiError(503, "unavailable", refusal.why)
        others = [] if only is not None else await self._ended.names()
        names = sorted({*service.names(), *others} if only is None else {only})
        first = bisect_right(names, str(call.query["after"]))
        page = names[first : first + PAGE_MAX]
        ended = await self._ended.lines([name for name in page if service.job(name) is None])
        found = [known for name in page if (known := service.job(name))]
        silent_s = service.isolated_s(time.monotonic())
        lines = {line.name: line for line in (*ended, *(job_line(*known, silent_s) for known in found))}
        following = page[-1] if first + PAGE_MAX < len(names) else ""
        return encode_reply(api.JobList(tuple(lines[name] for name in page if name in lines), following))

    async def _job(self, call: Call) -> bytes:
        known = await self._require_found(call.job)
        uses = {use.member: use for of_agent in self._uses.get(call.job, {}).values() for use in of_agent}
        return encode_reply(job_status(*known, time.time(), uses, self._service.service.isolated_s(time.monotonic())))

    def _known(self, name: str) -> tuple[Job, int] | None:
        return self._service.service.job(name)

    async def _require_found(self, name: str) -> tuple[Job, int]:
        """Return a job, loaded from the store if it ended long ago."""
        refusal = await self._service.find(name)
        if refusal is not None:
            raise ApiError(503, "unavailable", refusal.why)
        known = self._known(name)
        if known is None:
            raise self._no_job(name)
        return known

    def _require_job(self, body: bytes | None, name: str) -> bytes:
        if body is None:
            raise self._no_job(name)
        return body

    def _no_job(self, name: str) -> ApiError:
        if not self._service.service.leads:
            return _not_leading(self._service.service.why)
        return ApiError(404, Code.NO_JOB, f"there is no job {name}; `pliant jobs` lists them")

    # --------------------------------------------------------------------------------------------- tokens

    def _require_leadership(self) -> None:
        if not self._service.service.leads:
            raise _not_leading(self._service.service.why)

    async def _tokens(self, call: Call) -> bytes:
        return encode_reply(api.TokenList(self._registry.lines()))

    async def _token(self, call: Call) -> bytes:
        assert isinstance(call.body, api.TokenRequest)
        token, shown = await self._reads.call(partial(self._registry.create, call.body))
        return encode_reply(api.CreatedToken(token.text, shown))

    async def _token_end(self, call: Call) -> bytes:
        assert isinstance(call.body, api.TokenRevocation)
        ended = await self._reads.call(partial(self._registry.expire, call.body.id, call.body.after_s))
        return encode_reply(ended)


def _job_samples(jobs: Iterable[Job], now: float) -> list[JobSample]:
    """Return the values of the jobs that go on or ended recently, newest first. A store may have thousands."""
    shown = [job for job in jobs if not job.state.ended or now - job.state_since < ENDED_SHOWN_S]
    shown.sort(key=lambda job: (job.state.ended, -job.state_since))
    return [_job_sample(job, now) for job in shown[:JOBS_SHOWN_MAX]]


def _job_sample(job: Job, now: float) -> JobSample:
    line = job_line(job, 0)
    return JobSample(
        job=line.name,
        state=line.state.value,
        step=line.step,
        total_steps=line.total_steps,
        checkpoint_step=job.checkpoint.lineage.step if job.checkpoint else None,
        size=line.size,
        target=line.target,
        waiting_s=max(0.0, now - line.since) if line.state is JobState.WAITING and line.since else 0.0,
    )


@cache
def _openapi_document() -> bytes:
    return json.dumps(document()).encode()


def _not_leading(why: str) -> ApiError:
    return ApiError(503, "unavailable", f"{NOT_LEADING}: {why}")


def _encode_done(reply: Reply | RenewalReply | DeletionReply) -> bytes:
    _require_accepted(reply)
    answer = reply.answer
    durable, shards = (answer.durable, answer.shards) if isinstance(answer, Accepted) else (None, None)
    return encode_reply(api.Done(reply.revision, durable, shards))


def _require_accepted(reply: Reply | RenewalReply | DeletionReply) -> None:
    match reply.answer:
        case Accepted():
            return
        case Rejection(code, why):
            raise ApiError(STATUS[code], code, why, reply.revision)
        case Unavailable(why):
            raise ApiError(503, "unavailable", why)


@contextmanager
def _long_poll(call: Call, seconds: float | None = None) -> Iterator[LongPoll]:
    disconnected = asyncio.get_running_loop().create_task(call.wait_disconnected())
    try:
        yield LongPoll(float(call.query["wait_s"]) if seconds is None else seconds, disconnected)
    finally:
        disconnected.cancel()


def _last_event_id(call: Call, after: int) -> int:
    text = call.headers.get(b"last-event-id", b"")
    if not text:
        return after
    if not (text.isdigit() and len(text) <= 16):
        raise ApiError(422, Code.BAD, "Last-Event-ID must be the revision of the last event read")
    return int(text)


def read_page(history: JobHistory | Store, job: str, after: int, limit: int, nbytes: int) -> tuple[list[Entry], bool]:
    """Return the next events: up to `limit`, with up to `nbytes` together, but at least one if there is any.

    Also return whether these are the last ones. Few are read at a time, so that large events never fill the memory.
    """
    page: list[Entry] = []
    while len(page) < limit:
        asked = min(READ_AT_ONCE, limit - len(page))
        found = history.events(job, after, asked)
        for entry in found:
            nbytes -= len(entry.data)
            if nbytes < 0 and page:
                return page, False
            page.append(entry)
            after = entry.revision
        if len(found) < asked:
            return page, True
    return page, False


def _event_line(entry: Entry) -> bytes:
    return b'{"revision":%d,"event":%b}' % (entry.revision, entry.data)


def _server_sent(entry: Entry) -> bytes:
    kind = entry.data[9 : entry.data.find(b'"', 9)]  # of Pliant's own encoding: {"type":"...
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (entry.revision, kind, entry.data)
