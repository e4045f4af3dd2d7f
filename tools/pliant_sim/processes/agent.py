"""A simulated agent: the real supervisor, and a connection to the coordinators that may fail."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol, assert_never

from pliant.coordinator.service.inbox import Accepted
from pliant.core.hangs import WorkerSample
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE
from pliant.core.messages import AgentReady, Rejection
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import Supervisor, agent_join, supervise
from pliant.core.supervisor.signals import (
    Action,
    Announce,
    Finish,
    GraceExpired,
    Kill,
    MachineGoing,
    Offer,
    ReadEvents,
    Recheck,
    SendCommand,
    Signal,
    Start,
    StartSeat,
    StopOverdue,
    StopWithin,
    Terminate,
    WorkerEnded,
    WorkersSampled,
)
from pliant.wire.api import RenewAgent
from pliant_sim.processes.agent_events import AgentEvents
from pliant_sim.processes.coordinator import AgentPoll, Ask, Back, OrdersReply
from pliant_sim.requests import Request

if TYPE_CHECKING:
    from pliant_sim.client import SimulatedClient
    from pliant_sim.simulation import Simulation

TICK_S = LEASE_TTL_S / RENEWALS_PER_LEASE
STOP_S = 4.0
STOPS_S = 0.5
COMMAND_PATIENCE_S = 5.0  # an unanswered command is dropped after this time
JOIN_PATIENCE_S = 12.0
RETRY_S = 0.7
NO_REPLY, FROM_WORKER = -1, -2  # numbers of requests: the answer is ignored, or goes to one of the workers


class WorkerProcess(Protocol):
    """A worker's process, as its agent sees it."""

    @property
    def up(self) -> bool: ...

    @property
    def is_stopped(self) -> bool:
        """The system reports it as stopped (SIGSTOP)."""

    def terminate(self, grace_s: float) -> None:
        """Send it SIGTERM."""

    def end(self, code: int) -> None:
        """End it, and let its agent see that."""


