"""What happened to the job while this agent runs, told once and in order, and what follows from it for the agent."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from pliant.core.messages import Event, MemberGone, MemberJoined, StateChanged
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId


class Screen(Protocol):
    """Where it is told. Called from several threads, also at once."""

    def worker(self, member: str, line: bytes) -> None:
        """A line that a worker wrote."""

    def event(self, revision: int, event: Event) -> None:
        """Something happened to the job."""

    def say(self, text: str) -> None:
        """The agent's own words."""


class Story:
    """`tell` it every event there is, from any thread and more than once if need be."""

    def __init__(self, screen: Screen, revision: int, state: JobState, why: str) -> None:
        self._screen = screen
        self._lock = threading.Lock()
        self.revision = revision
        self.state = state
        self.why = why
        self.joined: set[MemberId] = set()
        self.lost: dict[MemberId, float] = {}  # since when, on this process's clock

    def over(self, state: JobState, why: str) -> None:
        """It has ended so, said somebody who knows; perhaps before the event of it was told."""
        with self._lock:
            if not self.state.ended:
                self.state, self.why = state, why

    def tell(self, revision: int, event: Event) -> None:
        with self._lock:
            if revision <= self.revision:
                return
            self.revision = revision
            if isinstance(event, MemberJoined):
                self.joined.add(event.member.id)
            elif isinstance(event, MemberGone) and event.how != "left":
                self.lost[event.member] = time.monotonic()
            elif isinstance(event, StateChanged):
                self.state, self.why = event.state, event.why
            self._screen.event(revision, event)
