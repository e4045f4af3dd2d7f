"""A follower of a job's events that survives restarts of the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType

from pliant.chaos.outcomes import ChaosProgress
from pliant.client import Client
from pliant.client.event_follower import EventFollower
from pliant.core import messages as m


class EventLog:
    """Follows a job in a background thread while its block runs. `progress` sums up all events received so far."""

    def __init__(self, client: Client, job: str) -> None:
        self.progress = ChaosProgress()
        self.discarded = ChaosProgress()  # the progress when `discard` was called
        self._events: list[m.Event] = []
        self._discarded_count = 0
        self._worlds: dict[int, m.WorldFormed] = {}
        self._lock = threading.Lock()
        self._follower = EventFollower(client, job, 0, lambda _, event: self._add(event))

    def __enter__(self) -> EventLog:
        self._follower.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._follower.close()

    @property
    def events(self) -> list[m.Event]:
        """A copy of the events received since `discard`."""
        with self._lock:
            return list(self._events)

    @property
    def revision(self) -> int:
        with self._lock:
            return self._discarded_count + len(self._events)

    def discard(self) -> None:
        """Drop the events received so far, since a job may have a long history."""
        with self._lock:
            self.discarded = replace(self.progress)
            self._discarded_count += len(self._events)
            self._events.clear()

    def addresses(self) -> dict[str, str]:
        """Return the peer addresses of the newest world by member, as far as the world lists them."""
        with self._lock:
            newest = max(self._worlds, default=None)
            world = None if newest is None else self._worlds[newest].world
        return dict(zip(world.members, world.addresses, strict=False)) if world is not None else {}

    def append_rest(self, read: Callable[[int], list[m.Event]]) -> None:
        """Append the events that `read` returns for the last revision. Call after the coordinator has stopped."""
        for event in read(self.revision):
            self._add(event)

    def _add(self, event: m.Event) -> None:
        with self._lock:
            self._events.append(event)
            self.progress.add(event)
            if isinstance(event, m.WorldFormed):
                self._worlds[event.world.number] = event