class SimulatedAgent:
    """One run of an agent on one machine. Its death ends its workers."""

    def __init__(self, sim: Simulation, machine: str, agent: AgentId, install_id: str) -> None:
        self.sim = sim
        self.machine = machine
        sim.lives += 1
        self.state = Supervisor(
            agent,
            str(sim.lives),
            sim.sizes.capacity,
            f"10.0.0.{machine[1:]}",
            install_id,
            stop_s=STOP_S,
            grace_s=sim.sizes.grace_s,
            max_restarts=sim.sizes.max_restarts,
            script_joins=sim.script_joins,
        )
        self.up = True
        self.paused = False
        self.known = False  # a coordinator accepted its join
        self.revision = 0
        self.processes: dict[MemberId, WorkerProcess] = {}
        self.not_started: set[MemberId] = set()  # workers that were ended before their process ran
        self._life = sim.lives  # the number of its queued requests: answers to those of an earlier run are ignored
        self._outbox: deque[Request] = deque()
        self._inbox: list[Signal] = []  # signals that arrived while the process was stopped
        self._polled = 0
        self._polled_at = sim.now
        self._began = sim.now
        self._events = AgentEvents(sim, machine, sim.store_checks.revision, self.feed)
        self._join()

    # ---------------------------------------------------------------------------------------- the coordinator

    def _join(self) -> None:
        if self.up and not self.known:
            if self.sim.now - self._began > JOIN_PATIENCE_S:
                self.exit("no coordinator accepted it")
                return
            self.sim.ask(Ask(self.machine, 0, agent_join(self.state)))
            self.sim.after(RETRY_S, self._join)

    def answered(self, given: Ask | AgentPoll, answer: Back) -> None:
        """Take an answer, unless it is to a request that was given up."""
        if not self.up:
            return
        if isinstance(given, Ask) and self._polled and self._client.known.moved_at > self._polled_at:
            self._poll_again(self._polled)
        if isinstance(given, AgentPoll):
            if given.number == self._polled:
                self._poll_answered(answer)
            return
        if given.number == 0:
            if isinstance(answer, Accepted) and not self.known:
                self.known = True
                self._poll()
                self._tick()
            return
        if given.number == self._life:
            self._sent()

    @property
    def _client(self) -> SimulatedClient:
        return self.sim.client_of(self.machine)

    def call_failed(self, given: Ask | AgentPoll) -> None:
        """Poll again, or drop a request that no coordinator answered. What matters of them is sent again anyway."""
        if isinstance(given, AgentPoll):
            self.sim.after(0.2, self._poll_again, given.number)
        elif given.number == self._life and self.up:
            self.sim.tell(f"{self.machine} could not send {type(given.request).__name__}")
            self._sent()

    def send(self, request: Request) -> None:
        """Queue a request. They are sent one after the other, as the agent's one sending thread does."""
        self._outbox.append(request)
        if len(self._outbox) == 1:
            self._send_next()

    def _send_next(self) -> None:
        self.sim.ask(Ask(self.machine, self._life, self._outbox[0]), COMMAND_PATIENCE_S)

    def _sent(self) -> None:
        self._outbox.popleft()
        if self._outbox:
            self._send_next()

    def _poll(self) -> None:
        if self.up:
            self._polled += 1
            self._polled_at = self.sim.now
            self.sim.ask(AgentPoll(self.machine, self._polled, self.state.id, self.revision))

    def lose_connection(self) -> None:
        """Close its connection. It polls again as soon as it runs and sees that."""
        self.sim.close_connections(self.machine, self.state.id)
        self.sim.after(0.25, self._poll_again, self._polled)

    def _poll_again(self, number: int) -> None:
        if number == self._polled and self.paused:
            self.sim.after(0.5, self._poll_again, number)
        elif number == self._polled:
            self._poll()

    def _poll_answered(self, answer: Back) -> None:
        self._polled += 1  # that poll is over
        if isinstance(answer, OrdersReply) and answer.revision >= self.revision:
            self.revision = answer.revision
            self.feed(answer.orders)
            self._poll()
            return
        if isinstance(answer, Rejection):
            self.feed(Recheck(refused=True))
        self.sim.after(0.2, self._poll)

    def _tick(self) -> None:
        if self.up:
            self.sim.after(TICK_S * self.sim.tick_rate(self.machine), self._tick)
            self.feed(Recheck())
            if not self.paused:
                self.look_for_stops()
                self._events.read()
                self.sim.ask(Ask(self.machine, NO_REPLY, RenewAgent(self.state.id, self.revision)), TICK_S)

    def look_for_stops(self) -> None:
        """Sample all workers while one of them is stopped. A worker that runs must never be killed for that."""
        running = {member: process for member, process in self.processes.items() if process.up}
        if not self.up or self.paused or not any(process.is_stopped for process in running.values()):
            return
        now = self.sim.now
        samples = (
            WorkerSample(member, now, *((0.0, 0, "T") if process.is_stopped else (now, 0, "S")))
            for member, process in running.items()
        )
        self.feed(WorkersSampled(tuple(samples)))
        self.sim.after(STOPS_S, self.look_for_stops)

    # ----------------------------------------------------------------------------------------- the supervisor

    def feed(self, signal: Signal) -> None:
        """Let the supervisor decide, and carry its actions out."""
        if not self.up:
            return
        if self.paused:
            self._inbox.append(signal)
            return
        self.state, actions = supervise(self.state, signal, self.sim.now)
        self.sim.store_checks.agent_decided(self, actions)
        for action in actions:
            self._perform(action)

    def _perform(self, action: Action) -> None:
        match action:
            case Start(member):
                self.sim.start_worker(self, member)
            case StartSeat(launch, member):
                self.sim.start_seat(self, launch, member)
            case Offer(generation):
                self.send(AgentReady(self.state.id, generation, self._free_ports()))
            case Terminate(member, grace_s):
                self._terminate(member, grace_s)
                self.sim.after(grace_s + 1.0, self.feed, StopOverdue(member))
            case StopWithin(member, grace_s):
                self.sim.after(grace_s + 1.0, self.feed, StopOverdue(member))
            case Kill(member):
                self._kill(member)
            case SendCommand(command):
                self.send(command)
            case ReadEvents(ended):
                self._events.read_for(ended)
            case Announce(text):
                self.sim.tell(text)
            case Finish():
                self.exit("it has nothing more to do")
            case _:
                assert_never(action)

    def _free_ports(self) -> tuple[int, ...]:
        first = self.sim.chance.randrange(20000, 32000)
        return tuple(range(first, first + self.state.capacity))

    @property
    def running(self) -> list[MemberId]:
        """The workers whose processes run, in the order of their start."""
        return [member for member, process in self.processes.items() if process.up]

    def _terminate(self, member: MemberId, grace_s: float) -> None:
        if member in self.processes:
            self.processes[member].terminate(grace_s)
        else:
            self._end_before_start(member, -15)  # it has no handler for the signal yet

    def _kill(self, member: MemberId) -> None:
        if member in self.processes:
            self.processes[member].end(-9)
        else:
            self._end_before_start(member, -9)

    def _end_before_start(self, member: MemberId, code: int) -> None:
        if member not in self.not_started:
            self.not_started.add(member)
            self.worker_ended(member, code)

    def worker_ended(self, member: MemberId, code: int) -> None:
        """Let the agent see, a moment later, that a worker's process ended."""
        self.sim.after(self.sim.chance.uniform(0.002, 0.02), self.feed, WorkerEnded(member, code))

    # ------------------------------------------------------------------------------------------------ its end

    def machine_going(self, grace_s: float, *, interrupted: bool = False) -> None:
        """Deliver a spot notice, or Ctrl-C to `pliant run`."""
        self.feed(MachineGoing(grace_s, "Ctrl-C" if interrupted else "spot notice", interrupted))
        self.sim.after(grace_s, self.feed, GraceExpired())

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            inbox, self._inbox = self._inbox, []
            for signal in inbox:
                self.feed(signal)

    def kill(self) -> None:
        """End it with SIGKILL, and its workers with it."""
        self.up = False
        self.sim.tell(f"the agent on {self.machine} was killed")
        self.sim.close_connections(self.machine, self.state.id)
        for process in list(self.processes.values()):
            process.end(-9)

    def exit(self, why: str) -> None:
        if self.up:
            # The real agent also goes on sending for a while before it exits.
            for request in self._outbox:
                self.sim.ask(Ask(self.machine, NO_REPLY, request))
            self.up = False
            self.sim.tell(f"the agent on {self.machine} exited: {why}")
