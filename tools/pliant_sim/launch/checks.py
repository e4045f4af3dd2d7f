"""What is looked at after every event of a universe of launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Accepted, Answer, Unavailable
from pliant.coordinator.service.liveness import ISOLATION_FRACTION
from pliant.core import messages as m
from pliant.core import supervisor as v
from pliant.core.job.evolve import evolve
from pliant.core.job.invariants import state_violations
from pliant.core.job.launches import REFILLED, seats_per_agent
from pliant.core.leases import LEASE_TTL_S
from pliant.core.messages import Event
from pliant.core.model.job import Job, JobState
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.base import Write
from pliant.wire.api import EVENTS
from pliant.wire.codec import decode_state, encode_state
from pliant_sim.fault_kinds import SimulatedFaultKind

if TYPE_CHECKING:
    from pliant_sim.launch.world import Launches
    from pliant_sim.processes.desk import Back
    from pliant_sim.processes.hosts import Host, Toy

PUMP_EVERY_S = 1.0  # as in `pliant_sim.processes.desk`, which knows us
JUST_BEFORE_S = 0.3  # a kill so shortly before a launch was over may be seen after it


class Checks:
    """Collects complaints; a universe with any is a failed one."""

    def __init__(self, universe: Launches) -> None:
        self.universe = universe
        self.complaints: list[str] = []
        self.job: Job | None = None
        self.revision = 0
        self.writer = ""  # the coordinator whose write is looked at; nobody's if it comes late
        self.sizes: dict[int, int] = {}  # by generation
        self._agents: dict[int, dict[AgentId, tuple[str, str]]] = {}  # by generation: home and life of its agents
        self._first: dict[int, str] = {}  # the address of rank 0, by generation
        self._running: dict[tuple[int, int], list[Toy]] = {}  # by generation and rank
        self._counted: set[int] = set()
        self._killed: dict[int, float] = {}  # when somebody of a generation was first killed from outside
        self._over: dict[int, float] = {}
        self.failures = 0  # counted in this attempt

    def complain(self, what: str) -> None:
        if len(self.complaints) < 20:
            self.complaints.append(f"{self.universe.now:.3f} s: {what}")
            self.universe.tell(f"VIOLATION {what}")

    # ----------------------------------------------------------------------------------- the store's history

    def wrote(self, write: Write, revision: int) -> None:
        if write.expected != self.revision or revision != self.revision + len(write.events):
            self.complain(f"P5: a write at revision {write.expected} followed revision {self.revision}")
        self.revision = revision
        for event in map(EVENTS.decode, write.events):
            self.universe.tell_event(event)
            before = self.job
            self.job = evolve(before, event)
            if before is not None:
                self._event(before, event, self.job)
        if self.job is not None:
            for wrong in state_violations(self.job):
                self.complain(wrong)
            if self.job.is_live:
                self.universe.went_live()

    def _event(self, before: Job, event: Event, after: Job) -> None:
        if after.launch is not None and after.launch.over:
            self._over.setdefault(after.launch.number, self.universe.now)
        match event:
            case m.Launched(launch=launch):
                self._launched(before, launch)
            case m.WorkerFailed() if not before.is_live:
                self._failed(before, event)
            case m.StateChanged():
                self._state(before, event)
            case m.SeatRefilled() if before.launch is not None:
                role = before.launch.seats[event.rank].role
                if role not in ("worker", "evaluator"):
                    self.complain(f"the seat of a {role} was refilled in {event.generation}")
            case m.AgentGone():
                self._may_expire(event)
            case m.JobCreated():
                self.failures = 0
                self.universe.attempt_due = False
                if not event.resumes:
                    self.universe.trainer.afresh()
            case _:
                pass

    def _may_expire(self, event: m.AgentGone) -> None:
        """Nobody is expired while nobody is heard, but who has hung up: that is evidence of its own."""
        silent_s = self.universe.now - self.universe.spoken.get(self.writer, 0.0)
        expired = "lease ran out" in event.why and self.writer and event.agent not in self.universe.suspected
        if expired and silent_s > LEASE_TTL_S * ISOLATION_FRACTION + PUMP_EVERY_S:
            self.complain(f"rule 19: {event.agent} was expired by {self.writer}, which hears nobody at all")

    def _launched(self, before: Job, launch: Launch) -> None:
        if before.is_live:
            self.complain(f"a live job was launched again, as {launch.number}")
        if launch.number in self.sizes:
            self.complain(f"rule 4: generation {launch.number} was used before")
        self.sizes[launch.number] = len(launch.seats)
        self._agents[launch.number] = {agent.id: (agent.install_id, agent.run_id) for agent in before.agents}
        homes = {agent.install_id for agent in before.agents}
        for toy in self.universe.toys():
            if toy.host.state.install_id in homes and toy.generation < launch.number:
                self.complain(
                    f"{launch.number} was launched while {toy.id} of {toy.generation} runs on {toy.host.machine}"
                )

    def _failed(self, before: Job, event: m.WorkerFailed) -> None:
        self.failures += 1
        launch = before.launch
        assert launch is not None
        seat = launch.seat_of(event.member)
        if seat is not None and before.spec.roles and seat.role in REFILLED:
            return
        if launch.number in self._counted:
            self.complain(f"two failures were counted for launch {launch.number}")
        self._counted.add(launch.number)
        killed = self._killed.get(launch.number)
        if killed is not None and killed < self._over[launch.number] - JUST_BEFORE_S:
            self.complain(
                f"a failure was counted for launch {launch.number}, of which somebody was killed at {killed:.3f}"
            )
        if launch.lost:
            self.complain(f"a failure was counted for launch {launch.number}, which lost {sorted(launch.lost)}")

    def _state(self, before: Job, event: m.StateChanged) -> None:
        if not event.why:
            self.complain(f"P8: the job is {event.state.value} and nobody says why")
        launch = before.launch
        if event.state is JobState.FAILED and self.failures <= before.spec.max_restarts:
            self.complain(f"the job failed after {self.failures} failures: {event.why}")
        if event.state is not JobState.FINISHED or before.is_live or launch is None:
            return
        chief = [seat for seat in launch.seats if seat.role == "chief"]
        for seat in chief or launch.seats:
            if seat.member not in self.universe.trainer.done:
                self.complain(f"the job is finished, but {seat.member} has not ended well")

    # ----------------------------------------------------------------------------------------- the machines

    def starts(self, host: Host, launch: Launch, member: MemberId, rank: int) -> None:
        """An agent is about to start that seat."""
        number = launch.number
        if number not in self.sizes:
            self.complain(f"{member} is started for generation {number}, which was never launched")
            return
        if self._first.setdefault(number, launch.seats[0].address) != launch.seats[0].address:
            self.complain(f"{member} looks for rank 0 of {number} at {launch.seats[0].address}")
        if self._agents[number].get(host.state.id) != (host.state.install_id, host.state.run_id):
            self.complain(f"{member} is started on {host.machine}, and generation {number} was launched without it")
        if launch.seats[rank].agent != host.state.id:
            self.complain(f"{member} is started on {host.machine}, and is another agent's")

    def started(self, toy: Toy) -> None:
        if not toy.generation:
            return
        same = [other for other in self._running.get((toy.generation, toy.rank), []) if other.up]
        if same:
            self.complain(f"two workers of rank {toy.rank} run in {toy.generation}: {toy.id} and {same[0].id}")
        self._running[toy.generation, toy.rank] = [*same, toy]
        older = [other.id for other in toy.host.toys.values() if other.up and 0 < other.generation < toy.generation]
        if older:
            self.complain(f"{toy.id} is started while {older[0]} runs")

    def reacted(self, host: Host, actions: tuple[v.Action, ...]) -> None:
        """What an agent does on a signal."""
        up = {toy.id for toy in host.toys.values() if toy.up}
        if not up <= host.state.workers:
            self.complain(f"{host.machine} has forgotten {sorted(up - host.state.workers)}")
        order = host.state.order
        for action in actions:
            if isinstance(action, v.Offer) and up:
                self.complain(f"{host.machine} offers ports while {sorted(up)} run")
            stopped = isinstance(action, v.Terminate) and order is not None and order.live
            if stopped and not host.state.leaving:
                self.complain(f"P1: {host.machine} stops a worker of a live job: {action}")

    def killed(self, toy: Toy) -> None:
        """Somebody outside is about to kill it, or its machine."""
        if toy.generation and toy.up and toy.id not in toy.host.state.stopping and not self.universe.refills(toy):
            self._killed.setdefault(toy.generation, self.universe.now)

    # ------------------------------------------------------------------------------------------ the answers

    def answered(self, desk: str, answer: Answer) -> None:
        if isinstance(answer, Accepted) and answer.revision > self.revision:
            self.complain(f"P5: {desk} acknowledged revision {answer.revision}, the store has {self.revision}")

    def is_answer(self, answer: Back) -> bool:
        return not isinstance(answer, Unavailable)

    # ---------------------------------------------------------------------------------------------- the end

    def settled(self) -> None:
        """Some time after the faults: who can run, runs, in a launch of the size that is wanted."""
        job = self.job
        if job is None:
            self.complain("liveness: the job was not even created")
            return
        if job.state.ended or job.is_live or (job.launch is not None and job.launch.done):
            return
        launch = job.launch
        if launch is None or launch.over or job.state is not JobState.RUNNING:
            self.complain(f"liveness: the job is {job.state.value}: {job.why}")
            return
        wanted = sum(seats_per_agent(job).values())
        if len(launch.seats) != wanted:
            self.complain(f"liveness: {len(launch.seats)} workers run, {wanted} could")
        up = {toy.id for toy in self.universe.toys()}
        missing = [seat.member for seat in launch.seats if seat.member not in up | self.universe.trainer.done]
        if missing:
            self.complain(f"liveness: {missing} of {launch.number} do not run")

    def finally_(self) -> None:
        job = self.job
        if job is None or not job.state.ended:
            self.complain(f"liveness: the job is {job.state.value if job else 'nothing'}: {job.why if job else ''}")
            return
        # A late copy of somebody's word may well cancel the attempt that follows.
        cancels = self.universe.cancelled or self.universe.fired[SimulatedFaultKind.NEXT_ATTEMPT]
        asked = job.state is JobState.CANCELLED and cancels
        if job.state is not JobState.FINISHED and not asked and self.failures <= job.spec.max_restarts:
            self.complain(f"liveness: the job is {job.state.value}: {job.why}")
        if left := [toy.id for toy in self.universe.toys()]:
            self.complain(f"{left} are left behind")
        if up := [host.machine for host in self.universe.hosts.values() if host.up]:
            self.complain(f"the agents on {up} do not end")
        self._log_replays()

    def _log_replays(self) -> None:
        stored = self.universe.store.read(self.universe.job)
        replayed: Job | None = None
        for entry in self.universe.store.events(self.universe.job, 0, 1_000_000):
            replayed = evolve(replayed, EVENTS.decode(entry.data))
        if stored is None or replayed is None:
            self.complain("P5: there is no log to replay")
            return
        resumed = decode_state(stored.record, Job)
        for data in stored.tail:
            resumed = evolve(resumed, EVENTS.decode(data))
        if encode_state(replayed) != encode_state(resumed):
            self.complain("P5: the log and the record give two different states")
