"""What can be asked of a coordinator, one method each."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from pliant.client.transport import PATIENCE_S, Transport, TryAgain, require_names
from pliant.core.messages import Command, Create, Event
from pliant.core.model.names import AgentId, MemberId
from pliant.credentials import Token
from pliant.errors import BadInput, PliantError
from pliant.wire import api, routes
from pliant.wire.codec import Body
from pliant.wire.routes import Route
from pliant.wire.views import ViewUpdate

T = TypeVar("T")


class Client:
    """Make one and share it between threads; close it, or use it as a context manager.

    `endpoints` are base URLs, `http://127.0.0.1:7711` for instance. `store` is the identity of the store that was
    talked to, once there was an answer: from then on another one is refused.
    """

    def __init__(self, endpoints: Sequence[str], token: Token, *, patience_s: float = PATIENCE_S) -> None:
        self._link = Transport(endpoints, token, patience_s)

    @property
    def store(self) -> str | None:
        return self._link.store

    @store.setter
    def store(self, identity: str | None) -> None:
        self._link.store = identity

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends waits between tries; what is under way in other threads fails."""
        self._link.close()

    # -------------------------------------------------------------------------------------------- commands

    def send(self, job: str, command: Command, patience_s: float | None = None) -> api.Done:
        """Have a command decided. When this returns it is durable."""
        route = routes.COMMANDS.get(type(command))
        if route is None:
            raise BadInput(f"{type(command).__name__} is nobody's to say but the coordinator's.")
        path = {} if isinstance(command, Create) else {"job": job}
        return self._call(route, api.Done, path, body=command, patience_s=patience_s)

    def renew(self, job: str, member: MemberId, revision: int, patience_s: float | None = None) -> api.Done:
        """Call every third of the lease's time; `revision` is that of the newest view."""
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
        """The same for an agent; `uses` is what its workers take."""
        body = api.RenewAgent(agent, revision, uses)
        return self._call(routes.RENEW_AGENT, api.Done, {"job": job}, body=body, patience_s=patience_s)

    # -------------------------------------------------------------------------------------------- watching

    def watch(
        self, job: str, member: MemberId, after: int, wait_s: float = 25.0, patience_s: float | None = None
    ) -> ViewUpdate:
        """Wait for what is new for a member; `pliant.wire.views.applied` makes a view of it."""
        path = {"job": job, "member": member}
        return self._call(routes.WATCH, ViewUpdate, path, {"after": after, "wait_s": wait_s}, patience_s=patience_s)

    def orders(
        self, job: str, agent: AgentId, after: int, wait_s: float = 25.0, patience_s: float | None = None
    ) -> api.Orders:
        """Wait for what is new for an agent."""
        path = {"job": job, "agent": agent}
        return self._call(routes.ORDERS, api.Orders, path, {"after": after, "wait_s": wait_s}, patience_s=patience_s)

    def events(self, job: str, after: int, limit: int = 100) -> tuple[tuple[int, Event], ...]:
        """Events after a revision, oldest first; empty if there are none yet."""
        page = self._call(routes.EVENTS, api.EventPage, {"job": job}, {"after": after, "limit": limit})
        return tuple((line.revision, _event(bytes(line.event))) for line in page.events)

    def follow(self, job: str, after: int) -> Generator[tuple[int, Event]]:
        """Events after a revision as they happen, without end, without a gap, across lost connections."""
        require_names({"job": job})
        attempt, until = 0, time.monotonic() + self._link.patience_s
        while True:
            began: list[bool] = []
            try:
                with self._link.stream(self._link.endpoint(attempt), job, after) as chunks:
                    for revision, event in _server_sent(_noting(chunks, began)):
                        if revision != after + 1:
                            raise PliantError(f"the stream of {job} jumped from revision {after} to {revision}")
                        after = revision
                        yield revision, event
                reason = "the stream ended"
            except TryAgain as error:
                reason = str(error)
            if began:  # it was a coordinator's stream until now: the patience starts afresh
                attempt, until = 0, time.monotonic() + self._link.patience_s
            attempt += 1
            self._link.pause(attempt, until, reason)

    # --------------------------------------------------------------------------------------------- reading

    def about(self, patience_s: float | None = None) -> api.About:
        """Who answers."""
        return self._call(routes.ABOUT, api.About, {}, patience_s=patience_s)

    def jobs(self) -> tuple[api.JobLine, ...]:
        """Every job that this token may see."""
        return self._call(routes.JOBS, api.JobList, {}).jobs

    def job(self, name: str) -> api.JobStatus:
        """One job with its members and agents."""
        return self._call(routes.JOB, api.JobStatus, {"job": name})

    def openapi(self) -> dict[str, Any]:
        """The API, described."""
        return self._call(routes.OPENAPI, dict, {})

    def metrics(self) -> str:
        """The coordinator's numbers in Prometheus' text format."""
        return self._link.exchange(routes.METRICS, {}, {}, None, None).decode()

    def healthy(self) -> bool:
        """Whether a coordinator that decides answers, at once."""
        try:
            return self._call(routes.HEALTH, api.Health, {}, patience_s=0.0).ok
        except PliantError:
            return False

    # ---------------------------------------------------------------------------------------------- tokens

    def make_token(self, wish: api.TokenRequest) -> api.CreatedToken:
        """A new token. Once it may have been made it is not asked for again: each time would make one."""
        return self._call(routes.TOKEN, api.CreatedToken, {}, body=wish, once=True)

    def tokens(self) -> tuple[api.TokenLine, ...]:
        """What is known of every token."""
        return self._call(routes.TOKENS, api.TokenList, {}).tokens

    def end_token(self, token_id: str, after_s: float = 0.0) -> api.TokenLine:
        """Let a token end, now or after an overlap."""
        return self._call(routes.TOKEN_END, api.TokenLine, {}, body=api.TokenRevocation(token_id, after_s))

    # ---------------------------------------------------------------------------------------------- inside

    def _call(
        self,
        route: Route,
        reply: type[T],
        path: Mapping[str, str],
        query: Mapping[str, float] | None = None,
        body: object = None,
        patience_s: float | None = None,
        *,
        once: bool = False,
    ) -> T:
        content = None if body is None else _body(type(body)).encode(body)
        data = self._link.exchange(route, path, query or {}, content, patience_s, once=once)
        try:
            return msgspec.json.decode(data, type=reply)  # a newer coordinator may say more than we know of
        except msgspec.MsgspecError as error:
            raise PliantError(f"the coordinator's answer to {route.name} cannot be read: {error}") from error


def _noting(chunks: Iterator[bytes], began: list[bool]) -> Iterator[bytes]:
    """The same chunks; `began` is not empty once there was one."""
    for chunk in chunks:
        began[:] = [True]
        yield chunk


def _server_sent(chunks: Iterator[bytes]) -> Iterator[tuple[int, Event]]:
    """The events in a stream of bytes; of a line that did not come to its end nothing is used."""
    revision, rest = 0, b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")  # and nowhere else: text may hold what Unicode takes for a new line
        for line in lines:
            if line.startswith(b"id:"):
                revision = int(line[3:])
            elif line.startswith(b"data:"):
                yield revision, _event(line[5:].strip())


def _event(data: bytes) -> Event:
    try:
        return api.EVENTS.decode(data)
    except BadInput as error:
        raise PliantError(
            f"this event cannot be read, perhaps the coordinator is newer than we are: {error}"
        ) from error


_bodies: dict[type, Body[Any]] = {}


def _body(cls: type) -> Body[Any]:
    if cls not in _bodies:
        _bodies[cls] = Body(cls)
    return _bodies[cls]
