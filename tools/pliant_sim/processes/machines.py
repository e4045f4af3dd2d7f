"""The machines' own processes: agents with their real supervisor, coordinators with their real service."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from pliant.coordinator.service.inbox import Accepted, RenewalReply, Reply, Sender
from pliant.coordinator.service.pump import Service
from pliant.core.job.next_world import desired_workers
from pliant.core.leases import LEASE_TTL_S, RENEWALS_PER_LEASE
from pliant.core.member.signals import DrainNotice
from pliant.core.messages import Code, Rejection, Report
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import view_of
from pliant.core.supervisor import (
    Announce,
    Finish,
    GraceExpired,
    Kill,
    MachineGoing,
    Offer,
    OrdersReceived,
    ReadEvents,
    Recheck,
    SendCommand,
    Signal,
    Start,
    StartSeat,
    Supervisor,
    Terminate,
    WorkerEnded,
    supervise,
)
from pliant.wire.api import RenewAgent
from pliant_sim.processes.agent_events import AgentEvents
from pliant_sim.requests import Request, queue_request, renew_at_once
from pliant_sim.store import Crash, FlakyStore

if TYPE_CHECKING:
    from pliant_sim.live.world import Universe

PUMP_EVERY_S = 1.0
TICK_S = LEASE_TTL_S / RENEWALS_PER_LEASE
GRACE_S = 10.0


class AgentProcess:
    """One machine's agent. Its death takes its workers down."""

    def __init__(self, universe: Universe, name: AgentId, life: int, capacity: int) -> None:
        self.universe = universe
        self.id = name
        job = universe.checkers.job
        self.state = Supervisor(
            name, str(life), capacity, grace_s=GRACE_S, script_joins=job is not None and job.terms is not None
        )
        self.up = True
        self._events = AgentEvents(universe, name, universe.checkers.revision, self.feed)
        self._tick()

    def feed(self, signal: Signal) -> None:
        if not self.up:
            return
        self.state, actions = supervise(self.state, signal, self.universe.now)
        for action in actions:
            match action:
                case Start(member):
                    self.universe.after(self.universe.chance.uniform(0.3, 1.5), self._started, member)
                case Terminate(member, grace_s):
                    self.universe.feed(member, DrainNotice(grace_s, "its machine is going away"))
                case Kill(member):
                    self._kill(member)
                case SendCommand(command):
                    self.universe.ask(self.id, command)
                case ReadEvents(ended):
                    self._events.read_for(ended)
                case Announce(text):
                    self.universe.tell(text)
                case Finish():
                    self.up = False
                case StartSeat() | Offer():
                    self.universe.checkers.complain(f"{self.id} launches workers of a live job: {action}")
                case _:
                    assert_never(action)

    def _started(self, member: MemberId) -> None:
        if self.up and member in self.state.workers:
            self.universe.start_worker(member, self.id)

    def _kill(self, member: MemberId) -> None:
        worker = self.universe.workers.get(member)
        if worker is not None:
            worker.kill(-9)

    def going(self, grace_s: float) -> None:
        self.feed(MachineGoing(grace_s, "spot notice"))
        self.universe.after(grace_s, self.feed, GraceExpired())

    def ended(self, member: MemberId, code: int) -> None:
        self.feed(WorkerEnded(member, code))

    def wanted(self, signal: OrdersReceived) -> None:
        self.feed(signal)

    def kill(self) -> None:
        self.up = False
        for member in sorted(self.state.workers):
            self._kill(member)

    def _tick(self) -> None:
        if not self.up:
            return
        self.universe.after(TICK_S * self.universe.rate_of(self.id), self._tick)
        self.feed(Recheck())
        self._events.read()
        self.universe.ask(self.id, RenewAgent(self.id))


