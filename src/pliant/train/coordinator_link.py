"""A member's link to the coordinator: join, watch, renew, and send the machine's commands.

Training does not need it from step to step. While the coordinator is unreachable all three threads retry, and the
machine repeats its important commands (rule 19: leases are fresh when the coordinator is back).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from pliant.client import Client
from pliant.core.leases import RENEWALS_PER_LEASE
from pliant.core.member import signals as s
from pliant.core.messages import Code, Command, Join, Report
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import MemberState, View
from pliant.core.ps.messages import JoinServers
from pliant.core.tasks.messages import JoinTasks
from pliant.credentials import NO_TLS_FILES, TlsFiles, Token
from pliant.errors import BadInput, PliantError, Refused, Unreachable
from pliant.wire.views import PeerKey, ViewUpdate, apply_update

log = logging.getLogger(__name__)

JOIN_PATIENCE_S = 120.0
SEND_PATIENCE_S = 30.0
WATCH_S = 25.0
GOODBYE_S = 3.0
_FENCES = frozenset({Code.GONE, Code.UNKNOWN})


class JobAlreadyEnded(PliantError):
    """The job ended before this worker could join it. `code` is the exit code to use: 1 if the job failed."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True)
class Training:
    """The training of a job that a worker comes to: the next step, as far as known, and the size of the world."""

    step: int
    size: int


class LinkListener(Protocol):
    """The receiver of what the link delivers: the session."""

    def feed(self, signal: s.Signal) -> None:
        """Feed a signal to the machine."""

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        """Accept a new view of the job, with the keys of this member's generations."""

    def fenced(self, revision: int, why: str) -> None:
        """Stop: the coordinator has no such member (any more), as of that revision."""


