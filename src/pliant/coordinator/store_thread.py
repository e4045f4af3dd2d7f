"""A thread that makes the store's calls, one after the other, so that the event loop never waits for the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

from pliant.coordinator.service.steps import CallResult, Steps, StoreCall, make_call
from pliant.errors import StoreUnavailable

WAITING_MAX = 1024  # calls that wait for the thread
STUCK_S = 1.0  # a store that takes longer is not waited for any more

T = TypeVar("T")
_Made = tuple[object, Exception | None]


class StoreThread:
    """One thread with a queue of store calls. Use it from one event loop.

    Nothing but store calls runs in the thread. It shares no state with the loop.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[StoreCall, asyncio.Future[_Made]] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._waiting = 0
        self._since = 0.0  # when the call under way was made

    def stuck_s(self) -> float:
        """Return for how long the store has left a call unanswered; 0 if that is not too long yet."""
        took_s = time.monotonic() - self._since if self._waiting else 0.0
        return took_s if took_s > STUCK_S else 0.0

    async def drive(self, steps: Steps[T]) -> T:
        """Run a sequence of store calls to its end. Everything between two calls runs on the event loop."""
        try:
            call = next(steps)
            while True:
                made = await self._make(call)
                call = steps.send(CallResult(time.monotonic(), *made))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def call(self, call: Callable[[], T]) -> T:
        """Make one call in the thread, and return its result or raise its error."""
        value, error = await self._make(call)
        if error is not None:
            raise error
        result: T = value  # type: ignore[assignment]  # the result of `call`
        return result

    def close(self) -> None:
        """Let the thread end after the calls that wait. A call that never returns does not keep the process alive."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread = None

    async def _make(self, call: StoreCall) -> _Made:
        if self._waiting >= WAITING_MAX:
            return None, StoreUnavailable("Too many requests wait for the store; ask again.")
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = Thread(target=self._run, args=(loop,), name=self._name, daemon=True)
            self._thread.start()
        if self._waiting == 0:
            self._since = time.monotonic()
        self._waiting += 1
        answer: asyncio.Future[_Made] = loop.create_future()
        self._queue.put((call, answer))
        return await answer

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while (item := self._queue.get()) is not None:
            call, answer = item
            made = make_call(call)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(partial(self._answered, answer, made))

    def _answered(self, answer: asyncio.Future[_Made], made: _Made) -> None:
        self._waiting -= 1
        self._since = time.monotonic()
        if not answer.done():  # its caller may have been cancelled
            answer.set_result(made)
