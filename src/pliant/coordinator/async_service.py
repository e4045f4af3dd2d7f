"""The coordinator's service on an asyncio event loop.

Decisions and answers run on the loop, and the store's calls in one thread (`store_thread`, ADR 0023). While a write
waits for the store, the loop answers renewals, watches and health checks, and commands gather in the inbox. The next
pump decides all of them with one write: this is the group commit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from pliant.coordinator.generation_keys import GenerationKeys
from pliant.coordinator.notifications import Notifications
from pliant.coordinator.service.inbox import (
    Answer,
    DeletionReply,
    LookupReply,
    Pumped,
    RenewalReply,
    Reply,
    Sender,
    Unavailable,
)
from pliant.coordinator.service.pump import Service
from pliant.coordinator.store_thread import StoreThread
from pliant.core.messages import Command, StepsCommitted
from pliant.core.messages.describe import describe
from pliant.errors import StoreError, StoreUnavailable

TICK_S = 0.1  # between two pumps without a request

_RENEWALS = {"member": "Renew", "agent": "RenewAgent"}  # the names of renewals in metrics

log = logging.getLogger(__name__)

T = TypeVar("T")


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
        self._thread = StoreThread("pliant-pump")
        self._waiting: set[asyncio.Future[Any]] = set()  # for a pump
        self._wanted = asyncio.Event()  # a pump
        self._pumping: asyncio.Task[None] | None = None
        self._refusing: asyncio.Task[None] | None = None
        self._led: bool | None = None  # at the end of the last pump
        self._closed = False

    async def execute(self, job: str, command: Command) -> Reply:
        """Have a command decided, and return the answer when it is durable."""
        refusal = self._refusal()
        if refusal is not None:
            self._on_answer(type(command).__name__, refusal)
            return Reply(None, job, command, refusal)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if not self.service.submit(job, command, answer):
            return Reply(None, job, command, Unavailable("too many requests are waiting; ask again"))
        return await self._pumped(answer)

    async def renew(self, job: str, sender: Sender, revision: int) -> RenewalReply:
        """Renew a lease. `revision` is the newest that the sender has."""
        now = time.monotonic()
        reply = None if self._closed else self.service.renew(job, sender, revision, now)
        if reply is None and (refusal := self._refusal()) is not None:
            self.service.note_renewal(job, sender, now)
            reply = RenewalReply(None, job, sender, refusal)
        if reply is not None:
            self._on_answer(_RENEWALS[sender.kind], reply.answer)
            return reply
        answer: asyncio.Future[RenewalReply] = asyncio.get_running_loop().create_future()
        if not self.service.postpone(job, sender, revision, answer):
            return RenewalReply(None, job, sender, Unavailable("too many requests are waiting; ask again"))
        return await self._pumped(answer)

    async def find(self, job: str) -> Unavailable | None:
        """Load a job, so that `service.job` returns it if it exists. Return why it could not be looked up."""
        if self.service.job(job) is not None:
            return None
        refusal = self._refusal()
        if refusal is not None:
            return refusal
        answer: asyncio.Future[LookupReply] = asyncio.get_running_loop().create_future()
        if not self.service.look_up(job, answer):
            return Unavailable("too many requests are waiting; ask again")
        return (await self._pumped(answer)).refusal

    async def delete(self, job: str, ended_before: float | None = None) -> DeletionReply:
        """Delete an ended job, unless it ended later than that. It is gone when this returns."""
        refusal = self._refusal()
        answer: asyncio.Future[DeletionReply] = asyncio.get_running_loop().create_future()
        if refusal is None and not self.service.delete(job, ended_before, answer):
            refusal = Unavailable("too many requests are waiting; ask again")
        return await self._pumped(answer) if refusal is None else DeletionReply(None, refusal)

    async def _pumped(self, answer: asyncio.Future[T]) -> T:
        """Wait for a pump to answer."""
        self._wanted.set()
        self._waiting.add(answer)
        try:
            return await answer
        finally:
            self._waiting.discard(answer)

    def _refusal(self) -> Unavailable | None:
        """Return why a request need not wait for a pump, if that is known already."""
        if self._closed:
            return Unavailable("the coordinator is shutting down; ask again")
        if why := self._stuck():
            return Unavailable(why)
        if self._led is False and not self.service.leads:
            return Unavailable(self.service.why)
        return None

    def _stuck(self) -> str:
        stuck_s = self._thread.stuck_s()
        return f"the store has not answered for {stuck_s:.0f} s; ask again" if stuck_s else ""

    def suspect(self, job: str, sender: Sender) -> None:
        """Note that the sender closed its watch."""
        if not self._closed:
            self.service.suspect(job, sender, time.monotonic())

    def record_hangup(self, job: str, sender: Sender) -> None:
        """Note that the sender closed its connection, also while no watch was open on it."""
        if not self._closed:
            self.service.record_hangup(job, sender, time.monotonic())

    # ------------------------------------------------------------------------------------------- the pump

    async def start(self, patience_s: float) -> None:
        """Start to pump. Return after the first pump, when the jobs are loaded, or after `patience_s`."""
        first = asyncio.Event()
        self._pumping = asyncio.create_task(self._pump_until_closed(first))
        self._refusing = asyncio.create_task(self._refuse_while_stuck())
        with suppress(TimeoutError):
            await asyncio.wait_for(first.wait(), patience_s)

    def stop(self) -> None:
        """Release all watchers and refuse new requests. `close` waits for the rest."""
        self._closed = True
        self.notifications.close()
        self._wanted.set()

    async def close(self, patience_s: float) -> None:
        """Decide what was submitted and release the hold. If the store does not answer in time, the hold expires."""
        self.stop()
        if self._pumping is not None:
            await asyncio.wait([self._pumping], timeout=patience_s)
            if not self._pumping.done():
                log.warning("the hold was not released, because the store does not answer: it expires by itself")
                self._pumping.cancel()
        if self._refusing is not None:
            self._refusing.cancel()
        self._thread.close()

    async def _pump_until_closed(self, first: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed:
            self._wanted.clear()
            await self._pump()
            first.set()
            tick = loop.call_later(TICK_S, self._wanted.set)
            await self._wanted.wait()
            tick.cancel()
        await self._pump()
        try:
            await self._thread.drive(self.service.close_steps())
        except StoreError as error:
            log.warning("the hold was not released and expires by itself: %s", error)

    async def _pump(self) -> None:
        start = time.perf_counter()
        try:
            pumped = await self._thread.drive(self.service.pump_steps(time.monotonic()))
        except Exception:  # why: a bug in one decision must neither leave requests waiting nor stop the clock
            log.exception("a pump failed: this is a bug in Pliant")
            self.service.refuse_queued("a pump failed")
            for answer in self._waiting:
                if not answer.done():
                    answer.set_exception(StoreUnavailable("a decision failed, this is a bug in Pliant; see its log"))
            return
        self._answer(pumped)
        if not self.service.leads:
            self.notifications.release_all()
        if pumped.took_over:
            self.notifications.notify_all()
        self.notifications.notify(pumped)
        self._log(pumped)
        self._on_pump(pumped, time.perf_counter() - start)

    def _answer(self, pumped: Pumped) -> None:
        for reply in pumped.replies:
            self._on_answer(type(reply.command).__name__, reply.answer)
            _resolve(reply.ticket, reply)
        for renewed in pumped.renewed:
            self._on_answer(_RENEWALS[renewed.sender.kind], renewed.answer)
            _resolve(renewed.ticket, renewed)
        for found in pumped.found:
            _resolve(found.ticket, found)
        for deleted in pumped.deleted:
            _resolve(deleted.ticket, deleted)

    async def _refuse_while_stuck(self) -> None:
        """Answer the requests that wait for a pump while another pump waits for the store for too long."""
        while True:
            await asyncio.sleep(TICK_S)
            if why := self._stuck():
                self._answer(self.service.refuse_queued(why))
                if not self.service.is_sure(time.monotonic()):  # another coordinator may lead by now
                    self.notifications.release_all()

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


def _resolve(ticket: object, reply: Reply | RenewalReply | LookupReply | DeletionReply) -> None:
    if isinstance(ticket, asyncio.Future) and not ticket.done():
        ticket.set_result(reply)
