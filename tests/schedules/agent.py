"""An agent's process: the real supervisor with the real client. `python -m schedules.agent SETTINGS`.

SIGTERM says that its machine is going away. Killed, it takes its members with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import assert_never

from pliant.client import Client
from pliant.core.messages import Command
from pliant.core.model.job import Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import Supervisor, supervise
from pliant.core.supervisor import signals as v
from pliant.credentials import read_token
from pliant.errors import PliantError, Refused, Unreachable
from pliant.wire.codec import Body
from schedules import messages as w
from schedules.fork_server import open_fork_server
from schedules.member import PATIENCE_S, WATCH_S, Place

AFTER_THE_END_S = 8.0  # how long a worker may take to leave a job that is over
GOODBYE_S = 2.0


@dataclass(frozen=True, slots=True)
class Settings:
    """The arguments with which the harness starts an agent."""

    agent: AgentId
    life: str
    capacity: int
    url: str
    token: str
    switch: str
    files: str
    terms: Terms


SETTINGS = Body(Settings)


class Agent:
    """The threads around a supervisor; it runs on the main one."""

    def __init__(self, settings: Settings) -> None:
        place = Place(settings.url, Path(settings.token), settings.switch, Path(settings.files), settings.terms)
        self.fork_server = open_fork_server(settings.agent, place)
        self.connection = w.Connection(settings.switch, w.Hello(MemberId(""), settings.agent, os.getpid()))
        self.state = Supervisor(settings.agent, settings.life, settings.capacity)
        self.client = Client([settings.url], read_token(place.token), patience_s=PATIENCE_S)
        self.inbox: SimpleQueue[v.Signal] = SimpleQueue()
        self.commands: SimpleQueue[Command | None] = SimpleQueue()
        self.sent = threading.Event()
        self.revision = 0
        self.waits_for_the_end = False
        self.done = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self._going())
        for each in (self.listen, self.send, self.watch, self.renew, self.hear):
            threading.Thread(target=each, daemon=True).start()
        self.inbox.put(v.Recheck())
        while not self.done:
            self._feed(self.inbox.get())
        self.commands.put(None)
        self.sent.wait(GOODBYE_S)

    def _going(self) -> None:
        self.inbox.put(v.MachineGoing(w.GRACE_S, "spot notice"))
        self._too_late_after(w.GRACE_S + 1.0)

    def _too_late_after(self, delay_s: float) -> None:
        timer = threading.Timer(delay_s, self.inbox.put, (v.GraceExpired(),))
        timer.daemon = True
        timer.start()

    def _feed(self, signal: v.Signal) -> None:
        self.state, actions = supervise(self.state, signal, time.monotonic())
        if self.state.ended and not self.waits_for_the_end:
            self.waits_for_the_end = True
            self._too_late_after(AFTER_THE_END_S)
        for action in actions:
            match action:
                case v.Start(member):
                    self.fork_server.send(f"start {member}".encode())
                case v.Terminate(member):
                    self.fork_server.send(f"term {member}".encode())
                case v.Kill(member):
                    if self.state.leaving:
                        self.connection.say(w.Kills(member))
                    else:
                        self.connection.say(w.Trouble(f"liveness: {member} does not leave a job that is over"))
                    self.fork_server.send(f"kill {member}".encode())
                case v.StopWithin():
                    pass  # this agent kills no worker before the job is over
                case v.SendCommand(command):
                    self.commands.put(command)
                case v.Finish():
                    self.done = True
                case v.ReadEvents(ended):
                    self.inbox.put(replace(ended, events_read=False))  # this agent follows no events
                case v.Announce():
                    pass
                case v.StartSeat() | v.Offer():
                    self.connection.say(w.Trouble(f"{action} launches workers of a live job"))
                case _:
                    assert_never(action)

    # --------------------------------------------------------------------------------------------- threads

    def hear(self) -> None:
        for _ in self.connection.hear():
            pass
        os._exit(1)  # no harness, no schedule

    def listen(self) -> None:
        while words := self.fork_server.recv(1000).decode().split():
            member, code = MemberId(words[1]), int(words[2])
            self.connection.say(w.ChildEnded(member, code))
            self.inbox.put(v.WorkerEnded(member, code))
        os._exit(1)

    def send(self) -> None:
        while (command := self.commands.get()) is not None:
            try:
                done = self.client.send(w.JOB, command)
            except (Refused, Unreachable):
                continue  # the supervisor says again whatever matters
            except PliantError as error:
                self.connection.say(w.Trouble(f"{self.state.id}: {type(command).__name__}: {error.why}"))
                continue
            self.connection.say(w.Acked(w.COMMANDS.encode(command).decode(), done.revision))
        self.sent.set()

    def watch(self) -> None:
        pause = threading.Event()
        while True:
            try:
                orders = self.client.orders(w.JOB, self.state.id, self.revision, WATCH_S, patience_s=0.0)
            except (Refused, Unreachable):
                pause.wait(0.1)
                continue
            self.revision = orders.revision
            self.inbox.put(v.OrdersReceived(orders.workers, orders.members, orders.draining, orders.state.ended))
            if orders.state.ended:
                pause.wait(0.2)

    def renew(self) -> None:
        pause = threading.Event()
        while not pause.wait(w.LEASE_TTL_S / 3):
            self.inbox.put(v.Recheck())
            with suppress(Refused, Unreachable):  # it joins again, all the time
                self.client.renew_agent(w.JOB, self.state.id, self.revision, patience_s=0.0)


def main() -> None:
    """The program."""
    w.die_with_parent()
    Agent(SETTINGS.decode(sys.argv[1].encode())).run()
    os._exit(0)


if __name__ == "__main__":
    main()
