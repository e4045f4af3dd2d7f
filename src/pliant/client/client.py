"""The coordinator's API, one method for each request."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from pliant.client.transport import PATIENCE_S, Transport, TryAgain, require_names
from pliant.core.allocate import Pool
from pliant.core.allocate.machines import LentMachine
from pliant.core.messages import Command, Create, Event
from pliant.core.model.names import AgentId, MemberId
from pliant.core.submissions import Submission
from pliant.credentials import NO_TLS_FILES, TlsFiles, Token
from pliant.errors import BadInput, PliantError
from pliant.wire import api, routes
from pliant.wire.codec import UNREADABLE, Body, UnknownMessage
from pliant.wire.routes import Route
from pliant.wire.views import ViewUpdate

log = logging.getLogger(__name__)

LINE_MAX = 1 << 24  # bytes of one event in a stream
REVISION_DIGITS = 16
UNKNOWN_MAX = 100  # types of events that are logged as unknown

T = TypeVar("T")


class Client:
    """A client of one coordinator or several. Threads may share it. Close it, or use it as a context manager.

    `endpoints` are base URLs, for instance `http://127.0.0.1:7711`. `store` is the identity of the store, known after
    the first answer. From then on the coordinator refuses requests if it has another store. With a CA in `tls`, only
    https endpoints with a certificate of that CA are accepted. Without `follow_leader` it asks these endpoints alone,
    and not the leader that a standby names.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        token: Token,
        *,
        patience_s: float = PATIENCE_S,
        tls: TlsFiles = NO_TLS_FILES,
        follow_leader: bool = True,
    ) -> None:
        self._transport = Transport(endpoints, token, patience_s, tls, follow_leader=follow_leader)

    @property
    def moved_at(self) -> float:
        """The time when another coordinator was found to lead, or the same one answered again after a silence.

        By the monotonic clock. A watch or stream that was opened before may never end: open another one.
        """
        return self._transport.moved_at

    @property
    def store(self) -> str | None:
        return self._transport.store

    @store.setter
    def store(self, identity: str | None) -> None:
        self._transport.store = identity

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End pauses between retries. Requests of other threads fail."""
        self._transport.close()

    # -------------------------------------------------------------------------------------------- commands

    def send(self, job: str, command: Command, patience_s: float | None = None) -> api.Done:
        """Send a command. It is durable when this returns."""
        route = routes.COMMANDS.get(type(command))
        if route is None:
            raise BadInput(f"{type(command).__name__} is internal to the coordinator; clients cannot send it.")
        path = {} if isinstance(command, Create) else {"job": job}
        return self._call(route, api.Done, path, body=command, patience_s=patience_s)

    def renew(self, job: str, member: MemberId, revision: int, patience_s: float | None = None) -> api.Done:
        """Renew a member's lease. Call it every third of the lease's time; `revision` is that of the newest view."""
        body = api.Renew(member, revision)
        return self._call(routes.RENEW, api.Done, {"job": job}, body=body, patience_s=patience_s)

    def renew_agent(
        self,
        job: str,
        agent: AgentId,
        revision: int,
        uses: tuple[api.WorkerUsage, ...] = (),
        patience_s: float | None = None,
    ) -> api.Done:
        """Renew an agent's lease, and report the resource use of its workers."""
        body = api.RenewAgent(agent, revision, uses)
        return self._call(routes.RENEW_AGENT, api.Done, {"job": job}, body=body, patience_s=patience_s)

    # -------------------------------------------------------------------------------------------- watching

    def watch(
        self, job: str, member: MemberId, after: int, wait_s: float = 25.0, patience_s: float | None = None
    ) -> ViewUpdate:
        """Wait for changes for a member. `pliant.wire.views.applied` turns them into a view."""
        path = {"job": job, "member": member}
        return self._call(routes.WATCH, ViewUpdate, path, {"after": after, "wait_s": wait_s}, patience_s=patience_s)

    def orders(
        self, job: str, agent: AgentId, after: int, wait_s: float = 25.0, patience_s: float | None = None
    ) -> api.Orders:
        """Wait for new orders of an agent."""
        path = {"job": job, "agent": agent}
        return self._call(routes.ORDERS, api.Orders, path, {"after": after, "wait_s": wait_s}, patience_s=patience_s)

    def events(self, job: str, after: int, limit: int = 100) -> tuple[tuple[int, Event], ...]:
        """Return events after a revision, oldest first; empty if there are none yet."""
        while True:
            page = self._call(routes.EVENTS, api.EventPage, {"job": job}, {"after": after, "limit": limit})
            decoded = ((line.revision, decode_event(bytes(line.event))) for line in page.events)
            found = tuple((revision, event) for revision, event in decoded if event is not None)
            if found or not page.events:
                return found
            after = page.events[-1].revision  # all of them are unknown here

    def follow(self, job: str, after: int) -> Generator[tuple[int, Event]]:
        """Yield events after a revision as they happen, without a gap and across lost connections. Never ends."""
        require_names({"job": job})
        attempt, until = 0, time.monotonic() + self._transport.patience_s
        while True:
            began: list[bool] = []
            base, asked_at = self._transport.endpoint(attempt), time.monotonic()
            try:
                with self._transport.stream(base, job, after) as chunks:
                    for revision, event in server_sent_events(_mark_begun(chunks, began)):
                        # The first event of a job has a higher revision if jobs were deleted before.
                        if after and revision != after + 1:
                            raise PliantError(f"the stream of {job} jumped from revision {after} to {revision}")
                        after = revision
                        if event is not None:
                            yield revision, event
                last = TryAgain("the stream ended")
            except TryAgain as error:
                last = error
                self._transport.note_failure(base, error, 0.0, asked_at)
            if began:  # the coordinator answered, so the patience starts again
                attempt, until = 0, time.monotonic() + self._transport.patience_s
            attempt += 1
            self._transport.pause(attempt, until, last)

    # --------------------------------------------------------------------------------------------- reading

    def about(self, patience_s: float | None = None) -> api.About:
        """Describe the coordinator and the rights of this token. From then on, deadlines fit its leases."""
        about = self._call(routes.ABOUT, api.About, {}, patience_s=patience_s)
        self._transport.lease_ttl_s = about.lease_ttl_s
        return about

    def jobs(self) -> tuple[api.JobLine, ...]:
        """List the jobs that this token may read."""
        jobs: list[api.JobLine] = []
        following: dict[str, float | str] = {}
        while True:
            page = self._call(routes.JOBS, api.JobList, {}, query=following)
            jobs += page.jobs
            if not page.next:
                return tuple(jobs)
            following = {"after": page.next}

    def job(self, name: str, patience_s: float | None = None) -> api.JobStatus:
        """Return the status of a job with its members and agents."""
        return self._call(routes.JOB, api.JobStatus, {"job": name}, patience_s=patience_s)

    def delete(self, name: str, ended_before: float | None = None) -> api.Done:
        """Delete an ended job with its history; with `ended_before`, only if it ended before that time."""
        return self._call(routes.DELETE, api.Done, {"job": name}, body=api.JobDeletion(ended_before))

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return self._call(routes.OPENAPI, dict, {})

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._transport.exchange(routes.METRICS, {}, {}, None, None).decode()

    def is_healthy(self) -> bool:
        """Return whether a leading coordinator answers, without a retry."""
        try:
            return self._call(routes.HEALTH, api.Health, {}, patience_s=0.0).ok
        except PliantError:
            return False

    # ------------------------------------------------------------------------------------------------ pool

    def pool(self) -> api.PoolStatus:
        """Return the pool and the jobs that share it."""
        return self._call(routes.POOL, api.PoolStatus, {})

    def set_pool(self, pool: Pool) -> api.PoolStatus:
        """Set the pool that jobs with a queue share."""
        return self._call(routes.POOL_SET, api.PoolStatus, {}, body=pool)

    def report_machine(self, machine: LentMachine) -> api.MachineOrders:
        """Report about a machine that is lent to the pool, and return the job of each of its slots."""
        return self._call(routes.MACHINE, api.MachineOrders, {}, body=machine)

    def report_cluster(self, slots: int) -> api.PoolStatus:
        """Report the slots that the nodes of a Kubernetes cluster lend to the pool."""
        return self._call(routes.CLUSTER, api.PoolStatus, {}, body=api.ClusterReport(slots))

    # ----------------------------------------------------------------------------------------- submissions

    def submit(self, wanted: Submission) -> api.SubmissionLine:
        """Submit a job to the cluster. The same submission again has no effect."""
        return self._call(routes.SUBMIT, api.SubmissionLine, {}, body=wanted)

    def submission(self, task: str) -> api.SubmissionLine:
        """Return what became of a submission."""
        return self._call(routes.SUBMISSION, api.SubmissionLine, {"task": task})

    def stop_submission(self, task: str) -> api.SubmissionLine:
        """Ask the operator to stop the job of a submission and to delete it."""
        return self._call(routes.SUBMISSION_STOP, api.SubmissionLine, {"task": task}, body=api.SubmissionStop())

    def submissions(self) -> tuple[api.OpenSubmission, ...]:
        """List the submissions that are not over."""
        return self._call(routes.SUBMISSIONS, api.SubmissionList, {}).submissions

    def report_submission(self, task: str, body: api.SubmissionReport) -> api.SubmissionLine:
        """Report what became of a submission."""
        return self._call(routes.SUBMISSION_REPORT, api.SubmissionLine, {"task": task}, body=body)

    def report_operator_metrics(self, text: str) -> None:
        """Report the operator's metrics, in Prometheus' text format."""
        self._call(routes.OPERATOR_METRICS, api.Done, {}, body=api.OperatorReport(text), patience_s=0.0)

    # ---------------------------------------------------------------------------------------------- tokens

    def create_token(self, request: api.TokenRequest) -> api.CreatedToken:
        """Create a token. Not retried once the request may have arrived, because each one creates a token."""
        return self._call(routes.TOKEN, api.CreatedToken, {}, body=request, once=True)

    def tokens(self) -> tuple[api.TokenLine, ...]:
        """List all tokens without their secrets."""
        return self._call(routes.TOKENS, api.TokenList, {}).tokens

    def expire_token(self, token_id: str, after_s: float = 0.0) -> api.TokenLine:
        """Expire a token, now or after an overlap."""
        return self._call(routes.TOKEN_END, api.TokenLine, {}, body=api.TokenRevocation(token_id, after_s))

    # ---------------------------------------------------------------------------------------------- inside

    def _call(
        self,
        route: Route,
        reply: type[T],
        path: Mapping[str, str],
        query: Mapping[str, float | str] | None = None,
        body: object = None,
        patience_s: float | None = None,
        *,
        once: bool = False,
    ) -> T:
        content = None if body is None else _body(type(body)).encode(body)
        data = self._transport.exchange(route, path, query or {}, content, patience_s, once=once)
        return decode_reply(data, reply, route.name)


