"""One simulated pool whose leaders come and go: the real `Scheduler`, real jobs and supervisors, and slow processes.

A worker occupies its slot from the start of its process to the end of it. It joins long after its start and exits some
time after it left, or after its job has ended. Orders and events reach agents late, and reports of ends may be lost. At
every second there must be at most as many processes as slots.

Jobs report their steps as they train, at speeds that vary from second to second, and the leader measures them from the
events as the coordinator does. Grants must settle all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isclose
from random import Random

from pliant.coordinator.service.loaded_jobs import LoadedJob, LoadedJobs
from pliant.coordinator.service.scheduler import Scheduler
from pliant.core import messages as m
from pliant.core.accounting.pauses import SWITCHING, Pause
from pliant.core.allocate import Pool
from pliant.core.allocate.cost import RESERVE_S, price_at
from pliant.core.allocate.model import Prices, Reason
from pliant.core.data.grid import Grid
from pliant.core.data.ledger import LedgerLine, make_line
from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.messages import Command, Event, Rejection
from pliant.core.model.job import HOUR_S, Job, JobSpec, Target, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import World, WorldKind
from pliant.core.supervisor import Supervisor, agent_join, supervise
from pliant.core.supervisor import signals as v
from pliant_sim.processes.coordinator import orders_for

STORM_S = 150  # with faults and new jobs
END_S = 6000  # all jobs have ended by then
FAULTS = ("leader", "leader", "resize", "notice", "kill", "cancel", "agent")
SLOTS = 12  # of the pool
BATCH = 12
SPEED = 4.0  # samples a second of one worker
SCALING = (0.2, 0.7, 1.0)  # the speed of a job grows by this power of its size
NOISE = 0.3  # of the speed in each second
WORK_S = (100, 100, 400, 3000)  # of a job on one worker, at most; many end in the storm, and some train on in quiet
PAUSE_S = (0, 0, 1, 3)  # until a new world trains
STEPS_S = (1, 2, 5)  # between two reports of steps
SETTLE_S = 120  # without a fault, an arrival or an end, nothing changes any more after this
LATE_CHANGES = 5  # for each job that trains, in one quiet stretch: it learns speeds, and is worth more near its end
REPORTS_S = 3  # between two reports of an agent
WATCH_S = 25  # an agent gets its orders again at least so often
LATE_S = (0, 0, 0, 1, 3, 15)  # until orders, events and commands arrive
LOST = 0.02  # the part of an agent's commands that never arrives
START_S = (1, 3, 8, 8, 45)  # until a process joins
DRAIN_S = (1, 2, 10)  # until a draining member leaves
EXIT_S = (0, 1, 4)  # until a process that left is gone
RAISE = 1000.0  # of a cost limit
PRICES = (0.0, 20.0, 60.0, 200.0)  # of a slot and hour: a job costs its limit within minutes
SAVE_S = (0, 1, 4, 45)  # the same after the job has ended


@dataclass
class SimWorker:
    """The process of a worker. `exits_at` is set once it is on its way out."""

    name: MemberId
    agent: AgentId
    joins_at: int
    leaves_at: int | None = None
    exits_at: int | None = None


@dataclass
class LedAgent:
    """An agent with its real supervisor. What is on the way to it and from it arrives in order."""

    state: Supervisor
    orders: tuple[int, v.OrdersReceived] | None = None  # with the time at which they arrive
    events: list[tuple[int, v.JobEvent]] = field(default_factory=list)
    commands: list[tuple[int, Command]] = field(default_factory=list)
    revision: int = 0  # of the orders that it got last
    ordered_at: int = 0
    runs: int = 1


@dataclass
class LedJob:
    """A job outside the coordinator: its agents, its processes, and its training."""

    name: str
    terms: Terms
    scaling: float
    pause_s: int
    reports_s: int
    samples: float = 0.0  # that its members trained
    world: int = 0  # that they train in
    trains_at: int = 0
    agents: dict[AgentId, LedAgent] = field(default_factory=dict)
    workers: dict[MemberId, SimWorker] = field(default_factory=dict)
    spent: float = 0.0  # counted second by second


class LedPool:
    """A pool that depends on its seed alone. `make` builds the memory of each leader; a test may plant a bug there.

    Only in pools of odd seeds have jobs deadlines.
    """

    def __init__(self, seed: int, make: Callable[[], Scheduler] = Scheduler) -> None:
        self._chance, self._noise = Random(seed), Random(f"noise {seed}")
        self._has_deadlines = bool(seed % 2)
        self._most_s = self._noise.choice(WORK_S)
        self._make = make
        times = sorted(self._chance.sample(range(1, STORM_S), 6))
        self._prices: Prices = tuple((float(at), self._chance.choice(PRICES)) for at in (0, *times))
        self._stored: dict[str, LoadedJob] = {}
        self._sim: dict[str, LedJob] = {}
        self._inbox: list[tuple[object, str, Command]] = []
        self._now = 0
        self._led_from = 0
        self._led_at = 0  # the last second with a leader
        self._calm_since = 0  # the last fault, arrival or end
        self._late_changes = 0  # of grants, long after it
        self._scheduler, self._loaded = make(), LoadedJobs()
        self.fired: Counter[str] = Counter()
        self.decisions = 0
        self.complaints: list[str] = []
        self._take_over()

    def run(self) -> list[str]:
        """Run to the end, or to the first complaint, and return the complaints."""
        while not self.complaints and self._now < END_S:
            if self._now < STORM_S:
                self._strike()
            elif not self._sim:
                break
            else:
                self._raise_limits()
            self._charge()
            self._workers_pass()
            if self._now >= self._led_from:
                self._lead()
            for sim in self._sim.values():
                self._reach_agents(sim)
            self._check()
            self._now += 1
        if self._sim and not self.complaints:
            self._complain(f"{len(self._sim)} jobs have not ended: {sorted(self._sim)}")
        return self.complaints

    # ----------------------------------------------------------------------------------------------- faults

    def _strike(self) -> None:
        chance = self._chance
        if self._now == 0 or chance.random() < 0.04:
            self._add_job()
        if chance.random() > 0.08:
            return
        self._calm_since = self._now
        kind = chance.choice(FAULTS)
        self.fired[kind] += 1
        if kind == "leader":
            self._led_from = self._now + chance.choice((0, 1, 4))
            self._take_over()
            return
        jobs = {name: job for name in sorted(self._sim) if (job := self._stored[name].job) and not job.state.ended}
        if not jobs:
            return
        name, job = chance.choice(list(jobs.items()))
        sim, workers = self._sim[name], sorted(self._sim[name].workers)
        if kind == "cancel":
            self._send(name, m.Cancel("enough"))
        elif kind == "resize":
            self._send(name, m.Resize(Target(chance.randint(job.spec.size_min, job.spec.size_max))))
        elif kind == "agent":
            self._restart_agent(sim, chance.choice(sorted(sim.agents)))
        elif workers and kind == "notice":
            self._send(name, m.Drain(MemberId(chance.choice(workers)), 30.0, "its machine is taken away"))
        elif workers:
            self._exit(sim, MemberId(chance.choice(workers)), -9)

    def _add_job(self) -> None:
        chance = self._chance
        name = f"job{len(self._stored) + 1}"
        least = chance.randint(1, 3)
        most = least + chance.randint(0, 9)
        spec = JobSpec(least, most, queue="default", priority=chance.choice((0, 0, 5)), max_restarts=10**6)
        if chance.random() < 0.5:
            spec = replace(spec, at_most_cost=least * chance.uniform(2, 15))
        if self._has_deadlines and chance.random() < 0.7:
            spec = replace(spec, deadline=self._now + chance.uniform(50, 400))
        self._stored[name] = LoadedJob(None, 0, 0)
        agents = {AgentId(f"{name}-{index}"): chance.randint(1, most) for index in range(chance.randint(1, 3))}
        agents[AgentId(f"{name}-0")] = most
        sim = self._sim[name] = self._make_job(name, self._most_s if spec.at_most_cost is None else 1500)
        self._calm_since = self._now
        self._send(name, m.Create(name, spec))
        for agent, capacity in agents.items():
            state = Supervisor(agent, "r1", capacity, max_restarts=10**6)
            sim.agents[agent] = LedAgent(state)
            self._send(name, agent_join(state))

    def _make_job(self, name: str, most_s: float) -> LedJob:
        """Return a job that takes one worker up to so many seconds."""
        steps = max(1, round(self._chance.uniform(10, most_s) * SPEED / BATCH))
        terms = Terms(Grid(samples=steps * BATCH, batch=BATCH, slots=BATCH, epochs=1), seed=1)
        noise = self._noise
        return LedJob(name, terms, noise.choice(SCALING), noise.choice(PAUSE_S), noise.choice(STEPS_S))

    def _raise_limits(self) -> None:
        """Let the owner of a job that has stopped at its cost limit raise it."""
        for name in sorted(self._sim):
            job = self._stored[name].job
            if job is None or job.granted or job.occupants or job.state.ended or job.spec.at_most_cost is None:
                continue
            if job.spec.at_most_cost < RAISE:
                spec = replace(job.spec, at_most_cost=job.spec.at_most_cost + RAISE)
                self._calm_since = self._now
                self._send(name, m.Create(name, spec, only_settings=True))

    def _restart_agent(self, sim: LedJob, name: AgentId) -> None:
        """Kill an agent, with which its workers end, and start it again."""
        sim.workers = {each: worker for each, worker in sim.workers.items() if worker.agent != name}
        before = sim.agents[name]
        state = Supervisor(name, f"r{before.runs + 1}", before.state.capacity, max_restarts=10**6)
        sim.agents[name] = LedAgent(state, runs=before.runs + 1)
        self._say(sim.agents[name], agent_join(state))

    # ------------------------------------------------------------------------------------------- the leader

    def _take_over(self) -> None:
        """Replace the leader: the next one has the live jobs, and no memory."""
        self._scheduler, self._loaded = self._make(), LoadedJobs()
        self._scheduler.pool = Pool(SLOTS, prices=self._prices)
        for name, known in self._stored.items():
            if known.job is not None and not known.job.state.ended:
                self._loaded.put(name, known)

    def _send(self, name: str, command: Command) -> None:
        self._inbox.append((None, name, command))

    def _lead(self) -> None:
        self._led_at = self._now
        for sim in self._sim.values():
            for agent in sim.agents.values():
                while agent.commands and agent.commands[0][0] <= self._now:
                    self._send(sim.name, agent.commands.pop(0)[1])
        inbox, self._inbox = self._inbox, []
        self._report_workers()
        grants = self._scheduler.due(float(self._now), float(self._now), self._loaded, inbox)
        self.decisions += bool(grants)
        self._check_settled(grants)
        for name, command in grants:
            self._decide(name, command)
        for _, name, command in inbox:
            self._decide(name, command)
        for name in list(self._sim):
            self._train(name)

    def _report_workers(self) -> None:
        """Let agents report their processes with each renewal. The leader reads jobs that it does not know."""
        for name, sim in self._sim.items():
            if self._now % REPORTS_S or self._stored[name].job is None:
                continue
            self._loaded.put(name, self._stored[name])
            for agent in sim.agents:
                names = [worker.name for worker in sim.workers.values() if worker.agent == agent]
                self._scheduler.note_workers(name, agent, names, float(self._now))

    def _decide(self, name: str, command: Command) -> None:
        known = self._stored[name]
        decision = decide(known.job, command, float(self._now))
        if isinstance(decision, Rejection) or not decision:
            return
        job = known.job
        for event in decision:
            job = evolve(job, event)
        assert job is not None
        job, more = settle_all(job, float(self._now))
        self._stored[name] = LoadedJob(job, known.revision + 1, 0)
        self._loaded.put(name, self._stored[name])
        self._scheduler.note_events(job, (*decision, *more))
        self._publish(self._sim[name], (*decision, *more), known.revision + 1)

    def _publish(self, sim: LedJob, events: tuple[Event, ...], revision: int) -> None:
        """Send the events that concern agents to each of them, late and in order."""
        followed = [v.JobEvent(event, revision) for event in events if isinstance(event, v.FollowedEvent)]
        for agent in sim.agents.values():
            at = max([self._now + self._chance.choice(LATE_S), *(when for when, _ in agent.events)])
            agent.events += [(at, event) for event in followed]

    def _train(self, name: str) -> None:
        """Enter the newest world once all its members are there, work in it, and finish."""
        job, sim = self._stored[name].job, self._sim[name]
        if job is None or job.state.ended or job.newest is None:
            return
        newest = job.newest
        if not all(member in sim.workers for member in newest.members):
            return
        if newest.number != job.current:
            self._decide(name, m.Report(newest.members[0], 0, newest.number, (), frozenset(newest.members)))
            sim.trains_at = self._now + sim.pause_s
            if newest.kind is WorldKind.ROLLBACK:
                sim.samples = 0.0
        elif not newest.hold and self._now >= sim.trains_at:
            speed = SPEED * len(newest.members) ** sim.scaling
            sim.samples += speed * self._noise.uniform(1 - NOISE, 1 + NOISE)
            self._report_steps(sim, job, newest)

    def _report_steps(self, sim: LedJob, job: Job, world: World) -> None:
        """Report the steps that are not durable yet, now and then, and the last one at once."""
        grid, head = sim.terms.grid, job.durable
        last = min(int(sim.samples // BATCH), grid.total_steps)
        if last <= head.step or (self._now % sim.reports_s and last < grid.total_steps):
            return
        lines: list[LedgerLine] = []
        for step in range(head.step + 1, last + 1):
            lines.append(make_line(head, world.number, step, grid.cursor(step), BATCH, 0))
            head = lines[-1].lineage
        pauses: tuple[Pause, ...] = ()
        if world.number != sim.world:
            sim.world = world.number
            pauses = (Pause(last, SWITCHING, (0.2 + sim.pause_s) * self._noise.uniform(0.5, 2.0)),)
        self._decide(sim.name, m.Report(world.members[0], 0, world.number, tuple(lines), pauses=pauses))

    # ------------------------------------------------------------------------------------------------ costs

    def _charge(self) -> None:
        """Charge the last second, and compare with the records of the jobs."""
        for name, sim in self._sim.items():
            job = self._stored[name].job
            if job is None or job.state.ended:
                continue
            second = len(job.occupants) * job.price / HOUR_S
            sim.spent += second if self._now else 0.0
            if not isclose(job.spent_by(float(self._now)), sim.spent, abs_tol=1e-6):
                self._complain(f"{name} has spent {sim.spent}, and its record has {job.spent_by(float(self._now))}")
            self._check_limit(name, job)

    def _check_limit(self, name: str, job: Job) -> None:
        """While a job is granted workers, its limit pays for the time in which those of its minimum leave.

        What they cost between two allocations may be missing, and while no coordinator leads.
        """
        most, price = job.spec.at_most_cost, price_at(self._prices, float(self._now))
        if not job.granted and not all(member.draining for member in job.members.values()):
            self._complain(f"{name} has no grant, and members that do not leave: {job.members}")
        if most is None or price is None or not job.granted:
            return
        reserve = job.spec.size_min * price * RESERVE_S / HOUR_S
        late = len(job.occupants) * max(price, job.price) * (self._now - self._led_at) / HOUR_S
        if job.spent_by(float(self._now)) + reserve > most + late + 1e-6:
            self._complain(f"{name} has {job.granted} workers, and has spent {job.spent} of at most {most}")

    # -------------------------------------------------------------------------------------------- processes

    def _workers_pass(self) -> None:
        for name, sim in list(self._sim.items()):
            known = self._stored[name].job
            for worker in list(sim.workers.values()):
                self._worker_passes(sim, worker, known)
            if known is not None and known.state.ended:
                self._calm_since = self._now
                if not sim.workers:
                    del self._sim[name]

    def _worker_passes(self, sim: LedJob, worker: SimWorker, known: Job | None) -> None:
        now, chance = self._now, self._chance
        if worker.exits_at is not None:
            if now >= worker.exits_at:
                self._exit(sim, worker.name, 0)
        elif known is not None and known.state.ended:
            worker.exits_at = now + chance.choice(SAVE_S if worker.name in known.members else EXIT_S)
        elif worker.leaves_at is not None:
            if now >= worker.leaves_at:
                self._send(sim.name, m.Leave(worker.name, 0, "asked to"))
                worker.exits_at = now + chance.choice(EXIT_S)
        elif known is not None and worker.name in known.members and known.members[worker.name].draining:
            worker.leaves_at = now + chance.choice(DRAIN_S)
        elif known is not None and worker.name in known.gone:
            worker.exits_at = now + chance.choice(EXIT_S)
        elif now == worker.joins_at:
            self._send(sim.name, m.Join(worker.name, worker.agent, sim.terms))

    def _exit(self, sim: LedJob, name: MemberId, code: int) -> None:
        agent = sim.workers.pop(name).agent
        self._feed(sim, sim.agents[agent], v.WorkerEnded(name, code))

    # ----------------------------------------------------------------------------------------------- agents

    def _reach_agents(self, sim: LedJob) -> None:
        """Deliver orders and events that are due, and send for the next orders."""
        known = self._stored[sim.name]
        for name, agent in sim.agents.items():
            while agent.events and agent.events[0][0] <= self._now:
                self._feed(sim, agent, agent.events.pop(0)[1])
            if agent.orders is not None and agent.orders[0] <= self._now:
                (_, orders), agent.orders = agent.orders, None
                agent.revision, agent.ordered_at = orders.revision, self._now
                self._feed(sim, agent, orders)
            is_news = agent.revision < known.revision or self._now - agent.ordered_at >= WATCH_S
            if agent.orders is None and is_news and known.job is not None:
                orders = orders_for(known.job, name, known.revision)
                agent.orders = self._now + self._chance.choice(LATE_S), orders
            if self._now % REPORTS_S == 0:
                self._feed(sim, agent, v.Recheck())

    def _feed(self, sim: LedJob, agent: LedAgent, signal: v.Signal) -> None:
        agent.state, actions = supervise(agent.state, signal, float(self._now))
        for action in actions:
            match action:
                case v.Start(member):
                    joins_at = self._now + self._chance.choice(START_S)
                    sim.workers[member] = SimWorker(member, agent.state.id, joins_at)
                case v.SendCommand(command):
                    self._say(agent, command)
                case v.ReadEvents(ended):
                    events, agent.events = agent.events, []
                    for _, event in events:
                        self._feed(sim, agent, event)
                    self._feed(sim, agent, replace(ended, events_read=True))
                case v.Terminate(member) if member in sim.workers:
                    worker = sim.workers[member]
                    worker.exits_at = worker.exits_at or self._now + self._chance.choice(EXIT_S)
                case v.Kill(member) if member in sim.workers:
                    self._exit(sim, member, -9)
                case _:
                    pass

    def _say(self, agent: LedAgent, command: Command) -> None:
        """Send a command of an agent: late, in order, or never."""
        if self._chance.random() >= LOST:
            at = max([self._now + self._chance.choice(LATE_S), *(when for when, _ in agent.commands)])
            agent.commands.append((at, command))

    # ----------------------------------------------------------------------------------------------- checks

    def _check(self) -> None:
        counts = {name: len(sim.workers) for name, sim in self._sim.items() if sim.workers}
        if sum(counts.values()) > SLOTS:
            self._complain(f"{sum(counts.values())} processes on {SLOTS} slots: {counts}")

    def _check_settled(self, grants: list[tuple[str, Command]]) -> None:
        """Grants stop changing when nothing happens, although the measured speeds never stop changing."""
        if self._now - self._calm_since <= SETTLE_S:
            self._late_changes = 0
            return
        reasons = {demand.name: found.reason for demand, found in self._scheduler.shown}
        for name, command in grants:
            job = self._stored[name].job
            if job is None or not isinstance(command, m.GrantWorkers) or command.size == job.granted:
                continue
            if reasons[name] in (Reason.COST, Reason.COST_LIMIT, Reason.NO_PRICE):
                self._calm_since = self._now
            self._late_changes += 1
        training = sum(bool(demand.granted and demand.speeds) for demand, _ in self._scheduler.shown)
        if self._late_changes > LATE_CHANGES * training:
            self._complain(f"grants still change although nothing happened since {self._calm_since} s")

    def _complain(self, what: str) -> None:
        self.complaints.append(f"{self._now} s: {what}")
