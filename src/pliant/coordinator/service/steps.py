"""A pump as a sequence of store calls (ADR 0023).

The service is written as generators. Each `yield` hands out one call of the store and receives its result. Between two
calls the service never waits. So the caller chooses where the calls run: `run` makes them at once, in the same thread.
The server makes them in a thread of their own, and its event loop answers other requests meanwhile. A simulator can
let anything happen between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

R = TypeVar("R")

StoreCall: TypeAlias = Callable[[], object]
"""One call of the store. It may block and raise, and touches nothing but the store and its own arguments."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a store call or its error, and the time at which the pump goes on."""

    now: float
    value: object = None
    error: Exception | None = None


Steps: TypeAlias = Generator[StoreCall, CallResult, R]


def make_call(call: StoreCall) -> tuple[object, Exception | None]:
    """Make a call, and return its result or its error."""
    try:
        return call(), None
    except Exception as error:  # why: the pump decides what an error means, also one that is a bug
        return None, error


def run(steps: Steps[R], now: float) -> R:
    """Run a pump to its end at one moment, with its store calls in this thread."""
    try:
        call = next(steps)
        while True:
            call = steps.send(CallResult(now, *make_call(call)))
    except StopIteration as stop:
        result: R = stop.value
        return result
