"""A simulated agent's view of the job's events: read from a coordinator now and then, each delivered once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from pliant.core.messages import Event
from pliant.core.supervisor.signals import FollowedEvent, JobEvent, Signal, WorkerEnded

PATIENCE_S = 5.0
PAUSE_S = 0.7

Entries = tuple[tuple[int, Event], ...]


class EventSource(Protocol):
    """The part of a simulated world that serves events over its network."""

    def after(self, delay_s: float, act: Callable[..., None], *args: object) -> None: ...

    def read_events(self, machine: str, after: int, reply: Callable[[Entries], None]) -> None:
        """Call `reply` with all events after a revision, unless the request or the answer is lost."""
        ...


class AgentEvents:
    """Feed a supervisor with events, as `CoordinatorLink` does: call `read` now and then."""

    def __init__(self, source: EventSource, machine: str, after: int, feed: Callable[[Signal], None]) -> None:
        self._source = source
        self._machine = machine
        self._feed = feed
        self._revision = after
        self._reads = 0
        self._waiting: list[tuple[int, WorkerEnded]] = []  # each with the first read that answers it

    def read(self) -> None:
        self._reads += 1
        number = self._reads
        self._source.read_events(self._machine, self._revision, lambda entries: self._received(number, entries))

    def read_for(self, ended: WorkerEnded) -> None:
        """Feed `ended` again once all events up to now were delivered, or cannot be read."""
        self._waiting.append((self._reads + 1, ended))
        self._try(ended, PATIENCE_S)

    def _try(self, ended: WorkerEnded, left_s: float) -> None:
        if all(each is not ended for _, each in self._waiting):
            return
        if left_s <= 0:
            self._answer(ended, events_read=False)
            return
        self.read()
        self._source.after(PAUSE_S, self._try, ended, left_s - PAUSE_S)

    def _received(self, number: int, entries: Entries) -> None:
        for revision, event in entries:
            if revision > self._revision:
                self._revision = revision
                if isinstance(event, FollowedEvent):
                    self._feed(JobEvent(event, revision))
        for first, ended in tuple(self._waiting):
            if number >= first:
                self._answer(ended, events_read=True)

    def _answer(self, ended: WorkerEnded, *, events_read: bool) -> None:
        self._waiting = [each for each in self._waiting if each[1] is not ended]
        self._feed(replace(ended, events_read=events_read))
