"""Store calls in a thread: the loop goes on, in order, one at a time."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from pliant.coordinator import store_thread
from pliant.coordinator.service.steps import Steps
from pliant.coordinator.store_thread import StoreThread
from pliant.errors import StoreUnavailable

LONG_S = 20.0


def on_loop(scene: Callable[[StoreThread], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def play() -> None:
            thread = StoreThread("test")
            try:
                await scene(thread)
            finally:
                thread.close()

        asyncio.run(asyncio.wait_for(play(), LONG_S))

    run.__name__ = scene.__name__
    return run


@on_loop
async def test_calls_run_in_one_other_thread_in_their_order(thread: StoreThread) -> None:
    seen: list[tuple[int, int]] = []
    await asyncio.gather(*(thread.call(lambda n=n: seen.append((n, threading.get_ident()))) for n in range(50)))  # type: ignore[misc]
    assert [number for number, _ in seen] == list(range(50))
    assert len({ident for _, ident in seen} | {threading.get_ident()}) == 2


@on_loop
async def test_the_loop_goes_on_while_a_call_hangs_and_learns_how_long(thread: StoreThread) -> None:
    released = threading.Event()
    hanging = asyncio.create_task(thread.call(released.wait))
    while not thread.stuck_s():
        await asyncio.sleep(0.01)
    assert thread.stuck_s() > store_thread.STUCK_S
    released.set()
    assert await hanging
    assert thread.stuck_s() == 0.0


@on_loop
async def test_an_error_of_the_store_reaches_the_caller(thread: StoreThread) -> None:
    with pytest.raises(StoreUnavailable, match="on purpose"):
        await thread.call(_fail)

    def steps() -> Steps[str]:
        result = yield _fail
        return str(result.error)

    assert await thread.drive(steps()) == "on purpose"


@on_loop
async def test_so_many_calls_may_wait(thread: StoreThread) -> None:
    released = threading.Event()
    waiting = [asyncio.create_task(thread.call(released.wait)) for _ in range(store_thread.WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="Too many requests wait for the store"):
        await thread.call(int)
    released.set()
    assert all(await asyncio.gather(*waiting))
    assert await thread.call(int) == 0


@on_loop
async def test_a_caller_that_is_cancelled_does_not_disturb_the_next(thread: StoreThread) -> None:
    released = threading.Event()
    hanging = asyncio.create_task(thread.call(released.wait))
    await asyncio.sleep(0)
    hanging.cancel()
    released.set()
    assert await thread.call(int) == 0
    assert thread.stuck_s() == 0.0


def _fail() -> None:
    raise StoreUnavailable("on purpose")
