"""An agent's talk with its coordinator: orders, renewals, events, and what the agent says, each in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from pliant.agent.coordinator.event_follower import Story
from pliant.client import Client
from pliant.core import supervisor as v
from pliant.core.messages import AgentJoin, AgentReady, Code, Command, Event
from pliant.core.model.names import AgentId
from pliant.errors import PliantError, Refused, Unreachable
from pliant.wire.api import Use

WATCH_S = 25.0
PATIENCE_S = 5.0
PAUSE_S = 0.2
PAGE = 1000


class Dialogue:
    """Threads that begin with `start`. `hear` is called with every signal for the supervisor, from several threads."""

    def __init__(
        self,
        client: Client,
        job: str,
        agent: AgentId,
        story: Story,
        hear: Callable[[v.Signal], None],
        lease_ttl_s: float,
        uses: Callable[[], tuple[Use, ...]] = tuple,
    ) -> None:
        self._client = client
        self._job = job
        self._agent = agent
        self._story = story
        self._hear = hear
        self._uses = uses
        self._renew_s = lease_ttl_s / 3
        self._queue: SimpleQueue[Command | Callable[[], object] | None] = SimpleQueue()
        self._newest: dict[type, Command] = {}  # of those that are said again and again, where one is queued
        self._sent = threading.Event()
        self._over = threading.Event()
        self._revision = 0
        self._troubles: set[str] = set()

    def start(self, complain: Callable[[str], None]) -> None:
        """`complain` is told of what no waiting mends, each thing once."""
        self._complain = complain
        for each in (self._send, self._watch, self._renew, self._follow):
            threading.Thread(target=each, name=f"agent {each.__name__}", daemon=True).start()

    def say(self, command: Command) -> None:
        """Have a command sent, after those before it. What is lost on the way the supervisor says again.

        What it says again and again anyway is not queued twice: a coordinator may be away for days.
        """
        if isinstance(command, AgentJoin | AgentReady):
            queued, self._newest[type(command)] = type(command) in self._newest, command
            if queued:
                return
        self._queue.put(command)

    def do(self, act: Callable[[], object]) -> None:
        """Have something done once everything said so far was sent, by the thread that sends."""
        self._queue.put(act)

    def close(self, wait_s: float) -> None:
        """Send what is left, tell what is left to tell, and let go; not longer than this."""
        self.do(self.catch_up)
        self._queue.put(None)
        self._sent.wait(wait_s)
        self._over.set()
        self._client.close()

    def catch_up(self) -> bool:
        """Tell every event there is by now; False if that cannot be known."""
        try:
            while page := self._client.events(self._job, self._story.revision, PAGE):
                for revision, event in page:
                    self._tell(revision, event)
        except PliantError as error:
            self._trouble(error)
            return False
        return True

    # --------------------------------------------------------------------------------------------- threads

    def _send(self) -> None:
        while (given := self._queue.get()) is not None:
            if callable(given):
                given()
                continue
            try:
                self._client.send(self._job, self._newest.pop(type(given), given))
            except PliantError as error:
                self._trouble(error)
        self._sent.set()

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                orders = self._client.orders(self._job, self._agent, self._revision, WATCH_S, PATIENCE_S)
            except PliantError as error:
                self._trouble(error)
                if isinstance(error, Refused):
                    self._hear(v.Recheck())  # perhaps we are not known any more
                self._over.wait(PAUSE_S)
                continue
            if orders.revision < self._revision:
                continue  # of a coordinator that lags behind
            self._revision = orders.revision
            if orders.state.ended:
                self._story.over(orders.state, orders.why)
            self._hear(
                v.Orders(
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
                )
            )
            if orders.state.ended:
                return

    def _renew(self) -> None:
        while not self._over.wait(self._renew_s):
            self._hear(v.Recheck())
            try:
                self._client.renew_agent(self._job, self._agent, self._revision, self._uses(), patience_s=0.0)
            except PliantError as error:
                self._trouble(error)

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                for revision, event in self._client.follow(self._job, self._story.revision):
                    self._tell(revision, event)
            except PliantError as error:
                self._trouble(error)
                self._over.wait(PAUSE_S)

    def _tell(self, revision: int, event: Event) -> None:
        self._story.tell(revision, event)
        if self._story.state.ended and not self._over.is_set():
            self._hear(v.JobOver())  # who keeps the coordinator may stop it before it has told us otherwise

    def _trouble(self, error: PliantError) -> None:
        """Say what will not pass by itself. Being away does, and so does being unknown or too late."""
        passes = isinstance(error, Unreachable) or (isinstance(error, Refused) and error.code in _PASSES)
        if passes or self._over.is_set() or error.why in self._troubles:
            return
        self._troubles.add(error.why)
        self._complain(error.why)


_PASSES = frozenset({Code.ENDED.value, Code.UNKNOWN.value, Code.GONE.value})
