"""Waits of simulated threads: a thread is a generator that yields values which come later."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any


class LaterValue:
    """A value that comes later, once."""

    def __init__(self) -> None:
        self.is_kept = False
        self.value: Any = None
        self._then: list[Callable[[Any], None]] = []

    def keep(self, value: Any) -> None:
        """Set the value; later ones are ignored."""
        if not self.is_kept:
            self.is_kept, self.value = True, value
            for act in self._then:
                act(value)

    def then(self, act: Callable[[Any], None]) -> None:
        if self.is_kept:
            act(self.value)
        else:
            self._then.append(act)


Thread = Generator[LaterValue, Any, Any]


def start_thread(thread: Thread, value: Any = None) -> None:
    """Run a thread until its next wait, and go on when that is over."""
    try:
        promise = thread.send(value)
    except StopIteration:
        return
    promise.then(lambda found: start_thread(thread, found))


def all_of(promises: Iterable[LaterValue]) -> LaterValue:
    """Return all values, in order, once they are there."""
    waiting = list(promises)
    whole = LaterValue()

    def one_kept(_: Any) -> None:
        if all(each.is_kept for each in waiting):
            whole.keep([each.value for each in waiting])

    for each in waiting:
        each.then(one_kept)
    if not waiting:
        whole.keep([])
    return whole
