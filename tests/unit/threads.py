"""The threads that a piece of code starts, and whether the interpreter waits for them at its exit.

A thread inherits `daemon` from the thread that starts it, so code that a daemon runs must set it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

PATIENCE_S = 60.0


@contextmanager
def started_threads() -> Iterator[list[threading.Thread]]:
    """Collect every thread that is started."""
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def noting(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    with mock.patch.object(threading.Thread, "start", noting):
        yield started


def in_daemon(act: Callable[[], object]) -> None:
    """Run `act` in a daemon thread, as the threads of a member's link run it, and wait for it."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def daemons(started: list[threading.Thread], name: str) -> list[bool]:
    """Return `daemon` of each thread of this name."""
    return [each.daemon for each in started if each.name == name]
