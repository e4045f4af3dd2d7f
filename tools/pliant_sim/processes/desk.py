"""The coordinators of a universe of launches: the real service, and orders that agents wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Accepted, Answer, Sender, Unavailable
from pliant.coordinator.service.pump import Service
from pliant.core.job.next_world import desired_workers
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import AgentId
from pliant.core.supervisor import OrdersReceived
from pliant.wire.api import RenewAgent
from pliant_sim.requests import Request, queue_request, renew_at_once
from pliant_sim.store import Crash, FlakyStore

if TYPE_CHECKING:
    from pliant_sim.launch.world import Launches

PUMP_EVERY_S = 1.0
WATCH_S = 25.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request on its way: from which machine, and which of its questions."""

    machine: str
    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Poll:
    """An agent waits for orders beyond a revision."""

    machine: str
    number: int
    agent: AgentId
    after: int


@dataclass(frozen=True, slots=True)
class Told:
    """Orders, with the revision they are of."""

    revision: int
    wanted: OrdersReceived


Back = Answer | Told


class Desk:
    """One coordinator's process."""

    def __init__(self, universe: Launches, name: str) -> None:
        self.universe = universe
        self.name = name
        self.lives = 0
        self.up = False
        self.paused = False
        self.ahead_s = 0.0
        self.wall_ahead_s = 0.0
        self.pump_due = False
        self.unread = False  # somebody's words lie in the inbox
        self.told: tuple[Job, int] | None = None  # what watchers are shown, a little late
        self.telling = False
        self.watching: dict[str, Poll] = {}
        self.store = FlakyStore(universe.store, universe.checks.wrote, universe.apply_later, universe.faults_fired)
        self.service: Service
        self.start()

    def start(self) -> None:
        if self.up:
            return
        self.lives += 1
        self.up = True
        self.unread = False
        self.told = None
        self.watching.clear()
        self.store.armed.clear()
        self.service = Service(self.store, f"{self.name}.{self.lives}", self._wall)
        self._beat(self.lives)

    def crash(self) -> None:
        self.up = False
        self.universe.tell(f"coordinator {self.name} is gone")

    def unpause(self) -> None:
        self.paused = False
        self._pump()

    def _wall(self) -> float:
        return 1_000_000.0 + self.universe.now + self.wall_ahead_s

    def _beat(self, life: int) -> None:
        if self.up and life == self.lives:
            self.universe.after(PUMP_EVERY_S, self._beat, life)
            self._pump()

    # ------------------------------------------------------------------------------------------- questions

    def receive(self, given: Ask | Poll) -> None:
        if not self.up:
            return
        request = RenewAgent(given.agent, given.after) if isinstance(given, Poll) else given.request
        if not self.paused:
            reply = renew_at_once(self.service, self.universe.job, request, self.universe.now + self.ahead_s)
            if reply is not None:
                self.universe.spoken[self.name] = self.universe.now
                self._reply(given, reply.answer)
                return
        self.unread = self.unread or given.machine != "user"
        queue_request(self.service, self.universe.job, request, given)
        if not self.pump_due:
            self.pump_due = True
            self.universe.after(self.universe.chance.uniform(0.001, 0.02), self._due)

    def _due(self) -> None:
        self.pump_due = False
        self._pump()

    def _pump(self) -> None:
        if not self.up or self.paused:
            return
        self.universe.checks.writer = self.name
        if self.unread:
            self.unread = False
            self.universe.spoken[self.name] = self.universe.now
        try:
            pumped = self.service.pump(self.universe.now + self.ahead_s)
        except Crash:
            self.crash()
            self.universe.after(self.universe.chance.uniform(0.5, 4.0), self.start)
            return
        for bug in pumped.bugs:
            self.universe.checks.complain(f"invariant: {bug}")
        for reply in pumped.all_replies:
            assert isinstance(reply.ticket, Ask | Poll)
            self._reply(reply.ticket, reply.answer)
        if (pumped.moved or pumped.took_over) and not self.telling:
            self.telling = True
            self.universe.after(self.universe.chance.choice([0.0, 0.0, 0.05, 0.3]), self._tell)

    def _reply(self, given: Ask | Poll, answer: Answer) -> None:
        self.universe.checks.answered(self.name, answer)
        if isinstance(given, Poll) and isinstance(answer, Accepted):
            self._watch(given)
        else:
            self.universe.back(self.name, given, answer)

    # --------------------------------------------------------------------------------------------- orders

    def _watch(self, poll: Poll) -> None:
        """As `pliant.coordinator.notifications` does: at once if there is news, or when there is, or after a while."""
        if self.told is None:
            self.told = self.service.job(self.universe.job)
        if self.told is not None and self.told[1] > poll.after:
            self._answer(poll)
            return
        self.watching[poll.machine] = poll
        self.universe.after(WATCH_S, self._enough, poll, self.lives)

    def _enough(self, poll: Poll, life: int) -> None:
        if self.up and life == self.lives and self.watching.get(poll.machine) == poll:
            del self.watching[poll.machine]
            self._answer(poll)

    def hung_up(self, machine: str, agent: AgentId) -> None:
        """That machine's connection was closed: noted if orders were waited for on it."""
        if self.up and self.watching.pop(machine, None) is not None:
            self.universe.suspected.add(agent)
            self.service.suspect(self.universe.job, Sender("agent", agent), self.universe.now + self.ahead_s)

    def _tell(self) -> None:
        if self.up and self.paused:
            self.universe.after(0.1, self._tell)
            return
        self.telling = False
        if not self.up:
            return
        self.told = self.service.job(self.universe.job)
        watching, self.watching = self.watching, {}
        for poll in watching.values():
            self._answer(poll)

    def _answer(self, poll: Poll) -> None:
        if self.told is None or not self.service.leads:
            self.universe.back(self.name, poll, Unavailable("this coordinator does not decide"))
            return
        job, revision = self.told
        self.universe.back(self.name, poll, Told(revision, orders(job, poll.agent)))


def orders(job: Job, agent: AgentId) -> OrdersReceived:
    """What an agent is told of a job."""
    here = [member for member in job.members.values() if member.agent == agent]
    known = next((each for each in job.agents if each.id == agent), None)
    return OrdersReceived(
        count=desired_workers(job).get(agent, 0),
        members=frozenset(member.id for member in here),
        draining=frozenset(member.id for member in here if member.draining),
        ended=job.state.ended,
        live=job.is_live,
        launch=None if job.is_live else job.launch,
        ready=known is not None and bool(known.ports),
        leaving=known is not None and known.draining,
        grace_s=known.grace_s if known is not None else 0.0,
        install_id=known.install_id if known is not None else "",
        run_id=known.run_id if known is not None else "",
        finished=job.state is JobState.FINISHED,
    )
