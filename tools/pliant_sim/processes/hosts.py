"""Machines of a universe of launches: an agent with its real supervisor, and toy workers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from pliant.coordinator.service.inbox import Accepted, Unavailable
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE
from pliant.core.messages import AgentReady, Code, Join, Rejection
from pliant.core.model.names import AgentId, MemberId
from pliant.core.supervisor import (
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
    Supervisor,
    Terminate,
    WorkerEnded,
    agent_join,
    supervise,
)
from pliant.wire.api import Renew, RenewAgent
from pliant_sim.processes.agent_events import AgentEvents
from pliant_sim.processes.desk import Ask, Back, Poll, Told
from pliant_sim.requests import Request

if TYPE_CHECKING:
    from pliant_sim.launch.world import Launches

TICK_S = LEASE_TTL_S / RENEWALS_PER_LEASE
STOP_S = 4.0
PATIENCE_S = 5.0  # a word that could not be said for so long is dropped
INTRODUCED_S = 12.0
WATCH_PATIENCE_S = 27.0
AGAIN_S = 0.7
UNHEARD, WORKERS = -1, -2  # numbers of questions: the answer is nobody's, or one of the workers'
GRACE_S = 5.0


@dataclass(eq=False, slots=True)
class Toy:
    """One worker's process. `generation` is 0 where it was started for a live job."""

    id: MemberId
    host: Host
    generation: int
    rank: int
    manner: str  # what it does on SIGTERM: "dies", "ends" well, or "ignores" it
    up: bool = True
    running: bool = False  # it has imported what it needs
    joined: bool = False
    code: int | None = None