class CoordinatorProcess:
    """One coordinator: the real service over a store that may fail."""

    def __init__(self, universe: Universe, name: str) -> None:
        self.universe = universe
        self.name = name
        self.lives = 0
        self.up = False
        self.paused = False
        self.ahead_s = 0.0  # how far its monotonic clock differs from the other's
        self.wall_ahead_s = 0.0
        self.pump_due = False
        self.unread = False  # somebody's words lie in the inbox
        self.wanted: dict[AgentId, object] = {}  # what each agent was told last
        self.standing: object = None  # what that depended on
        self.store = FlakyStore(universe.store, universe.checkers.wrote, universe.apply_later, universe.faults_fired)
        self.service: Service
        self.start()

    def start(self) -> None:
        if self.up:
            return
        self.lives += 1
        self.up = True
        self.unread = False
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

    def receive(self, sender: str, request: Request) -> None:
        if self.up and not self.paused:
            reply = renew_at_once(self.service, self.universe.job, request, self.universe.now + self.ahead_s)
            if reply is not None:
                self.universe.spoken[self.name] = self.universe.now
                self._reply(replace(reply, ticket=sender))
                return
        if self.up:
            self.unread = self.unread or sender not in ("", "user")
            queue_request(self.service, self.universe.job, request, sender)
            if not self.pump_due:
                self.pump_due = True
                self.universe.after(self.universe.chance.uniform(0.001, 0.03), self._due)

    def suspect(self, sender: Sender) -> None:
        """Note that the sender closed its watch."""
        if self.up:
            self.service.suspect(self.universe.job, sender, self.universe.now + self.ahead_s)

    def _due(self) -> None:
        self.pump_due = False
        self._pump()

    def _pump(self) -> None:
        if not self.up or self.paused:
            return
        self.universe.checkers.writer = self.name
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
            self.universe.checkers.complain(f"invariant: {bug}")
        for reply in pumped.all_replies:
            self._reply(reply)
        if pumped.moved:
            self._push()

    def _reply(self, reply: Reply | RenewalReply) -> None:
        sender = str(reply.ticket)
        answer = reply.answer
        self.universe.checkers.answered(self.name, reply)
        if isinstance(answer, Accepted) and answer.view is not None and _is_report(reply):
            # Over HTTP a report is answered with what is durable, and views come by the watch alone.
            self.universe.to_worker_durable(self.name, MemberId(sender), answer.revision, answer.view.durable)
        elif isinstance(answer, Accepted) and answer.view is not None:
            self.universe.to_worker(self.name, MemberId(sender), answer.view)
        elif isinstance(answer, Rejection) and answer.code in (Code.GONE, Code.UNKNOWN):
            self.universe.refuse_worker(self.name, MemberId(sender), reply.revision)
        elif isinstance(answer, Accepted) and isinstance(reply, RenewalReply) and reply.sender.kind == "agent":
            known = self.service.job(self.universe.job)
            if known is not None:
                self._tell_agents(known[0], AgentId(reply.sender.id))

    def _push(self) -> None:
        """Tell everybody who watches: the members, and the agents how many workers to run."""
        known = self.service.job(self.universe.job)
        if known is None:
            return
        job, revision = known
        for member in job.members:
            self.universe.to_worker(self.name, member, view_of(job, revision, member))
        standing = (job.target, job.agents, job.members, job.state)
        if self.standing != standing:
            self.standing = standing
            self._tell_agents(job, None)

    def _tell_agents(self, job: Job, only: AgentId | None) -> None:
        """What is wanted of the agents: of one that asked always, of the others if it is news."""
        finished = job.state is JobState.FINISHED
        for agent, count in desired_workers(job).items():
            here = [m for m in job.members.values() if m.agent == agent]
            draining = frozenset(m.id for m in here if m.draining)
            wanted = OrdersReceived(count, frozenset(m.id for m in here), draining, job.state.ended, finished=finished)
            news = (wanted.count, wanted.draining, wanted.ended)
            if agent == only or (only is None and self.wanted.get(agent) != news):
                self.wanted[agent] = news
                self.universe.to_agent(self.name, agent, wanted)


def _is_report(reply: Reply | RenewalReply) -> bool:
    return isinstance(reply, Reply) and isinstance(reply.command, Report)
