"""A member's contact with the coordinator: joining, watching, renewing, and saying what the machine wants said.

Training needs none of it from step to step. While the coordinator is away all three threads keep trying, and the
machine repeats what matters (rule 19: leases are fresh when it is back).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pliant.client import Client
from pliant.core.leases import RENEWALS_PER_LEASE
from pliant.core.member import signals as s
from pliant.core.messages import Code, Command, Join, Report
from pliant.core.model.job import JobState
from pliant.core.model.names import MemberId
from pliant.core.model.view import View
from pliant.credentials import Token
from pliant.errors import BadInput, PliantError, Refused, Unreachable
from pliant.wire.views import PeerKey, ViewUpdate, apply_update

log = logging.getLogger(__name__)

JOIN_PATIENCE_S = 120.0
SEND_PATIENCE_S = 30.0
WATCH_S = 25.0
GOODBYE_S = 3.0
_FENCES = frozenset({Code.GONE, Code.UNKNOWN})


class JobAlreadyEnded(PliantError):
    """The job ended before this worker could join it. `code` is what it should exit with: 1 if the job failed."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


class LinkListener(Protocol):
    """Whom a contact tells what it hears: the session."""

    def feed(self, signal: s.Signal) -> None:
        """A signal for the machine."""

    def view_received(self, view: View, keys: tuple[PeerKey, ...]) -> None:
        """A new view of the job, with the keys of the generations this member is in."""

    def fenced(self, revision: int, why: str) -> None:
        """The coordinator does not know this member (any more), as of that revision."""


class CoordinatorLink:
    """Make one, `join`, then `start`; `close` says goodbye to nobody: the machine does that."""

    def __init__(self, endpoints: tuple[str, ...], token: Token, job: str, member: MemberId) -> None:
        self._job = job
        self._member = member
        self._client = Client(endpoints, token, patience_s=SEND_PATIENCE_S)
        self._watcher = Client(endpoints, token, patience_s=0.0)
        self._commands: deque[Command] = deque()
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._idle = True
        self._unreachable = False
        self._revision = 0
        self._threads: list[threading.Thread] = []

    def job_created_at(self) -> float:
        """When the job was created; a coordinator is waited for."""
        self._client.about(patience_s=JOIN_PATIENCE_S)
        return self._client.job(self._job).created_at

    def join(self, command: Join) -> None:
        """Returns once this worker is a member; raises what the coordinator has against it."""
        try:
            self._client.send(self._job, command, patience_s=JOIN_PATIENCE_S)
        except Refused as error:
            if error.code == Code.ENDED:
                failed = self._client.job(self._job).job.state is JobState.FAILED
                raise JobAlreadyEnded(error.why, code=1 if failed else 0) from error
            raise
        self._lease_ttl_s = self._client.about().lease_ttl_s

    def start(self, listener: LinkListener) -> None:
        """From now on the listener hears, and what it sends is said."""
        for act in (self._watch_loop, self._renew_loop, self._send_loop):
            thread = threading.Thread(target=act, args=(listener,), name=f"pliant-{act.__name__[1:]}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def send(self, command: Command) -> None:
        """In order; what cannot be said for a while is dropped, since the machine says again what matters.

        Of several reports only the newest matters.
        """
        with self._changed:
            if command in self._commands:
                return
            if isinstance(command, Report):
                self._commands = deque(each for each in self._commands if not isinstance(each, Report))
            self._commands.append(command)
            self._changed.notify()

    def close(self) -> None:
        """What is still to be said is said first, if that is soon possible."""
        with self._changed:
            if self._threads:
                self._changed.wait_for(lambda: self._idle and not self._commands, GOODBYE_S)
            self._closing.set()
            self._changed.notify_all()
        self._client.close()
        self._watcher.close()
        for thread in self._threads:
            thread.join(0.2)  # they are daemons: a watch may sit in the kernel a little longer

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
        while not self._closing.wait(self._lease_ttl_s / RENEWALS_PER_LEASE):
            self._guarded(listener, partial(self._renew_once, listener))
            listener.feed(s.Tick())

    def _renew_once(self, listener: LinkListener) -> None:
        done = self._client.renew(self._job, self._member, self._revision, patience_s=0.0)
        if done.durable is not None:
            listener.feed(s.Durable(done.revision, done.durable))

    def _watch_loop(self, listener: LinkListener) -> None:
        view: View | None = None
        while not self._closing.is_set():
            try:
                told = self._watcher.watch(self._job, self._member, view.revision if view else 0, WATCH_S)
                if told.delta is not None:
                    view = self._apply_change(view, told)
                    if view is None:
                        continue
                    self._revision = view.revision
                    listener.view_received(view, told.keys)
                listener.feed(s.Durable(told.revision, told.durable))
                self._note_contact()
            except PliantError as error:
                self._handle_error(listener, error)
                self._closing.wait(0.1)
            except Exception:  # why: a watch that ended would leave the member deaf until its lease runs out
                log.exception("watching the job went wrong; it is watched on")
                self._closing.wait(1.0)

    def _apply_change(self, view: View | None, told: ViewUpdate) -> View | None:
        """The view after what was told; None if it builds on what we do not have: then start from the whole."""
        try:
            return apply_update(view, told)
        except BadInput:
            self._closing.wait(0.1)
            return None

    # --------------------------------------------------------------------------------------------- misfortune

    def _guarded(self, listener: LinkListener, act: Callable[[], None]) -> None:
        try:
            act()
            self._note_contact()
        except PliantError as error:
            self._handle_error(listener, error)
        except Exception:  # why: a thread that ended would leave the member mute until its lease runs out
            log.exception("speaking to the coordinator went wrong; it is tried again")

    def _handle_error(self, listener: LinkListener, error: PliantError) -> None:
        if self._closing.is_set():
            return
        if isinstance(error, Refused) and error.code in _FENCES:
            listener.fenced(error.revision, error.why)
        elif isinstance(error, Refused):
            log.debug("refused: %s", error.why)  # about a generation that is over, most often
        elif isinstance(error, Unreachable):
            if not self._unreachable:
                self._unreachable = True
                log.warning("the coordinator is away; training goes on, changes wait (%s)", error.why)
        else:
            log.error("%s", error.why)

    def _note_contact(self) -> None:
        if self._unreachable:
            self._unreachable = False
            log.info("the coordinator is back")