class Host:
    """One run of an agent on one machine. Its death takes its workers down."""

    def __init__(self, universe: Launches, machine: str, agent: AgentId, home: str, capacity: int) -> None:
        self.universe = universe
        self.machine = machine
        universe.lives += 1
        self.state = Supervisor(
            agent,
            str(universe.lives),
            capacity,
            f"10.0.0.{machine[1:]}",
            home,
            stop_s=STOP_S,
            grace_s=GRACE_S,
            script_joins=universe.joining,
        )
        self._events = AgentEvents(universe, machine, universe.checks.revision, self.feed)
        self.up = True
        self.paused = False
        self.known = False  # it was introduced
        self.revision = 0
        self.toys: dict[MemberId, Toy] = {}
        self._outbox: deque[tuple[int, Request, float]] = deque()
        self._inbox: list[Signal] = []  # what came while it stood still
        self._asked = 0
        self._polled = 0
        self._began = universe.now
        self._introduce()

    # ------------------------------------------------------------------------------------------- talking

    def _introduce(self) -> None:
        if self.up and not self.known:
            if self.universe.now - self._began > INTRODUCED_S:
                self.gone("nobody wants it")
                return
            self.universe.ask(Ask(self.machine, 0, agent_join(self.state)))
            self.universe.after(AGAIN_S, self._introduce)

    def heard(self, given: Ask | Poll, answer: Back) -> None:
        """An answer came. One to a question that was given up is not heard."""
        if not self.up:
            return
        if isinstance(given, Poll):
            if given.number == self._polled:
                self._told(answer)
            return
        if given.number == 0:
            if isinstance(answer, Accepted) and not self.known:
                self.known = True
                self._poll()
                self._tick()
            return
        if isinstance(answer, Unavailable):
            return  # it is asked again
        if self._outbox and self._outbox[0][0] == given.number:
            self._outbox.popleft()
            self._send()

    def say(self, request: Request) -> None:
        """One after the other, as the agent's one thread does that sends."""
        self._asked += 1
        self._outbox.append((self._asked, request, self.universe.now))
        if len(self._outbox) == 1:
            self._send()

    def _send(self) -> None:
        if self._outbox:
            number, request, _ = self._outbox[0]
            self._outbox[0] = (number, request, self.universe.now)
            self._try(number)

    def _try(self, number: int) -> None:
        """Again and again, until it is answered or patience is lost."""
        if not self.up or not self._outbox or self._outbox[0][0] != number:
            return
        _, request, since = self._outbox[0]
        if self.universe.now - since > PATIENCE_S:
            self.universe.tell(f"{self.machine} could not say {type(request).__name__}")
            self._outbox.popleft()
            self._send()
            return
        self.universe.ask(Ask(self.machine, number, request))
        self.universe.after(AGAIN_S, self._try, number)

    def _poll(self) -> None:
        if self.up:
            self._polled += 1
            self.universe.ask(Poll(self.machine, self._polled, self.state.id, self.revision))
            self.universe.after(WATCH_PATIENCE_S, self._poll_again, self._polled)

    def lose_connection(self) -> None:
        """It asks again as soon as it sees that; if it stands still, not before it goes on."""
        self.universe.hang_up(self.machine, self.state.id)
        self.universe.after(0.25, self._poll_again, self._polled)

    def _poll_again(self, number: int) -> None:
        if number == self._polled and self.paused:
            self.universe.after(0.5, self._poll_again, number)
        elif number == self._polled:
            self._poll()

    def _told(self, answer: Back) -> None:
        self._polled += 1  # that one is over
        if isinstance(answer, Told) and answer.revision >= self.revision:
            self.revision = answer.revision
            self.feed(answer.wanted)
            self.universe.after(0.001, self._poll)
            return
        if isinstance(answer, Rejection):
            self.feed(Recheck())
        self.universe.after(0.2, self._poll)

    def _tick(self) -> None:
        if self.up:
            self.universe.after(TICK_S, self._tick)
            self.feed(Recheck())
            if not self.paused:
                self._events.read()
                self.universe.ask(Ask(self.machine, UNHEARD, RenewAgent(self.state.id, self.revision)))

    # ------------------------------------------------------------------------------------------- deciding

    def feed(self, signal: Signal) -> None:
        if not self.up:
            return
        if self.paused:
            self._inbox.append(signal)
            return
        self.state, actions = supervise(self.state, signal, self.universe.now)
        self.universe.checks.reacted(self, actions)
        for action in actions:
            match action:
                case Start(member):
                    self._start(member, 0, 0)
                case StartSeat(launch, member):
                    rank = next(rank for rank, seat in enumerate(launch.seats) if seat.member == member)
                    self.universe.checks.starts(self, launch, member, rank)
                    self._start(member, launch.number, rank)
                case Offer(generation):
                    self.say(AgentReady(self.state.id, generation, self._free_ports()))
                case Terminate(member, grace_s):
                    self._terminate(member)
                    self.universe.after(grace_s + 1.0, self.feed, StopOverdue(member))
                case Kill(member):
                    self.end(self.toys[member], -9)
                case ReadEvents(ended):
                    self._events.read_for(ended)
                case Announce(text):
                    self.universe.tell(text)
                case SendCommand(command):
                    self.say(command)
                case Finish():
                    self.gone("it has nothing more to do")
                case _:
                    assert_never(action)

    def _free_ports(self) -> tuple[int, ...]:
        first = self.universe.chance.randrange(20000, 32000)
        return tuple(range(first, first + self.state.capacity))

    # -------------------------------------------------------------------------------------------- workers

    def _start(self, member: MemberId, generation: int, rank: int) -> None:
        chance = self.universe.chance
        manner = chance.choices(["dies", "ends", "ignores"], [6, 2, 1])[0]
        toy = self.toys[member] = Toy(member, self, generation, rank, manner)
        self.universe.checks.started(toy)
        self.universe.after(chance.uniform(0.1, 0.8), self._imported, toy)

    def _imported(self, toy: Toy) -> None:
        if toy.up:
            toy.running = True
            self.universe.trainer.came(toy)
            if self.universe.joining:
                self.join(toy)

    def join(self, toy: Toy) -> None:
        """The worker makes itself a member: from then on it goes on through every change."""
        if toy.up and not toy.joined:
            toy.joined = True
            self._word(Join(toy.id, self.state.id, self.universe.terms))
            self.universe.after(TICK_S, self._renew, toy)

    def _renew(self, toy: Toy) -> None:
        if toy.up:
            self.universe.after(TICK_S, self._renew, toy)
            self._word(Renew(toy.id))

    def _word(self, request: Request) -> None:
        self.universe.ask(Ask(self.machine, WORKERS, request))

    def answered_worker(self, request: Request, answer: Back) -> None:
        """To a member itself: one that is not known any more ends, and so does one whose job has ended."""
        toy = self.toys.get(request.member) if isinstance(request, Renew) else None
        if toy is not None:
            if isinstance(answer, Rejection) and answer.code is Code.GONE:
                self.end(toy, 75)
            elif isinstance(answer, Accepted) and answer.view is not None and answer.view.state.ended:
                self.end(toy, 0)
        elif isinstance(request, Join) and isinstance(answer, Unavailable):
            self.universe.after(AGAIN_S, self._word, request)

    def _terminate(self, member: MemberId) -> None:
        toy = self.toys[member]
        if toy.manner != "ignores" and toy.up:
            code = 0 if toy.manner == "ends" else -15
            self.universe.after(self.universe.chance.uniform(0.02, 1.0), self.end, toy, code)

    def end(self, toy: Toy, code: int) -> None:
        """The process ends; its agent sees it a moment later."""
        if not toy.up:
            return
        toy.up = toy.running = False
        toy.code = code
        self.universe.tell(f"{toy.id} on {self.machine} ended with {code}")
        self.universe.trainer.went(toy)
        self.universe.after(self.universe.chance.uniform(0.002, 0.02), self.feed, WorkerEnded(toy.id, code))

    # ---------------------------------------------------------------------------------------------- going

    def going(self, grace_s: float) -> None:
        self.feed(MachineGoing(grace_s, "spot notice"))
        self.universe.after(grace_s, self.feed, GraceExpired())

    def unpause(self) -> None:
        if self.paused:
            self.paused = False
            inbox, self._inbox = self._inbox, []
            for signal in inbox:
                self.feed(signal)

    def kill(self) -> None:
        """With -9: the workers go with it, and nobody hears of anything."""
        self.up = False
        self.universe.tell(f"the agent on {self.machine} was killed")
        self.universe.hang_up(self.machine, self.state.id)
        for toy in list(self.toys.values()):
            self.end(toy, -9)

    def gone(self, why: str) -> None:
        if self.up:
            # What is left to say is said for a while yet, as `Dialogue.close` does.
            for _, request, _ in self._outbox:
                self.universe.ask(Ask(self.machine, UNHEARD, request))
            self.up = False
            self.universe.tell(f"the agent on {self.machine} is gone: {why}")
