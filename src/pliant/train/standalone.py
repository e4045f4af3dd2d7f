"""Training without a coordinator: its decisions are made in this process, for a job of one member.

A script runs unchanged without any other process, and through the same code as in a larger world.
"""

from __future__ import annotations

import threading
from collections import deque

from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.member import signals as s
from pliant.core.messages import Command, Create, Join, Rejection
from pliant.core.model.job import Job, JobSpec, Target
from pliant.core.model.names import MemberId
from pliant.core.model.view import view_of
from pliant.errors import Refused
from pliant.train.coordinator_link import LinkListener

TICK_S = 1.0


class StandaloneCoordinator:
    """The coordinator link of a member that trains alone."""

    def __init__(self, job: str, member: MemberId) -> None:
        self._member = member
        self._job: Job | None = None
        self._revision = 0
        self._listener: LinkListener | None = None
        self._commands: deque[Command] = deque()
        self._deciding = False
        self._closing = threading.Event()
        self._decide(Create(job, JobSpec(1, 1, Target(1))))

    def join(self, command: Join) -> None:
        self._decide(command)

    def start(self, listener: LinkListener) -> None:
        self._listener = listener
        self._send_view()
        threading.Thread(target=self._tick, args=(listener,), name="pliant-tick", daemon=True).start()

    def _tick(self, listener: LinkListener) -> None:
        """Feed ticks, so that progress is reported now and then and reported lines are dropped."""
        while not self._closing.wait(TICK_S):
            listener.feed(s.Tick())

    def send(self, command: Command) -> None:
        """Decide the command at once, one after the other: a new view may cause the next command."""
        self._commands.append(command)
        if self._deciding:
            return
        self._deciding = True
        try:
            while self._commands:
                self._decide(self._commands.popleft())
                self._send_view()
        finally:
            self._deciding = False

    def close(self) -> None:
        """Stop the ticks."""
        self._closing.set()

    def _decide(self, command: Command) -> None:
        decision = decide(self._job, command, 0.0)
        if isinstance(decision, Rejection):
            if isinstance(command, Create | Join):
                raise Refused(decision.why, decision.code.value)
            return
        for event in decision:
            self._job = evolve(self._job, event)
        if self._job is not None:
            self._job, _ = settle_all(self._job, 0.0)
        self._revision += 1

    def _send_view(self) -> None:
        if self._listener is not None and self._job is not None:
            self._listener.feed(s.Durable(self._revision, self._job.durable))
            self._listener.view_received(view_of(self._job, self._revision, self._member), ())
