"""A member's process: a worker, the real client to the coordinator, and a connection to the harness.

Started by `schedules.fork_server`, which has imported all of this already.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue

from pliant.client import Client
from pliant.core.member import signals as s
from pliant.core.messages import Code, Command, Join
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View
from pliant.credentials import read_token
from pliant.errors import BadInput, PliantError, Refused, Unreachable
from pliant.wire.views import apply_update
from schedules import messages as w
from schedules.worker import Worker

WATCH_S = 5.0
PATIENCE_S = 30.0
GOODBYE_S = 2.0
FENCES = (Code.GONE, Code.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Place:
    """The addresses and files of a schedule's member."""

    url: str
    token: Path
    switch: str
    files: Path
    terms: Terms


def digest(view: View) -> str:
    """Return what stands for a view in a trace."""
    return blake2b(w.VIEW.encode(view), digest_size=12).hexdigest()


class Member:
    """The threads around a worker."""

    def __init__(self, member: MemberId, agent: AgentId, place: Place) -> None:
        self.id = member
        self.agent = agent
        self.place = place
        self.connection = w.Connection(place.switch, w.Hello(member, agent, os.getpid()))
        self.commands: SimpleQueue[Command | None] = SimpleQueue()
        self.worker = Worker(member, place.terms, place.files, self.connection.say, self.commands.put)
        self.worker.close_watch = self.close_watch
        self.inbox = self.worker.inbox
        self.revision = 0
        self.sent = threading.Event()  # every command was sent
        self.joined = threading.Event()
        self.away_s = 0.0
        self.watching: list[socket.socket] = []
        token = read_token(place.token)
        self.client = Client([place.url], token, patience_s=PATIENCE_S)
        self.watcher = Client([place.url], token, patience_s=0.0)

    def run(self) -> int:
        """A whole life; the exit status."""
        self.commands.put(Join(self.id, self.agent, self.place.terms))
        signal.signal(signal.SIGTERM, lambda *_: self.inbox.put(s.DrainNotice(w.GRACE_S, "SIGTERM")))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _record_sockets("watch", self.watching)
        for each in (self.hear, self.send, self.watch, self.renew):
            threading.Thread(target=self.guarded, args=(each,), name=each.__name__, daemon=True).start()
        left = self.worker.run()
        self.connection.close()
        self.commands.put(None)
        self.sent.wait(GOODBYE_S)
        return left.code

    def guarded(self, act: Callable[[], None]) -> None:
        """A thread that ends by an exception is never the member's fault alone."""
        try:
            act()
        except Exception:  # why: whatever it is, the harness must hear of it
            self.trouble(f"its thread {act.__name__} ended: {traceback.format_exc()}")

    def hear(self) -> None:
        with suppress(OSError):
            for message in self.connection.hear():
                self.inbox.put(message)
        if self.worker.left is None:
            os._exit(1)  # no harness, no schedule

    def trouble(self, what: str) -> None:
        self.inbox.put(w.Trouble(f"{self.id}: {what}"))

    # --------------------------------------------------------------------------------- to the coordinator

    def send(self) -> None:
        """Commands in order, each until there is an answer."""
        while (command := self.commands.get()) is not None:
            sent = time.time()
            try:
                done = self.client.send(w.JOB, command)
            except Refused as error:
                self.was_refused(error, command)
                continue
            except Unreachable:
                if isinstance(command, Join):
                    self.commands.put(command)
                continue  # the machine says again whatever matters
            except PliantError as error:
                self.trouble(f"{type(command).__name__} was answered with {type(error).__name__}: {error.why}")
                continue
            self.inbox.put(w.Acked(w.COMMANDS.encode(command).decode(), done.revision))
            if done.durable is not None:
                self.inbox.put(s.Durable(done.revision, done.durable))
            self.inbox.put(w.Heard(sent, time.time()))
            if isinstance(command, Join):
                self.joined.set()
        self.sent.set()

    def was_refused(self, error: Refused, command: Command | None = None) -> None:
        if error.code == Code.SET_BACK:
            self.trouble(f"told that history was lost: {error.why}")
        if isinstance(command, Join):
            self.never_in(0 if error.code == Code.ENDED else w.FENCED, error.why)
        if error.code in FENCES:
            self.inbox.put(lambda: self.fenced(error.revision))

    def never_in(self, code: int, why: str) -> None:
        self.connection.say(w.Leaves(code, why, False, not code, None))
        self.connection.close()
        os._exit(code)

    def fenced(self, revision: int) -> None:
        if self.worker.machine.view is None:
            self.never_in(w.FENCED, "lost before it was told anything")
        self.worker.refused(revision)

    def renew(self) -> None:
        self.joined.wait()
        pause = threading.Event()
        while not pause.wait(w.LEASE_TTL_S / 3):
            sent = time.time()
            try:
                done = self.client.renew(w.JOB, self.id, self.revision, patience_s=0.0)
                if done.durable is not None:
                    self.inbox.put(s.Durable(done.revision, done.durable))
            except Refused as error:
                self.was_refused(error)
            except Unreachable:
                pass
            except PliantError as error:
                self.trouble(f"a renewal was answered with {type(error).__name__}: {error.why}")
            else:
                self.inbox.put(w.Heard(sent, time.time()))
            self.inbox.put(s.Tick())

    # -------------------------------------------------------------------------------------------- watching

    def watch(self) -> None:
        self.joined.wait()
        view: View | None = None
        pause = threading.Event()
        while True:
            if self.away_s:
                away_s, self.away_s = self.away_s, 0.0
                pause.wait(away_s)
            sent = time.time()
            try:
                told = self.watcher.watch(w.JOB, self.id, view.revision if view else 0, WATCH_S)
                if told.delta is not None:
                    view = apply_update(view, told)
                    self.revision = view.revision
                    self.inbox.put(w.Viewed(view.revision, digest(view)))
                    self.inbox.put(s.ViewReceived(view))
                self.inbox.put(s.Durable(told.revision, told.durable))
                self.inbox.put(w.Heard(sent, time.time()))
            except Refused as error:
                self.was_refused(error)
                pause.wait(0.1)
            except Unreachable:
                pause.wait(0.1)
            except BadInput as error:
                self.trouble(f"a change could not be applied: {error.why}")
                view = None
                pause.wait(0.1)

    def close_watch(self, away_s: float) -> None:
        """As a cut in the network does it: the connection is gone, the process is not."""
        self.away_s = away_s
        for each in self.watching:
            with suppress(OSError):  # it was closed before
                each.shutdown(socket.SHUT_RDWR)
        self.watching.clear()


def _record_sockets(thread: str, into: list[socket.socket]) -> None:
    """Remember the connections that one thread makes, so that they can be cut under it."""
    connect = socket.create_connection

    def recording(*args: object, **named: object) -> socket.socket:
        made: socket.socket = connect(*args, **named)  # type: ignore[arg-type]  # whatever it was called with
        if threading.current_thread().name == thread:
            into.append(made)
        return made

    socket.create_connection = recording


def live(member: MemberId, agent: AgentId, place: Place) -> int:
    """Call in a process of its own; the exit status it is to end with."""
    return Member(member, agent, place).run()