def _mark_begun(chunks: Iterator[bytes], began: list[bool]) -> Iterator[bytes]:
    """Yield the same chunks, and make `began` non-empty at the first."""
    for chunk in chunks:
        began[:] = [True]
        yield chunk


def server_sent_events(chunks: Iterator[bytes]) -> Iterator[tuple[int, Event | None]]:
    """Yield the events in a stream of bytes, with their revisions. An incomplete last line is ignored.

    An event that this version does not know is None.
    """
    revision, rest = 0, b""
    for chunk in chunks:
        # Not `splitlines`, because text may contain other line breaks of Unicode.
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_MAX:
            raise PliantError(f"the coordinator sent a line of more than {LINE_MAX} bytes")
        for line in lines:
            if line.startswith(b"id:"):
                revision = _revision(line[3:].strip())
            elif line.startswith(b"data:"):
                yield revision, decode_event(line[5:].strip())


def _revision(digits: bytes) -> int:
    if not (digits.isdigit() and len(digits) <= REVISION_DIGITS):
        raise PliantError(f"the coordinator sent an event with the id {digits[:40]!r}, which is not a revision")
    return int(digits)


def decode_reply(data: bytes, reply: type[T], request: str) -> T:
    """Decode the answer to a request. Fields that a newer coordinator added are ignored."""
    try:
        return msgspec.json.decode(data, type=reply)
    except UNREADABLE as error:
        raise PliantError(f"the coordinator's answer to {request} cannot be decoded: {error}") from error


def decode_event(data: bytes) -> Event | None:
    """Decode an event of a coordinator. An event that only a newer version knows is None, and is logged once."""
    try:
        return api.EVENTS.decode(data, from_newer=True)
    except UnknownMessage as error:
        if error.why not in _unknown_events and len(_unknown_events) < UNKNOWN_MAX:
            _unknown_events.add(error.why)
            log.warning("An event of a newer coordinator is skipped. Upgrade Pliant here to see it. %.200s", error)
        return None
    except BadInput as error:
        raise PliantError(
            f"this event cannot be decoded; the coordinator may be newer than this client: {error}"
        ) from error


_unknown_events: set[str] = set()
_bodies: dict[type, Body[Any]] = {}


def _body(cls: type) -> Body[Any]:
    if cls not in _bodies:
        _bodies[cls] = Body(cls)
    return _bodies[cls]
