"""A simulated coordinator: the real service over a store that may fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pliant.coordinator.notifications import changes_orders, is_news, savers_of, standing
from pliant.coordinator.service.inbox import Accepted, Answer, Pumped, Sender, Unavailable
from pliant.coordinator.service.pump import Service
from pliant.coordinator.service.steps import CallResult, Steps, StoreCall, make_call
from pliant.core.job.assignment import desired_workers, permitted_starts, workers_on
from pliant.core.model.job import Job, JobState
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.view import View, shared_view, view_for
from pliant.core.supervisor.signals import OrdersReceived
from pliant.wire.api import Renew, RenewAgent
from pliant_sim.requests import Request, queue_request, renew_at_once, sender_of
from pliant_sim.store import CoordinatorCrash, FlakyStore

if TYPE_CHECKING:
    from pliant_sim.simulation import Simulation

PUMP_EVERY_S = 1.0
SLOW_S = 0.8  # the longest time of a slow store's call
WATCH_S = 25.0


class Ask(NamedTuple):
    """A request in transit; `number` tells the sender which of its requests was answered."""

    sender: str
    number: int
    request: Request
    attempt: int = 0  # of the sender's client


class AgentPoll(NamedTuple):
    """An agent's long poll for orders after a revision."""

    sender: str
    number: int
    agent: AgentId
    after: int
    attempt: int = 0


class MemberWatch(NamedTuple):
    """A member's watch on one connection: the view after a revision comes there, and nowhere else."""

    sender: str
    number: int
    after: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class OrdersReply:
    """The answer to a poll: orders, and the revision they are of."""

    revision: int
    orders: OrdersReceived


@dataclass(frozen=True, slots=True)
class ViewReply:
    """The answer to a watch."""

    revision: int
    view: View


Given = Ask | AgentPoll | MemberWatch
Back = Answer | OrdersReply | ViewReply


