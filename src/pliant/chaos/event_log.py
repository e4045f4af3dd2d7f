"""A job's events as they come, through every restart of its coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import TracebackType

from pliant.chaos.outcomes import Past
from pliant.client import Client
from pliant.core import messages as m
from pliant.errors import PliantError

AGAIN_S = 0.1
END_S = 1.0


class Chronicle:
    """Follows a job in a thread of its own for a block. `past` is how it stands, by what was heard up to now."""

    def __init__(self, client: Client, job: str) -> None:
        self.past = Past()
        self.before = Past()  # as it was when the events so far were forgotten
        self._events: list[m.Event] = []
        self._forgotten = 0
        self._worlds: dict[int, m.WorldFormed] = {}
        self._client = client
        self._job = job
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="chronicle", daemon=True)

    def __enter__(self) -> Chronicle:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._over.set()
        self._thread.join(END_S)  # it may be waiting for an event; nobody waits for it at the end

    @property
    def events(self) -> list[m.Event]:
        """Those that came up to now and are not forgotten, a list of its own."""
        with self._lock:
            return list(self._events)

    @property
    def revision(self) -> int:
        with self._lock:
            return self._forgotten + len(self._events)

    def forget(self) -> None:
        """Call when only what comes from now on is to be looked at: a job may have a long history."""
        with self._lock:
            self.before = replace(self.past)
            self._forgotten += len(self._events)
            self._events.clear()

    def addresses(self) -> dict[str, str]:
        """Where members of the newest world reach one another, as far as it says."""
        with self._lock:
            newest = max(self._worlds, default=None)
            world = None if newest is None else self._worlds[newest].world
        return dict(zip(world.members, world.addresses, strict=False)) if world is not None else {}

    def rest(self, read: Callable[[int], list[m.Event]]) -> None:
        """Call when no more can come: `read` gives what came after a revision."""
        for event in read(self.revision):
            self._add(event)

    def _add(self, event: m.Event) -> None:
        with self._lock:
            self._events.append(event)
            self.past.add(event)
            if isinstance(event, m.WorldFormed):
                self._worlds[event.world.number] = event

    def _follow(self) -> None:
        while not self._over.is_set():
            with suppress(PliantError):  # it is away, perhaps by our own doing
                for _, event in self._client.follow(self._job, self.revision):
                    self._add(event)
                    if self._over.is_set():
                        return
            self._over.wait(AGAIN_S)
