"""An agent's connection to its coordinator: orders, renewals, events and commands, each in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from pliant.client import Client
from pliant.client.event_follower import EventFollower
from pliant.core.leases import RENEWALS_PER_LEASE
from pliant.core.messages import AgentJoin, AgentReady, Code, Command, Event
from pliant.core.model.job import JobState
from pliant.core.model.names import AgentId
from pliant.core.supervisor import signals as v
from pliant.errors import PliantError, Refused, Unreachable
from pliant.wire.api import JobLine, WorkerUsage

WATCH_S = 25.0
PATIENCE_S = 5.0
PAUSE_S = 0.2


class CoordinatorLink:
    """Threads that begin with `start`. `feed` receives every signal for the supervisor, from several threads.

    `found` is the job as it was found; `show` receives every later event.
    """

    def __init__(
        self,
        client: Client,
        found: JobLine,
        agent: AgentId,
        feed: Callable[[v.Signal], None],
        show: Callable[[int, Event], None],
        lease_ttl_s: float,
        uses: Callable[[], tuple[WorkerUsage, ...]] = tuple,
    ) -> None:
        self._client = client
        self._job = found.name
        self._found = found
        self._agent = agent
        self._feed = feed
        self._show = show
        self._uses = uses
        self._renew_s = lease_ttl_s / RENEWALS_PER_LEASE
        self._queue: SimpleQueue[Command | Callable[[], object] | None] = SimpleQueue()
        self._newest: dict[type, Command] = {}  # of each kind that is repeated, the newest one that is queued
        self._sent = threading.Event()
        self._closed = threading.Event()
        self._revision = 0
        self._watches = 0  # opened ones; only the newest delivers
        self._watched_at = 0.0  # when it was opened last, by the monotonic clock
        self._troubles: set[str] = set()
        self._followed = EventFollower(client, found.name, found.revision, self._deliver)
        self.away_since: float | None = None  # by the wall clock; None: the coordinator answers
        self._ordered: tuple[JobState, str] | None = None  # the final state, if orders came before the event

    @property
    def state(self) -> JobState:
        """The job's state, from the newest event or orders."""
        return self._standing[0]

    @property
    def why(self) -> str:
        """The reason for the job's state."""
        return self._standing[1]

    @property
    def _standing(self) -> tuple[JobState, str]:
        followed = self._followed
        if followed.state is None:
            return self._ordered or (self._found.state, self._found.why)
        if self._ordered is not None and not followed.state.ended:
            return self._ordered
        return followed.state, followed.why

    @property
    def away_s(self) -> float:
        """The time since when the coordinator has not answered; 0 if it does."""
        since = self.away_since
        return 0.0 if since is None else max(0.0, time.time() - since)

    def start(self, complain: Callable[[str], None]) -> None:
        """Start the threads. `complain` receives errors that do not pass by themselves, each once."""
        self._complain = complain
        for each in (self._send, self._renew):
            threading.Thread(target=each, name=f"agent {each.__name__}", daemon=True).start()
        self._open_watch()
        self._followed.start(self._trouble)

    def _open_watch(self) -> None:
        """Watch in a new thread. An earlier watch may be at a frozen coordinator, and ends when that answers."""
        self._watches += 1
        self._watched_at = time.monotonic()
        threading.Thread(target=self._watch, args=(self._watches,), name="agent _watch", daemon=True).start()

    def send(self, command: Command) -> None:
        """Queue a command. It may be lost on the way; the supervisor repeats what matters.

        Commands that the supervisor repeats anyway are queued once: a coordinator may be away for days.
        """
        if isinstance(command, AgentJoin | AgentReady):
            queued, self._newest[type(command)] = type(command) in self._newest, command
            if queued:
                return
        self._queue.put(command)

    def run_after_sent(self, act: Callable[[], object]) -> None:
        """Call `act` in the sending thread once all commands queued so far were sent."""
        self._queue.put(act)

    def close(self, wait_s: float) -> None:
        """Send the queued commands and deliver the events up to now, for at most `wait_s`, then disconnect."""
        self.run_after_sent(self.catch_up)
        self._queue.put(None)
        self._sent.wait(wait_s)
        self._closed.set()
        self._followed.close()
        self._client.close()

    def catch_up(self) -> bool:
        """Deliver all events up to now; return False if they cannot be read."""
        try:
            self._followed.catch_up()
        except PliantError as error:
            self._trouble(error)
            return False
        self._note_answer(None)
        return True

    # --------------------------------------------------------------------------------------------- threads

    def _send(self) -> None:
        while (queued := self._queue.get()) is not None:
            if callable(queued):
                queued()
                continue
            try:
                self._client.send(self._job, self._newest.pop(type(queued), queued))
            except PliantError as error:
                self._trouble(error)
        self._sent.set()

    def _watch(self, number: int) -> None:
        while not self._closed.is_set() and number == self._watches:
            self._watched_at = time.monotonic()
            try:
                orders = self._client.orders(self._job, self._agent, self._revision, WATCH_S, PATIENCE_S)
            except PliantError as error:
                self._note_answer(error)
                self._trouble(error)
                if isinstance(error, Refused):
                    self._feed(v.Recheck(refused=True))
                self._closed.wait(PAUSE_S)
                continue
            self._note_answer(None)
            if number != self._watches:
                return  # another watch was opened meanwhile
            if orders.revision < self._revision:
                continue  # from a coordinator that lags behind
            self._revision = orders.revision
            if orders.state.ended:
                self._ordered = (orders.state, orders.why)
            self._feed(
                v.OrdersReceived(
                    count=orders.workers,
                    members=orders.members,
                    draining=orders.draining,
                    ended=orders.state.ended,
                    live=orders.live,
                    launch=orders.launch,
                    ready=bool(orders.ready),
                    leaving=orders.leaving,
                    grace_s=orders.grace_s,
                    install_id=orders.install_id,
                    run_id=orders.run_id,
                    finished=orders.state is JobState.FINISHED,
                    revision=orders.revision,
                    permitted=orders.permitted,
                )
            )
            if orders.state.ended:
                return

    def _renew(self) -> None:
        due = time.monotonic() + self._renew_s
        while not self._closed.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + self._renew_s
            self._feed(v.Recheck(self.away_s))
            try:
                self._client.renew_agent(self._job, self._agent, self._revision, self._uses(), self._renew_s)
            except PliantError as error:
                self._note_answer(error)
                self._trouble(error)
            else:
                self._note_answer(None)
                if self._client.moved_at > self._watched_at and not self._closed.is_set():
                    self._open_watch()
                    self._followed.reopen()

    def _note_answer(self, error: PliantError | None) -> None:
        if self._closed.is_set():
            return  # requests that closing has ended say nothing about the coordinator
        if not isinstance(error, Unreachable):
            self.away_since = None
        elif self.away_since is None:
            self.away_since = time.time()

    def _deliver(self, revision: int, event: Event) -> None:
        self._show(revision, event)
        if isinstance(event, v.FollowedEvent):
            # The end of the job, too: its host may stop the coordinator before it has sent the orders that say so.
            self._feed(v.JobEvent(event, revision))

    def _trouble(self, error: PliantError) -> None:
        """Complain about an error unless it passes: an absent coordinator, an unknown agent, a command too late."""
        passes = isinstance(error, Unreachable) or (isinstance(error, Refused) and error.code in _PASSES)
        if passes or self._closed.is_set() or error.why in self._troubles:
            return
        self._troubles.add(error.why)
        self._complain(error.why)


_PASSES = frozenset({Code.ENDED.value, Code.UNKNOWN.value, Code.GONE.value})