class MemberLink:
    """Create one, call `join`, then `start`. `close` sends no `Leave`: the machine does."""

    def __init__(
        self,
        endpoints: tuple[str, ...],
        token: Token,
        job: str,
        member: MemberId,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> None:
        self._job = job
        self._member = member
        self._client = Client(endpoints, token, patience_s=SEND_PATIENCE_S, tls=tls)
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._idle = True
        self._unreachable = False
        self._revision = 0
        self._watches = 0  # opened ones; only the newest delivers
        self._watched_at = 0.0  # when it was opened last, by the monotonic clock
        self._threads: list[threading.Thread] = []

    def job_created_at(self) -> float:
        """Return the time at which the job was created; waits for the coordinator."""
        self._client.about(patience_s=JOIN_PATIENCE_S)
        return self._client.job(self._job).created_at

    def training(self) -> Training | None:
        """Return what the members do; None if none trains, or one leaves and may need this worker for the state."""
        self._client.about(patience_s=JOIN_PATIENCE_S)
        status = self._client.job(self._job)
        size = sum(line.rank is not None for line in status.members)
        leaving = any(line.state is MemberState.DRAINING for line in status.members)
        if status.job.state is not JobState.RUNNING or leaving or not size:
            return None
        return Training(status.durable.step + 1, size)

    def join(self, command: Join | JoinTasks | JoinServers) -> None:
        """Return once this worker is a member. Raises the coordinator's refusal."""
        try:
            self._client.send(self._job, command, patience_s=JOIN_PATIENCE_S)
        except Refused as error:
            if error.code == Code.ENDED:
                failed = self._client.job(self._job).job.state is JobState.FAILED
                raise JobAlreadyEnded(error.why, code=1 if failed else 0) from error
            raise
        self._lease_ttl_s = self._client.about().lease_ttl_s

    def start(self, listener: LinkListener) -> None:
        """Start the threads that feed the listener and send its commands."""
        self._open_watch(listener)
        for act in (self._renew_loop, self._send_loop):
            self._start_thread(act.__name__[1:], partial(act, listener))

    def _start_thread(self, name: str, act: Callable[[], None]) -> None:
        thread = threading.Thread(target=act, name=f"pliant-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _open_watch(self, listener: LinkListener) -> None:
        """Watch in a new thread. An earlier watch may be at a frozen coordinator, and ends when that answers."""
        self._watches += 1
        self._watched_at = time.monotonic()
        self._start_thread("watch_loop", partial(self._watch_loop, listener, self._watches))

    def send(self, command: Command) -> None:
        """Queue a command.

        Commands are sent in order; one that cannot be sent for a while is dropped, as the machine repeats it.

        A new report replaces the ones that still wait.
        """
        with self._changed:
            if command in self._commands:
                return
            if isinstance(command, Report):
                self._commands = deque(each for each in self._commands if not isinstance(each, Report))
            self._commands.append(command)
            self._changed.notify()

    def close(self) -> None:
        """Send the queued commands, if that is soon possible, and stop."""
        with self._changed:
            if self._threads:
                self._changed.wait_for(lambda: self._idle and not self._commands, GOODBYE_S)
            self._closing.set()
            self._changed.notify_all()
        self._client.close()
        for thread in self._threads:
            thread.join(0.2)  # daemon threads: a watch may stay in the kernel a little longer

    # ------------------------------------------------------------------------------------------------ threads

    def _send_loop(self, listener: LinkListener) -> None:
        while True:
            with self._changed:
                self._idle = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._commands or self._closing.is_set())
                if self._closing.is_set():
                    return
                self._idle = False
                command = self._commands.popleft()
            self._guarded(listener, partial(self._send_one, listener, command))

    def _send_one(self, listener: LinkListener, command: Command) -> None:
        done = self._client.send(self._job, command)
        if done.durable is not None:
            listener.feed(s.Durable(done.revision, done.durable))

    def _renew_loop(self, listener: LinkListener) -> None:
        interval_s = self._lease_ttl_s / RENEWALS_PER_LEASE
        due = time.monotonic() + interval_s
        while not self._closing.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + interval_s
            self._guarded(listener, partial(self._renew_once, listener, interval_s))
            listener.feed(s.Tick())

    def _renew_once(self, listener: LinkListener, patience_s: float) -> None:
        done = self._client.renew(self._job, self._member, self._revision, patience_s)
        if self._client.moved_at > self._watched_at and not self._closing.is_set():
            self._open_watch(listener)
        if done.durable is not None:
            listener.feed(s.Durable(done.revision, done.durable))

    def _watch_loop(self, listener: LinkListener, number: int) -> None:
        view: View | None = None
        while not self._closing.is_set() and number == self._watches:
            try:
                self._watched_at = time.monotonic()
                update = self._client.watch(self._job, self._member, view.revision if view else 0, WATCH_S, 0.0)
                if number != self._watches:
                    return  # another watch was opened meanwhile
                if update.delta is not None:
                    view = self._apply_change(view, update)
                    if view is None:
                        continue
                    self._revision = view.revision
                    listener.view_received(view, update.keys)
                listener.feed(s.Durable(update.revision, update.durable))
                self._note_contact()
            except PliantError as error:
                self._handle_error(listener, error)
                self._closing.wait(0.1)
            except Exception:  # why: without a watch the member would receive nothing until its lease expires
                log.exception("watching the job failed; retrying")
                self._closing.wait(1.0)

    def _apply_change(self, view: View | None, update: ViewUpdate) -> View | None:
        """Return the view after a change; None if the base of the change is missing, then the whole view follows."""
        try:
            return apply_update(view, update)
        except BadInput:
            self._closing.wait(0.1)
            return None

    # ------------------------------------------------------------------------------------------------- errors

    def _guarded(self, listener: LinkListener, act: Callable[[], None]) -> None:
        try:
            act()
            self._note_contact()
        except PliantError as error:
            self._handle_error(listener, error)
        except Exception:  # why: without this thread the member could send nothing until its lease expires
            log.exception("a request to the coordinator failed; retrying")

    def _handle_error(self, listener: LinkListener, error: PliantError) -> None:
        if self._closing.is_set():
            return
        if isinstance(error, Refused) and error.code in _FENCES:
            listener.fenced(error.revision, error.why)
        elif isinstance(error, Refused):
            log.debug("refused: %s", error.why)  # most often about a generation that is over
        elif isinstance(error, Unreachable):
            if not self._unreachable:
                self._unreachable = True
                log.warning(
                    "the coordinator is unreachable (%s); training continues, membership changes wait", error.why
                )
        else:
            log.error("%s", error.why)

    def _note_contact(self) -> None:
        if self._unreachable:
            self._unreachable = False
            log.info("the coordinator is reachable again")
