"""Follow a job's events through restarts of its coordinator."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pliant.client.client import Client
from pliant.core.messages import Event, StateChanged
from pliant.core.model.job import JobState
from pliant.errors import PliantError

PAGE = 1000
PAUSE_S = 0.2


class EventFollower:
    """Deliver each event after a revision once and in order.

    Either call `start`, which follows in a thread until `close`, or call `stream`, which raises when the connection is
    lost. `catch_up` may be called from any thread meanwhile. `deliver` is called from these threads, one at a time.
    """

    def __init__(self, client: Client, job: str, after: int, deliver: Callable[[int, Event], None]) -> None:
        self._client = client
        self._job = job
        self._deliver = deliver
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._streams = 0  # opened ones; the newest goes on
        self._trouble: Callable[[PliantError], None] = lambda _: None
        self._revision = after
        self.state: JobState | None = None  # None until an event sets it
        self.why = ""

    @property
    def revision(self) -> int:
        """The revision of the newest event whose delivery is over."""
        with self._lock:
            return self._revision

    @property
    def job_ended(self) -> bool:
        return self.state is not None and self.state.ended

    def start(self, trouble: Callable[[PliantError], None] = lambda _: None) -> None:
        """Follow in a thread of its own. `trouble` receives every error; the follower retries after each."""
        self._trouble = trouble
        self.reopen()

    def reopen(self) -> None:
        """Open another stream, because the coordinator of the one before may be frozen or gone."""
        self._streams += 1
        threading.Thread(target=self._run, args=(self._streams,), name="event follower", daemon=True).start()

    def close(self) -> None:
        """Deliver nothing more from the thread, which may be waiting for the next event."""
        self._closed.set()

    def stream(self, *, until_job_ends: bool = False, number: int = 0) -> None:
        """Deliver events as they happen until `close`, or until the job has ended."""
        for revision, event in self._client.follow(self._job, self.revision):
            if self._closed.is_set() or (number and number != self._streams):
                return
            self.apply(revision, event)
            if until_job_ends and self.job_ended:
                self.catch_up()  # events decided together with the end, or another attempt
                if self.job_ended:
                    return

    def catch_up(self) -> None:
        """Deliver all events up to now; the stream may lag a moment behind."""
        while page := self._client.events(self._job, self.revision, PAGE):
            for revision, event in page:
                self.apply(revision, event)

    def apply(self, revision: int, event: Event) -> None:
        """Deliver an event unless it was delivered before."""
        with self._lock:
            if revision <= self._revision:
                return
            self._revision = revision
            if isinstance(event, StateChanged):
                self.state, self.why = event.state, event.why
            self._deliver(revision, event)

    def _run(self, number: int) -> None:
        while not self._closed.is_set() and number == self._streams:
            try:
                self.stream(number=number)
            except PliantError as error:
                self._trouble(error)
                self._closed.wait(PAUSE_S)
