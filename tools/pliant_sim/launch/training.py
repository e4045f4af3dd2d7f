"""The training script of launched workers: so many steps, saved after each, and none while a worker is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pliant_sim.launch.world import LaunchSimulation
    from pliant_sim.processes.launched_worker import LaunchedWorker

STEP_S = 1.0


class LaunchedTraining:
    """The script that all workers run; `steps` is in its own checkpoint."""

    def __init__(self, sim: LaunchSimulation, total: int) -> None:
        self._sim = sim
        self.total = total
        self.steps = 0
        self.done: set[str] = set()  # members that exited with 0 by themselves
        self._workers: dict[int, dict[int, LaunchedWorker]] = {}  # by generation and rank
        self._ticking: set[int] = set()

    def restart(self) -> None:
        """Start from step 0: the checkpoint is gone."""
        self.steps = 0

    def add(self, worker: LaunchedWorker) -> None:
        if not worker.generation:
            return
        self._workers.setdefault(worker.generation, {})[worker.rank] = worker
        if worker.generation not in self._ticking:
            self._ticking.add(worker.generation)
            self._sim.after(STEP_S, self._step, worker.generation)

    def running(self, generation: int) -> list[LaunchedWorker]:
        return [worker for worker in self._workers.get(generation, {}).values() if worker.up]

    def _step(self, generation: int) -> None:
        here = self.running(generation)
        size = self._sim.checks.sizes.get(generation, 0)
        if not here:
            self._ticking.discard(generation)
            return
        self._sim.after(STEP_S, self._step, generation)
        ranks = {worker.rank for worker in self._workers[generation].values() if worker.up or worker.id in self.done}
        if len(ranks) < size or self._sim.joining:
            return  # workers are missing, or the job is live
        if self.steps < self.total:
            self.steps += 1
            return
        for worker in here:
            self._sim.after(self._sim.chance.uniform(0.0, 0.9), self._ends_well, worker)

    def _ends_well(self, worker: LaunchedWorker) -> None:
        if worker.up and worker.id not in worker.agent.state.stopping:
            self.done.add(worker.id)
            worker.end(0)

    def remove(self, worker: LaunchedWorker) -> None:
        """Let some of the other workers fail by a reset connection; the rest hang."""
        if worker.id in self.done or self._sim.refills(worker):
            return
        for other in self.running(worker.generation):
            if other is not worker and not other.joined and self._sim.chance.random() < 0.4:
                self._sim.after(self._sim.chance.uniform(0.01, 1.5), self._reset, other)

    def _reset(self, worker: LaunchedWorker) -> None:
        if worker.up and not worker.joined:
            worker.end(1)
