"""Members as a load: thousands of them in one process, each with a long poll open and a renewal every second.

No client library: what is measured is the coordinator, so asking must cost as little as it can. One connection of
HTTP/1.1 carries one request at a time; an answer is its status and its body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from pliant.core.data.grid import Grid
from pliant.core.data.ledger import GENESIS
from pliant.core.messages import Cancel, Create, Join, Stopped
from pliant.core.model.job import JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.wire.codec import Body

TERMS = Terms(Grid(samples=10_000, batch=2000, slots=2000, epochs=1), seed=1)


class Connection(asyncio.Protocol):
    """One connection. Call `ask` again only after the previous response."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._answered: Callable[[int, bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has the same methods

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._data.find(b"content-length: ", 0, head) + 16
        length = int(self._data[at : self._data.find(b"\r\n", at)])
        if len(self._data) < head + 4 + length:
            return
        status, body = int(self._data[9:12]), self._data[head + 4 : head + 4 + length]
        self._data = b""
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status, body)

    def connection_lost(self, _: Exception | None) -> None:
        if self._answered is not None:
            self._answered(0, b"")

    def ask(self, request: bytes, answered: Callable[[int, bytes], None]) -> None:
        assert self._transport is not None
        self._answered = answered
        self._transport.write(request)


class Refusal(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status}: {body[:300]!r}")
        self.is_too_late = status == 409


@dataclass(slots=True)
class Stats:
    """The counts of all members together."""

    renewals: list[float] = field(default_factory=list)
    errors: int = 0
    told: int = 0


class Crowd:
    """All members. `host`, `port` and `token` are those of the coordinator."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._address = (host, port)
        self._head = f"host: {host}:{port}\r\nauthorization: Bearer {token}\r\n"
        self.stats = Stats()
        self.members: list[Member] = []

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, *self._address)
        return connection

    def post(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\n{self._head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode()

    async def ask(self, connection: Connection, request: bytes) -> bytes:
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        connection.ask(request, lambda status, body: answer.set_result((status, body)))
        status, body = await answer
        if status != 200:
            raise Refusal(status, body)
        return body

    async def create(self, job: str, size: int) -> None:
        connection = await self.connect()
        body = Body(Create).encode(Create(job, JobSpec(size, size, Target(size))))
        await self.ask(connection, self.post("/v1/jobs", body))

    async def join(self, job: str, name: str) -> Member:
        member = Member(self, job, MemberId(name), await self.connect())
        body = Body(Join).encode(Join(member.id, AgentId(name.partition("-")[0]), TERMS))
        await self.ask(member.talk, self.post(f"/v1/jobs/{job}/join", body))
        self.members.append(member)
        return member

    async def stop(self, by: Member, generation: int) -> None:
        """Break a generation, so that a new one forms and all members get a new view."""
        stopped = Stopped(by.id, generation, GENESIS, frozenset(), "the benchmark says so")
        connection = await self.connect()
        await self.ask(connection, self.post(f"/v1/jobs/{by.job}/stopped", Body(Stopped).encode(stopped)))

    async def cancel(self, job: str) -> None:
        connection = await self.connect()
        await self.ask(connection, self.post(f"/v1/jobs/{job}/cancel", Body(Cancel).encode(Cancel("done"))))


class Member:
    """One member: watches without a pause and renews every second."""

    def __init__(self, crowd: Crowd, job: str, name: MemberId, talk: Connection) -> None:
        self.crowd = crowd
        self.job = job
        self.id = name
        self.talk = talk
        self.listen: Connection | None = None
        self.revision = 0
        self.generation = 0
        self.told_at = 0.0
        self.waits: asyncio.Future[None] | None = None
        self._asked_at = 0.0
        self._up = True

    async def start_watching(self) -> None:
        self.listen = await self.crowd.connect()
        self._watch()

    def _watch(self) -> None:
        assert self.listen is not None
        path = f"/v1/jobs/{self.job}/members/{self.id}/watch?after={self.revision}&wait_s=60"
        self.listen.ask(self.crowd.get(path), self._told)

    def _told(self, status: int, body: bytes) -> None:
        self.told_at = time.perf_counter()
        if status != 200:
            self.crowd.stats.errors += self._up
            return
        self.crowd.stats.told += 1
        # Our own encoding: {"revision":9,"known":true,"draining":false,"grace_s":0.0,"generation":1,...
        self.revision = int(body[12 : body.find(b",", 12)])
        at = body.find(b'"generation":') + 13
        self.generation = int(body[at : body.find(b",", at)])
        if self._up:
            self._watch()
        if self.waits is not None and not self.waits.done():
            self.waits.set_result(None)

    def start_renewing(self, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._renew)

    def _renew(self) -> None:
        if not self._up:
            return
        asyncio.get_running_loop().call_later(1.0, self._renew)
        self._asked_at = time.perf_counter()
        # Built by hand: it is sent thousands of times a second, and its encoding is not to be measured.
        body = b'{"member":"%b","revision":%d}' % (self.id.encode(), self.revision)
        self.talk.ask(self.crowd.post(f"/v1/jobs/{self.job}/renew", body), self._renewed)

    def _renewed(self, status: int, _: bytes) -> None:
        if status == 200:
            self.crowd.stats.renewals.append(time.perf_counter() - self._asked_at)
        else:
            self.crowd.stats.errors += self._up

    def leave(self) -> None:
        self._up = False
