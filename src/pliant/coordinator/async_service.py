"""The service on an event loop: requests come in, pumps run, answers and news go out.

The pump runs on the loop itself, the store's write included. While a write waits for the disk, requests gather in the
sockets, and the next pump decides all of them with one write: that is the group commit, and it needs no thread and
no queue of ours. What it costs is that nobody is answered during a write, which is milliseconds on a healthy disk;
a renewal has seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pliant.coordinator.generation_keys import GenerationKeys
from pliant.coordinator.notifications import Notifications
from pliant.coordinator.service.inbox import AgentWatchClosed, Pumped, Reply, Request, Unavailable, WatchClosed
from pliant.coordinator.service.pump import Service
from pliant.core.messages import StepsCommitted
from pliant.core.messages.describe import describe
from pliant.errors import StoreUnavailable
from pliant.wire.api import Renew, RenewAgent

TICK_S = 0.1  # how often time gets its turn when nobody asks for anything

log = logging.getLogger(__name__)


class AsyncService:
    """Give it a service and the keys of its generations; `start` runs it.

    For whoever counts, `seen` is called with every pump and its seconds, and `answered` with every answer.
    """

    def __init__(
        self,
        service: Service,
        peers: GenerationKeys,
        seen: Callable[[Pumped, float], None],
        answered: Callable[[Reply], None],
    ) -> None:
        self.service = service
        self.notifications = Notifications(service.job, peers.key)
        self._seen = seen
        self._answered = answered
        self._open: set[asyncio.Future[Reply]] = set()  # who waits for a decision
        self._due: asyncio.Handle | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._led: bool | None = None  # at the last pump
        self._closed = False

    async def execute(self, job: str, request: Request) -> Reply:
        """Have something decided. The answer comes when it is durable."""
        if self._closed:
            return Reply(None, job, request, Unavailable("the coordinator is going down; ask again"))
        if isinstance(request, Renew | RenewAgent):
            heard = self.service.renew(job, request, time.monotonic())
            if heard is not None:
                self._answered(heard)
                return heard
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        if not self.service.submit(job, request, answer):
            return Reply(None, job, request, Unavailable("too much is being asked at once; ask again"))
        self._soon(loop)
        self._open.add(answer)
        try:
            return await answer
        finally:
            self._open.discard(answer)

    def watch_closed(self, job: str, closed: WatchClosed | AgentWatchClosed) -> None:
        """A watch was closed from the other side."""
        if not self._closed:
            self.service.suspect(job, closed, time.monotonic())

    def record_hangup(self, job: str, closed: WatchClosed | AgentWatchClosed) -> None:
        """The same of the connection itself, also while no watch is open on it."""
        if not self._closed:
            self.service.record_hangup(job, closed, time.monotonic())

    def start(self) -> None:
        """Call on the loop. The first pump is made here, so that a coordinator that serves knows its jobs."""
        self._pump()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def close(self) -> None:
        """Let everybody go, decide what was asked until now, and hand over: a later pump would take it back."""
        self._closed = True
        self.notifications.close()
        if self._due is not None:
            self._due.cancel()
        if self._ticker is not None:
            self._ticker.cancel()
        self._pump()
        self.service.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._due is None:
                self._pump()

    def _soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._due is None:
            self._due = loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._due = None
        start = time.perf_counter()
        led = self.service.leads
        try:
            pumped = self.service.pump(time.monotonic())
        except Exception:  # why: a bug in one decision must not leave everybody waiting, nor stop the clock
            log.exception("a pump failed: this is a bug in Pliant")
            for answer in self._open:
                if not answer.done():
                    answer.set_exception(StoreUnavailable("a decision failed, this is a bug in Pliant; see its log"))
            return
        for reply in pumped.replies:
            self._answered(reply)
            if isinstance(reply.ticket, asyncio.Future) and not reply.ticket.done():
                reply.ticket.set_result(reply)
        if led and not self.service.leads:
            self.notifications.release_all()
        if pumped.took_over:
            self.notifications.notify_all()
        self.notifications.notify(pumped.changed, pumped.moved)
        self._say(pumped)
        self._seen(pumped, time.perf_counter() - start)

    def _say(self, pumped: Pumped) -> None:
        led, self._led = self._led, self.service.leads
        if led is False and self._led:
            log.info("this coordinator decides now")
        elif led and not self._led:
            log.warning("this coordinator does not decide any more: %s", self.service.why)
        for bug in pumped.bugs:
            log.error("%s", bug)
        for job, events in pumped.decided:
            for event in events:
                level = logging.DEBUG if isinstance(event, StepsCommitted) else logging.INFO
                log.log(level, "%s: %s", job, describe(event))
