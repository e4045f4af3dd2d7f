"""Checks of a launched job: its launches, their seats and their failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pliant.core import messages as m
from pliant.core.job.launches import REFILLED, seats_per_agent
from pliant.core.messages import Event
from pliant.core.model.job import Job, JobState
from pliant.core.model.launch import Launch
from pliant.core.model.names import AgentId, MemberId
from pliant.stores.base import Write
from pliant_sim.checks import StoreChecks
from pliant_sim.fault_kinds import SimulatedFaultKind

if TYPE_CHECKING:
    from pliant_sim.launch.world import LaunchSimulation
    from pliant_sim.processes.agent import SimulatedAgent
    from pliant_sim.processes.launched_worker import LaunchedWorker

JUST_BEFORE_S = 0.3  # a kill so shortly before a launch was over may be seen after it


class LaunchChecks(StoreChecks):
    """Checks the store's history, the agents and their workers."""

    def __init__(self, sim: LaunchSimulation) -> None:
        super().__init__(sim)
        self.sim = sim
        self.sizes: dict[int, int] = {}  # by generation
        self._agents: dict[int, dict[AgentId, tuple[str, str]]] = {}  # by generation: home and life of its agents
        self._first: dict[int, str] = {}  # the address of rank 0, by generation
        self._running: dict[tuple[int, int], list[LaunchedWorker]] = {}  # by generation and rank
        self._counted: set[int] = set()
        self._killed: dict[int, float] = {}  # by generation, when a fault first killed one of its workers
        self._over: dict[int, float] = {}
        self.failures = 0  # counted in this attempt

    # ----------------------------------------------------------------------------------- the store's history

    def wrote(self, write: Write, revision: int) -> None:
        super().wrote(write, revision)
        if self.job is not None and self.job.is_live:
            self.sim.went_live()

    def check_event(self, event: Event, after: Job) -> None:
        before = self.job
        if before is None:
            return
        if after.launch is not None and after.launch.over:
            self._over.setdefault(after.launch.number, self.sim.now)
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
                self.check_expiry(event.agent, event.why)
            case m.JobCreated():
                self.failures = 0
                self.sim.attempt_due = False
                if not event.resumes:
                    self.sim.training.restart()
            case _:
                pass

    def _launched(self, before: Job, launch: Launch) -> None:
        if before.is_live:
            self.complain(f"a live job was launched again, as {launch.number}")
        if launch.number in self.sizes:
            self.complain(f"rule 4: generation {launch.number} was used before")
        self.sizes[launch.number] = len(launch.seats)
        self.generations += 1
        self._agents[launch.number] = {agent.id: (agent.install_id, agent.run_id) for agent in before.agents}
        homes = {agent.install_id for agent in before.agents}
        for worker in self.sim.running_workers():
            if worker.agent.state.install_id in homes and worker.generation < launch.number:
                where = f"of {worker.generation} runs on {worker.agent.machine}"
                self.complain(f"{launch.number} was launched while {worker.id} {where}")

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
                f"a failure was counted for launch {launch.number}, of which a worker was killed at {killed:.3f}"
            )
        if launch.lost:
            self.complain(f"a failure was counted for launch {launch.number}, which lost {sorted(launch.lost)}")

    def _state(self, before: Job, event: m.StateChanged) -> None:
        launch = before.launch
        if event.state is JobState.FAILED and self.failures <= before.spec.max_restarts:
            self.complain(f"the job failed after {self.failures} failures: {event.why}")
        if event.state is not JobState.FINISHED or before.is_live or launch is None:
            return
        chief = [seat for seat in launch.seats if seat.role == "chief"]
        for seat in chief or launch.seats:
            if seat.member not in self.sim.training.done:
                self.complain(f"the job is finished, but {seat.member} has not ended well")

    # ----------------------------------------------------------------------------------------- the machines

    def starts(self, agent: SimulatedAgent, launch: Launch, member: MemberId, rank: int) -> None:
        """Check that an agent may start that seat."""
        number = launch.number
        if number not in self.sizes:
            self.complain(f"{member} is started for generation {number}, which was never launched")
            return
        if self._first.setdefault(number, launch.seats[0].address) != launch.seats[0].address:
            self.complain(f"{member} looks for rank 0 of {number} at {launch.seats[0].address}")
        if self._agents[number].get(agent.state.id) != (agent.state.install_id, agent.state.run_id):
            self.complain(f"{member} is started on {agent.machine}, and generation {number} was launched without it")
        if launch.seats[rank].agent != agent.state.id:
            self.complain(f"{member} is started on {agent.machine}, and is another agent's")

    def started(self, worker: LaunchedWorker) -> None:
        if not worker.generation:
            return
        same = [other for other in self._running.get((worker.generation, worker.rank), []) if other.up]
        if same:
            self.complain(f"two workers of rank {worker.rank} run in {worker.generation}: {worker.id} and {same[0].id}")
        self._running[worker.generation, worker.rank] = [*same, worker]
        older = [
            other.id
            for other in self.sim.running_workers()
            if other.agent is worker.agent and 0 < other.generation < worker.generation
        ]
        if older:
            self.complain(f"{worker.id} is started while {older[0]} runs")

    def killed(self, worker: LaunchedWorker) -> None:
        """Note that a fault is about to kill a worker or its machine."""
        if (
            worker.generation
            and worker.up
            and worker.id not in worker.agent.state.stopping
            and not self.sim.refills(worker)
        ):
            self._killed.setdefault(worker.generation, self.sim.now)

    # ---------------------------------------------------------------------------------------------- the end

    def settled(self) -> None:
        """Check, some time after the faults, that a launch of the target size runs."""
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
        up = {worker.id for worker in self.sim.running_workers()}
        missing = [seat.member for seat in launch.seats if seat.member not in up | self.sim.training.done]
        if missing:
            self.complain(f"liveness: {missing} of {launch.number} do not run")

    def finally_(self) -> None:
        job = self.job
        if job is None or not job.state.ended:
            self.complain(f"liveness: the job is {job.state.value if job else 'nothing'}: {job.why if job else ''}")
            return
        # A late duplicate of a user's cancel may cancel the attempt that follows.
        cancels = self.sim.cancelled or self.sim.fired[SimulatedFaultKind.NEXT_ATTEMPT]
        asked = job.state is JobState.CANCELLED and cancels
        if job.state is not JobState.FINISHED and not asked and self.failures <= job.spec.max_restarts:
            self.complain(f"liveness: the job is {job.state.value}: {job.why}")
        if left := [worker.id for worker in self.sim.running_workers()]:
            self.complain(f"{left} are left behind")
        if up := [agent.machine for agent in self.sim.agents.values() if agent.up]:
            self.complain(f"the agents on {up} do not end")
        self.check_log()
