"""A simulated launched job: agents start workers that do not use Pliant."""

from __future__ import annotations

from dataclasses import dataclass

from pliant.core.data.grid import Grid
from pliant.core.job.launches import REFILLED
from pliant.core.messages import Cancel, Create, Join
from pliant.core.model.job import JobSpec, Mode, Target, Terms
from pliant.core.model.launch import Launch
from pliant.core.model.names import MemberId
from pliant.wire.api import Renew
from pliant_sim.launch.checks import LaunchChecks
from pliant_sim.launch.training import LaunchedTraining
from pliant_sim.processes.agent import FROM_WORKER, SimulatedAgent, WorkerProcess
from pliant_sim.processes.coordinator import Ask, Back, Given
from pliant_sim.processes.launched_worker import LaunchedWorker
from pliant_sim.simulation import Setting, Simulation

ROLES = (("chief", 1), ("ps", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSetting(Setting):
    """The start of a schedule of a launched job."""

    capacity: int = 3
    size_max: int = 7
    workers: int = 5
    grace_s: float = 5.0
    steps: int = 40
    mode: Mode = Mode.RELAUNCH
    roles: tuple[tuple[str, int], ...] = ()


def setting_for(seed: int) -> LaunchSetting:
    """One coordinator in a third of the schedules; in some, workers join, have roles, or may fail only twice."""
    return LaunchSetting(
        seed=seed,
        coordinators=1 if seed % 3 == 0 else 2,
        size_min=3 if seed % 4 == 3 else 2,
        mode=Mode.AUTO if seed % 5 == 4 else Mode.RELAUNCH,
        roles=ROLES if seed % 4 == 3 and seed % 5 != 4 else (),
        max_restarts=2 if seed % 7 == 6 else 1000,
    )


class LaunchSimulation(Simulation):
    """One schedule of a launched job."""

    def __init__(self, setting: LaunchSetting, story: list[str] | None = None) -> None:
        self.setting = setting
        self.checks = LaunchChecks(self)
        super().__init__(setting, self.checks, story)
        self.joining = False
        self.cancelled = False
        self.attempt_due = False  # a user is about to create the job again
        self.terms = Terms(Grid(samples=40, batch=8, slots=8, epochs=1), setting.seed)
        self.training = LaunchedTraining(self, setting.steps)
        self._start()

    def creation(self, *, fresh: bool = False) -> Create:
        s = self.setting
        return Create(
            self.job,
            JobSpec(s.size_min, s.size_max, Target(s.workers), max_restarts=s.max_restarts, mode=s.mode, roles=s.roles),
            fresh=fresh,
        )

    @property
    def script_joins(self) -> bool:
        return self.joining

    def refills(self, worker: LaunchedWorker) -> bool:
        """Return whether the others go on when that worker ends: plain workers, beside parameter servers."""
        ranks = sum(count for _, count in self.setting.roles)
        return bool(self.setting.roles) and worker.rank >= ranks and "worker" in REFILLED

    def deliver(self, given: Given, answer: Back, revision: int) -> None:
        if not isinstance(given, Ask) or given.number != FROM_WORKER:
            super().deliver(given, answer, revision)
        elif given.sender in self.agents:
            self._worker_answered(self.agents[given.sender], given, answer)

    def _worker_answered(self, agent: SimulatedAgent, given: Ask, answer: Back) -> None:
        assert isinstance(given.request, Join | Renew)
        worker = agent.processes.get(given.request.member)
        if isinstance(worker, LaunchedWorker):
            worker.answered(given.request, answer)

    def start_worker(self, agent: SimulatedAgent, member: MemberId) -> None:
        self._start_worker(agent, member, 0, 0)

    def start_seat(self, agent: SimulatedAgent, launch: Launch, member: MemberId) -> None:
        rank = next(rank for rank, seat in enumerate(launch.seats) if seat.member == member)
        self.checks.starts(agent, launch, member, rank)
        self._start_worker(agent, member, launch.number, rank)

    def _start_worker(self, agent: SimulatedAgent, member: MemberId, generation: int, rank: int) -> None:
        on_sigterm = self.chance.choices(["dies", "ends", "ignores"], [6, 2, 1])[0]
        worker = LaunchedWorker(self, member, agent, generation, rank, on_sigterm)
        agent.processes[member] = worker
        self.checks.started(worker)
        self.after(self.chance.uniform(0.1, 0.8), worker.imported)

    def running_workers(self) -> list[LaunchedWorker]:
        return [
            worker
            for agent in self.agents.values()
            for worker in agent.processes.values()
            if isinstance(worker, LaunchedWorker) and worker.up
        ]

    def expect_death(self, worker: WorkerProcess) -> None:
        assert isinstance(worker, LaunchedWorker)
        self.checks.killed(worker)

    def went_live(self) -> None:
        """Let all workers join: one has, so the script is written for live training."""
        if not self.joining:
            self.joining = True
            for worker in self.running_workers():
                if worker.running:
                    worker.join()

    def cancel(self) -> None:
        self.cancelled = True
        self.user(Cancel("enough"))

    def ended(self) -> bool:
        job = self.checks.job
        if self.checks.complaints:
            return True
        return (
            job is not None
            and job.state.ended
            and not self.attempt_due
            and not any(agent.up for agent in self.agents.values())
        )
