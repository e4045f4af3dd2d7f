"""A worker of a launched job. It does not use Pliant, unless its script calls `pliant.join()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pliant.coordinator.service.inbox import Accepted, Unavailable
from pliant.core.messages import Code, Join, Rejection
from pliant.core.model.names import MemberId
from pliant.wire.api import Renew
from pliant_sim.processes.agent import FROM_WORKER, RETRY_S, TICK_S, SimulatedAgent
from pliant_sim.processes.coordinator import Ask, Back
from pliant_sim.requests import Request

if TYPE_CHECKING:
    from pliant_sim.launch.world import LaunchSimulation


@dataclass(eq=False, slots=True)
class LaunchedWorker:
    """One worker's process. `generation` is 0 where it was started for a live job."""

    sim: LaunchSimulation
    id: MemberId
    agent: SimulatedAgent
    generation: int
    rank: int
    on_sigterm: str  # "dies", "ends" with exit code 0, or "ignores" it
    up: bool = True
    running: bool = False  # its imports are done
    joined: bool = False
    code: int | None = None
    is_stopped: bool = False

    def imported(self) -> None:
        if self.up:
            self.running = True
            self.sim.training.add(self)
            if self.sim.joining:
                self.join()

    def join(self) -> None:
        """Become a member: from then on the worker runs through every change."""
        if self.up and not self.joined:
            self.joined = True
            self._ask(Join(self.id, self.agent.state.id, self.sim.terms))
            self.sim.after(TICK_S, self._renew)

    def _renew(self) -> None:
        if self.up:
            self.sim.after(TICK_S, self._renew)
            self._ask(Renew(self.id))

    def _ask(self, request: Request) -> None:
        self.sim.ask(Ask(self.agent.machine, FROM_WORKER, request))

    def answered(self, request: Request, answer: Back) -> None:
        """Take an answer as a member: end when it is not known any more, or when its job has ended."""
        if isinstance(request, Join):
            if isinstance(answer, Unavailable):
                self.sim.after(RETRY_S, self._ask, request)
        elif isinstance(answer, Rejection) and answer.code is Code.GONE:
            self.end(75)
        elif isinstance(answer, Accepted) and (job := self.sim.checks.job) is not None and job.state.ended:
            self.end(0)  # its watch would show that

    def terminate(self, grace_s: float) -> None:
        if self.on_sigterm != "ignores" and self.up:
            code = 0 if self.on_sigterm == "ends" else -15
            self.sim.after(self.sim.chance.uniform(0.02, min(grace_s, 1.0)), self.end, code)

    def end(self, code: int) -> None:
        """End the process; its agent sees it a moment later."""
        if not self.up:
            return
        self.up = self.running = False
        self.code = code
        self.sim.tell(f"{self.id} on {self.agent.machine} ended with {code}")
        self.sim.training.remove(self)
        self.agent.worker_ended(self.id, code)
