"""What happens to the job of a cluster, told once and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pliant.client import Client
from pliant.core.messages import Event, StateChanged
from pliant.core.model.job import JobState
from pliant.errors import PliantError, Refused

PAGE = 1000
PAUSE_S = 0.2
PATIENCE_S = 5.0

Told = Callable[[int, Event], None]


class Follower:
    """`start` it before anything is done to the job. `told` is called from several threads."""

    def __init__(self, client: Client, job: str, told: Told) -> None:
        self._client = client
        self._job = job
        self._told = told
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._revision = 0
        self.state: JobState | None = None  # as this life of the cluster saw it; None: nothing happened yet
        self.why = ""

    @property
    def ended(self) -> bool:
        return self.state is not None and self.state.ended

    def start(self) -> None:
        """Of a job that is there already what happened before is no news."""
        try:
            self._revision = self._client.job(self._job).job.revision
        except Refused:
            self._revision = 0  # it is still to be made
        threading.Thread(target=self._follow, name="follower", daemon=True).start()

    def close(self) -> None:
        """Tell what there is by now, and no more afterwards."""
        self._over.set()
        self.look()

    def look(self) -> None:
        """Tell what there is by now; a stream may be a moment behind."""
        try:
            while page := self._client.events(self._job, self._revision, PAGE):
                for revision, event in page:
                    self._tell(revision, event)
        except PliantError:
            return  # there is no job, or no coordinator any more: nobody knows better

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                for revision, event in self._client.follow(self._job, self._revision):
                    self._tell(revision, event)
            except PliantError:
                self._over.wait(PAUSE_S)  # there is no job yet, or no coordinator for now

    def _tell(self, revision: int, event: Event) -> None:
        with self._lock:
            if revision <= self._revision:
                return
            self._revision = revision
            if isinstance(event, StateChanged):
                self.state, self.why = event.state, event.why
            self._told(revision, event)
