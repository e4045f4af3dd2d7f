"""The coordinator's service on an asyncio event loop.

The pump runs on the loop itself, including the store's write. While a write waits for the disk, requests gather in the
sockets, and the next pump decides all of them with one write. This is the group commit, and it needs neither a thread
nor a queue. Its cost is that no request is answered during a write. A write takes milliseconds on a healthy disk, and a
renewal has seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pliant.coordinator.generation_keys import GenerationKeys
from pliant.coordinator.notifications import Notifications
from pliant.coordinator.service.inbox import Answer, Pumped, RenewalReply, Reply, Sender, Unavailable
from pliant.coordinator.service.pump import Service
from pliant.core.messages import Command, StepsCommitted
from pliant.core.messages.describe import describe
from pliant.errors import StoreUnavailable

TICK_S = 0.1  # between two pumps without a request

_RENEWALS = {"member": "Renew", "agent": "RenewAgent"}  # the names of renewals in metrics

log = logging.getLogger(__name__)


class AsyncService:
    """A service with its event loop and its watchers. `start` begins to pump.

    `on_pump` is called with every pump and its seconds, `on_answer` with the name of every command and its answer.
    """

    def __init__(
        self,
        service: Service,
        keys: GenerationKeys,
        on_pump: Callable[[Pumped, float], None],
        on_answer: Callable[[str, Answer], None],
    ) -> None:
        self.service = service
        self.notifications = Notifications(service.job, keys.key)
        self._on_pump = on_pump
        self._on_answer = on_answer
        self._waiting: set[asyncio.Future[Reply] | asyncio.Future[RenewalReply]] = set()
        self._next_pump: asyncio.Handle | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._led: bool | None = None  # at the last pump
        self._closed = False

    async def execute(self, job: str, command: Command) -> Reply:
        """Have a command decided, and return the answer when it is durable."""
        if self._closed:
            return Reply(None, job, command, Unavailable("the coordinator is shutting down; ask again"))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Reply] = loop.create_future()
        if not self.service.submit(job, command, answer):
            return Reply(None, job, command, Unavailable("too many requests are waiting; ask again"))
        self._pump_soon(loop)
        self._waiting.add(answer)
        try:
            return await answer
        finally:
            self._waiting.discard(answer)

    async def renew(self, job: str, sender: Sender, revision: int) -> RenewalReply:
        """Renew a lease. `revision` is the newest that the sender has."""
        if self._closed:
            return RenewalReply(None, job, sender, Unavailable("the coordinator is shutting down; ask again"))
        reply = self.service.renew(job, sender, revision, time.monotonic())
        if reply is not None:
            self._on_answer(_RENEWALS[sender.kind], reply.answer)
            return reply
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RenewalReply] = loop.create_future()
        if not self.service.postpone(job, sender, revision, answer):
            return RenewalReply(None, job, sender, Unavailable("too many requests are waiting; ask again"))
        self._pump_soon(loop)
        self._waiting.add(answer)
        try:
            return await answer
        finally:
            self._waiting.discard(answer)

    def suspect(self, job: str, sender: Sender) -> None:
        """Note that the sender closed its watch."""
        if not self._closed:
            self.service.suspect(job, sender, time.monotonic())

    def record_hangup(self, job: str, sender: Sender) -> None:
        """Note that the sender closed its connection, also while no watch was open on it."""
        if not self._closed:
            self.service.record_hangup(job, sender, time.monotonic())

    def start(self) -> None:
        """Pump for the first time, so that the jobs are loaded before the first request. Call it on the loop."""
        self._pump()
        self._ticker = asyncio.get_running_loop().create_task(self._tick())

    def close(self) -> None:
        """Release all watchers, decide what was submitted, and release the hold. A later pump would take it again."""
        self._closed = True
        self.notifications.close()
        if self._next_pump is not None:
            self._next_pump.cancel()
        if self._ticker is not None:
            self._ticker.cancel()
        self._pump()
        self.service.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if self._next_pump is None:
                self._pump()

    def _pump_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._next_pump is None:
            self._next_pump = loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._next_pump = None
        start = time.perf_counter()
        led = self.service.leads
        try:
            pumped = self.service.pump(time.monotonic())
        except Exception:  # why: a bug in one decision must neither leave requests waiting nor stop the clock
            log.exception("a pump failed: this is a bug in Pliant")
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(StoreUnavailable("a decision failed, this is a bug in Pliant; see its log"))
            return
        for reply in pumped.replies:
            self._on_answer(type(reply.command).__name__, reply.answer)
            _resolve(reply)
        for renewed in pumped.renewed:
            self._on_answer(_RENEWALS[renewed.sender.kind], renewed.answer)
            _resolve(renewed)
        if led and not self.service.leads:
            self.notifications.release_all()
        if pumped.took_over:
            self.notifications.notify_all()
        self.notifications.notify(pumped.changed, pumped.moved)
        self._log(pumped)
        self._on_pump(pumped, time.perf_counter() - start)

    def _log(self, pumped: Pumped) -> None:
        led, self._led = self._led, self.service.leads
        if led is False and self._led:
            log.info("this coordinator leads now")
        elif led and not self._led:
            log.warning("this coordinator does not lead any more: %s", self.service.why)
        for bug in pumped.bugs:
            log.error("%s", bug)
        for job, events in pumped.decided:
            for event in events:
                level = logging.DEBUG if isinstance(event, StepsCommitted) else logging.INFO
                log.log(level, "%s: %s", job, describe(event))


def _resolve(reply: Reply | RenewalReply) -> None:
    if isinstance(reply.ticket, asyncio.Future) and not reply.ticket.done():
        reply.ticket.set_result(reply)