class SimulatedCoordinator:
    """One coordinator's process; it restarts after a crash."""

    def __init__(self, sim: Simulation, name: str) -> None:
        self.sim = sim
        self.name = name
        self.lives = 0
        self.up = False
        self.paused = False
        self.lost = False  # its machine is gone, silently: while it is down, connections are not refused
        self.ahead_s = 0.0  # how far its monotonic clock is ahead of the others'
        self.wall_ahead_s = 0.0
        self._pump_due = False
        self._unread = False  # a worker's or agent's request lies in the inbox
        self._led: bool | None = None  # at the end of the last pump; None before the first
        self._shown: tuple[Job, int] | None = None  # the state that polls are answered with, a little late
        self._answer_due = False
        self._polls: dict[str, AgentPoll] = {}
        self._watches: dict[str, MemberWatch] = {}
        self._moved: tuple[Job, int] | None = None  # the newest state with more than progress, which watches were shown
        self._view: View | None = None  # of it
        self._waiting: deque[tuple[float, AgentPoll | MemberWatch]] = deque()  # with the time at which it is answered
        self.slow = False  # each write takes seconds, in which it does nothing else
        self.slow_store = False  # its calls take time, and anything may happen meanwhile
        self._steps: Steps[Pumped] | None = None  # the pump that waits for a slow store
        self._pump_again = False
        self.store = FlakyStore(sim.store, sim.store_checks.wrote, sim.apply_later, sim.faults_fired, wrote=self._wrote)
        self.service: Service
        self.start()

    def start(self) -> None:
        if self.up:
            return
        self.lives += 1
        self.up = True
        self.lost = False
        self._unread = False
        self._led = None
        self._shown = self._moved = self._view = None
        self._polls.clear()
        self._watches.clear()
        self._waiting.clear()
        self._steps = None
        self.store.armed.clear()
        self.service = Service(self.store, f"{self.name}.{self.lives}", self._wall)
        self._pump_regularly(self.lives)

    def crash(self, *, silently: bool = False) -> None:
        """End its process; with its machine, if silently: then no connection is reset."""
        self.up = False
        self.lost = silently
        self.sim.tell(f"coordinator {self.name} is gone{', silently' if silently else ''}")
        if not silently:
            self.sim.reset_connections(self.name)

    @property
    def refuses(self) -> bool:
        """True if a connection to it is refused at once."""
        return not self.up and not self.lost

    def resume(self) -> None:
        self.paused = False
        self._pump()

    def _wrote(self) -> None:
        if self.slow:
            self.paused = True
            self.sim.after(self.sim.chance.uniform(0.5, 2.0), self.resume)

    @property
    def now(self) -> float:
        return self.sim.now + self.ahead_s

    def _wall(self) -> float:
        return 1_000_000.0 + self.sim.now + self.wall_ahead_s

    def _pump_regularly(self, life: int) -> None:
        if self.up and life == self.lives:
            self.sim.after(PUMP_EVERY_S, self._pump_regularly, life)
            self._answer_old()
            self._pump()

    # -------------------------------------------------------------------------------------------- requests

    def receive(self, given: Given) -> None:
        if not self.up:
            return
        request = given.request if isinstance(given, Ask) else _renewal_by(given)
        if not self.paused:
            reply = renew_at_once(self.service, self.sim.job, request, self.now)
            if reply is not None:
                self.sim.last_contact[self.name] = self.sim.now
                self._reply(given, reply.answer, reply.revision)
                return
            if self._led is False and not self.service.leads:
                self._refuse(given, request)
                return
        self._unread = self._unread or given.sender != "user"
        queue_request(self.service, self.sim.job, request, given)
        if not self._pump_due:
            self._pump_due = True
            self.sim.after(self.sim.chance.uniform(0.001, 0.02), self._pump_once)

    def _refuse(self, given: Given, request: Request) -> None:
        """Answer without a pump, as the server of a standby does."""
        if given.sender != "user":
            self.sim.last_contact[self.name] = self.sim.now
        if isinstance(request, Renew | RenewAgent):
            self.service.note_renewal(self.sim.job, sender_of(request), self.now)
        self._reply(given, Unavailable(self.service.why), 0)

    def _pump_once(self) -> None:
        self._pump_due = False
        self._pump()

    def _pump(self) -> None:
        if not self.up or self.paused:
            return
        if self._steps is not None:
            self._pump_again = True
            return
        self.sim.store_checks.writer = self.name
        if self._unread:
            self._unread = False
            self.sim.last_contact[self.name] = self.sim.now
        if self.slow_store:
            steps = self._steps = self.service.pump_steps(self.now)
            self._advance(lambda: next(steps))
            return
        try:
            pumped = self.service.pump(self.now)
        except CoordinatorCrash:
            self._crash_and_restart()
            return
        self._act(pumped)

    def _advance(self, step: Callable[[], StoreCall]) -> None:
        """Go on with a pump until it asks the store. The call is made now or when its answer comes."""
        try:
            call = step()
        except StopIteration as stop:
            self._steps = None
            self._act(stop.value)
            if self._pump_again:
                self._pump_again = False
                self.sim.after(0.0, self._pump)
            return
        made = self._call(call) if self.sim.chance.random() < 0.5 else None
        self.sim.after(self.sim.chance.uniform(0.0, SLOW_S), self._store_answers, call, made, self.lives)

    def _call(self, call: StoreCall) -> tuple[object, Exception | None] | None:
        """Make a call of the store; None if the coordinator crashes meanwhile."""
        self.sim.store_checks.writer = self.name
        try:
            return make_call(call)
        except CoordinatorCrash:
            self._crash_and_restart()
            return None

    def _store_answers(self, call: StoreCall, made: tuple[object, Exception | None] | None, life: int) -> None:
        steps = self._steps
        if not self.up or life != self.lives or steps is None:
            return
        if self.paused:
            self.sim.after(0.1, self._store_answers, call, made, life)
            return
        made = made or self._call(call)
        if made is not None:
            result = CallResult(self.now, *made)
            self._advance(lambda: steps.send(result))

    def _crash_and_restart(self) -> None:
        self._steps = None
        self.crash()
        self.sim.after(self.sim.chance.uniform(0.5, 4.0), self.start)

    def _act(self, pumped: Pumped) -> None:
        """Send the answers of a pump."""
        self._led = self.service.leads
        for bug in pumped.bugs:
            self.sim.store_checks.complain(f"invariant: {bug}")
        for reply in pumped.all_replies:
            assert isinstance(reply.ticket, Ask | AgentPoll | MemberWatch)
            self._reply(reply.ticket, reply.answer, reply.revision)
        if pumped.moved or pumped.took_over or not self.service.leads:
            self._answer_watches({member for _, events in pumped.decided for member in savers_of(events)})
        if (pumped.moved or pumped.took_over) and not self._answer_due and self._has_orders():
            self._answer_due = True
            self.sim.after(self.sim.chance.choice([0.0, 0.0, 0.05, 0.3]), self._answer_polls)

    def _reply(self, given: Given, answer: Answer, revision: int) -> None:
        self.sim.store_checks.answered(self.name, given, answer)
        if isinstance(given, AgentPoll) and isinstance(answer, Accepted):
            self._accept_poll(given)
        elif isinstance(given, MemberWatch) and isinstance(answer, Accepted):
            self._accept_watch(given)
        else:
            self.sim.reply(self.name, given, answer, revision)

    # ------------------------------------------------------------------------------------ watches of members

    def _accept_watch(self, watch: MemberWatch) -> None:
        """Answer at once if there is news, else when there is or after `WATCH_S`. It ends an earlier watch."""
        if (former := self._watches.get(watch.sender)) is not None:
            self._answer_watch(former)
        self._watches[watch.sender] = watch
        if self._moved is None or self._moved[1] > watch.after:
            self._answer_watch(watch)
        else:
            self._waiting.append((self.sim.now + WATCH_S, watch))

    def _answer_old(self) -> None:
        """Answer watches and polls that have waited for their time, without news."""
        while self._waiting and self._waiting[0][0] <= self.sim.now and not self.paused:
            _, given = self._waiting.popleft()
            if isinstance(given, MemberWatch):
                if self._watches.get(given.sender) is given:
                    self._answer_watch(given)
            elif self._polls.get(given.sender) is given:
                del self._polls[given.sender]
                self._answer(given)

    def _answer_watches(self, savers: set[MemberId]) -> None:
        """Answer the watches that a change concerns, as `pliant.coordinator.notifications` does."""
        known, before, past = self.service.job(self.sim.job), self._moved, self._view
        self._moved = known
        self._view = shared_view(*known) if known is not None else None
        concerns_all = past is None or self._view is None or is_news(past, self._view)
        for watch in list(self._watches.values()):
            member = MemberId(watch.sender)
            concerns = concerns_all or member in savers
            if concerns or not before or not known or standing(before[0], member) != standing(known[0], member):
                self._answer_watch(watch)

    def _answer_watch(self, watch: MemberWatch) -> None:
        del self._watches[watch.sender]
        known = self.service.job(self.sim.job)
        if known is None or not self.service.leads:
            self.sim.reply(self.name, watch, Unavailable("this coordinator does not decide"), 0)
            return
        job, revision = known
        if self._view is None or self._view.revision != revision:
            self._view = shared_view(job, revision)
        view = view_for(self._view, job, MemberId(watch.sender))
        self.sim.reply(self.name, watch, ViewReply(revision, view), revision)

    # ------------------------------------------------------------------------------------- orders of agents

    def _accept_poll(self, poll: AgentPoll) -> None:
        """Answer at once if there is news, else when there is or after `WATCH_S`, like `pliant.coordinator`."""
        if self._shown is None:
            self._shown = self.service.job(self.sim.job)
        if self._shown is not None and self._shown[1] > poll.after:
            self._answer(poll)
            return
        self._polls[poll.sender] = poll
        self._waiting.append((self.sim.now + WATCH_S, poll))

    def connection_closed(self, machine: str, agent: AgentId) -> None:
        """Suspect the agent if it was polling on that connection."""
        if self.up and self._polls.pop(machine, None) is not None:
            self.suspect(Sender("agent", agent))

    def suspect(self, sender: Sender) -> None:
        """Note that a member or an agent closed its watch."""
        if self.up:
            self.sim.suspected.add(sender.id)
            self.service.suspect(self.sim.job, sender, self.now)

    def _has_orders(self) -> bool:
        """Return whether agents may have other orders than those that they were shown."""
        known = self.service.job(self.sim.job)
        return known is None or self._shown is None or changes_orders(self._shown[0], known[0])

    def _answer_polls(self) -> None:
        if self.up and self.paused:
            self.sim.after(0.1, self._answer_polls)
            return
        self._answer_due = False
        if not self.up:
            return
        self._shown = self.service.job(self.sim.job)
        polls, self._polls = self._polls, {}
        for poll in polls.values():
            self._answer(poll)

    def _answer(self, poll: AgentPoll) -> None:
        if self._shown is None or not self.service.leads:
            self.sim.reply(self.name, poll, Unavailable("this coordinator does not decide"), 0)
            return
        job, revision = self._shown
        self.sim.reply(self.name, poll, OrdersReply(revision, orders_for(job, poll.agent, revision)), revision)


def _renewal_by(given: AgentPoll | MemberWatch) -> Renew | RenewAgent:
    """Return the renewal that a watch or a poll is."""
    if isinstance(given, MemberWatch):
        return Renew(MemberId(given.sender), given.after)
    return RenewAgent(given.agent, given.after)


def orders_for(job: Job, agent: AgentId, revision: int) -> OrdersReceived:
    """Return the orders of a job at that revision for an agent."""
    here, draining = workers_on(job, agent)
    known = next((each for each in job.agents if each.id == agent), None)
    return OrdersReceived(
        count=desired_workers(job).get(agent, 0),
        members=here,
        draining=draining,
        ended=job.state.ended,
        finished=job.state is JobState.FINISHED,
        live=job.is_live,
        launch=None if job.is_live else job.launch,
        ready=known is not None and bool(known.ports),
        leaving=known is not None and known.draining,
        grace_s=known.grace_s if known is not None else 0.0,
        install_id=known.install_id if known is not None else "",
        run_id=known.run_id if known is not None else "",
        permitted=permitted_starts(job, known),
        revision=revision,
    )
