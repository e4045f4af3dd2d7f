"""One job on spot machines that come and go by a trace: the work that it keeps, by the real decisions about worlds.

A worker runs on each machine that is there. Work is counted in worker-seconds: the speed is proportional to the number
of workers. Machines go without notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pliant.core import messages as m
from pliant.core.data.grid import Grid
from pliant.core.job.decide import decide, settle_all
from pliant.core.job.evolve import evolve
from pliant.core.messages import Command, Rejection
from pliant.core.model.job import Job, JobSpec, Terms
from pliant.core.model.names import AgentId, MemberId
from pliant.core.model.world import WorldKind
from pliant_sim.cluster.spot_traces import SpotTrace

TERMS = Terms(Grid(samples=1 << 40, batch=1024, slots=1024, epochs=1), seed=1)
SIZE_MAX = 1024


@dataclass(frozen=True)
class Costs:
    """Seconds: a planned change, a loss, a start of the whole job, a start of one worker; between two checkpoints."""

    change_s: float
    loss_s: float
    restart_s: float
    worker_s: float
    checkpoint_s: float


@dataclass
class Kept:
    """The result of a replay: worker-seconds that were kept and repeated, and the changes of each kind."""

    work: float = 0.0
    repeated: float = 0.0
    planned: int = 0
    losses: int = 0
    restarts: int = 0


class SpotProgress:
    """The work of one job in time: it trains with some workers, is paused, saves checkpoints, and goes back to one."""

    def __init__(self, checkpoint_s: float) -> None:
        self.kept = Kept()
        self.size = 0
        self.now = 0.0
        self._every_s = checkpoint_s
        self._paused_until = 0.0
        self._saved = 0.0
        self._saved_at = 0.0

    def advance(self, until: float) -> None:
        """Train until then, with a checkpoint whenever one is due. A job without workers saves none."""
        self.now = until if not self.size else self.now
        while self.now < until:
            due = self._saved_at + self._every_s
            step = min(until, due)
            self.kept.work += max(0.0, step - max(self.now, self._paused_until)) * self.size
            self.now = step
            if step >= due:
                self.save()

    def save(self) -> None:
        self._saved, self._saved_at = self.kept.work, self.now

    def pause(self, seconds: float) -> None:
        self._paused_until = max(self._paused_until, self.now + seconds)

    def go_back(self) -> None:
        """Continue from the last checkpoint. The work since then is to be repeated."""
        self.kept.repeated += self.kept.work - self._saved
        self.kept.work, self._saved_at = self._saved, self.now

    @property
    def next_save(self) -> float:
        return self._saved_at + self._every_s


class ElasticReplay:
    """The job of Pliant: `decide` and `next_world` choose the worlds."""

    def __init__(self, trace: SpotTrace, costs: Costs) -> None:
        self._trace, self._costs = trace, costs
        self._progress = SpotProgress(costs.checkpoint_s)
        self._job = self._after(None, m.Create("spot", JobSpec(1, SIZE_MAX)))
        self._members: dict[str, MemberId] = {}  # by machine
        self._made = 0

    def run(self) -> Kept:
        joins: dict[str, float] = {}  # machines whose worker starts, with the time at which it joins
        changes = [*self._trace.changes, (self._trace.end_s, frozenset[str]())]
        for (at, up), (until, _) in pairwise(changes):
            self._progress.advance(at)
            joins = {machine: when for machine, when in joins.items() if machine in up}
            joins |= dict.fromkeys(up - joins.keys() - self._members.keys(), at + self._costs.worker_s)
            self._lose([machine for machine in self._members if machine not in up])
            for when in sorted({when for when in joins.values() if when < until}):
                self._progress.advance(when)
                self._join([machine for machine in sorted(joins) if joins[machine] == when])
                joins = {machine: other for machine, other in joins.items() if other != when}
        self._progress.advance(self._trace.end_s)
        return self._progress.kept

    def _lose(self, machines: list[str]) -> None:
        gone = [self._members.pop(machine) for machine in machines]
        self._send(*(m.Expire(member) for member in gone))

    def _join(self, machines: list[str]) -> None:
        joining: list[Command] = []
        for machine in machines:
            self._made += 1
            self._members[machine] = MemberId(f"w{self._made}")
            joining.append(m.Join(self._members[machine], AgentId(machine), TERMS))
        self._send(*joining)

    def _send(self, *commands: Command) -> None:
        """Decide, and enter the world that follows at its cost."""
        if not commands:
            return
        self._job = self._after(self._job, *commands)
        progress, kept, world = self._progress, self._progress.kept, self._job.newest
        if not self._members or world is None:
            progress.size = 0
            return
        if world.number == self._job.current:
            return
        if world.kind is WorldKind.PLANNED:
            kept.planned += 1
            progress.pause(self._costs.change_s)
        elif world.kind is WorldKind.RECOVERY:
            kept.losses += 1
            progress.pause(self._costs.loss_s)
        else:
            kept.restarts += 1
            progress.go_back()
            progress.pause(self._costs.change_s)  # its workers have started already
        holders = frozenset(world.members)
        self._job = self._after(self._job, m.Report(world.members[0], 0, world.number, (), holders))
        progress.size = 0 if world.hold else len(world.members)

    def _after(self, job: Job | None, *commands: Command) -> Job:
        now = self._progress.now
        for command in commands:
            decision = decide(job, command, now)
            assert not isinstance(decision, Rejection), decision
            for event in decision:
                job = evolve(job, event)
        assert job is not None
        return settle_all(job, now)[0]


class RestartReplay:
    """A job that starts again from its checkpoint after each loss, and takes in new machines after a checkpoint."""

    def __init__(self, trace: SpotTrace, costs: Costs) -> None:
        self._trace, self._costs = trace, costs
        self._progress = SpotProgress(costs.checkpoint_s)
        self._training: frozenset[str] = frozenset()

    def run(self) -> Kept:
        changes = [*self._trace.changes, (self._trace.end_s, frozenset[str]())]
        progress = self._progress
        for (at, up), (until, _) in pairwise(changes):
            progress.advance(at)
            if self._training - up:
                progress.kept.losses += 1
                progress.go_back()
                self._restart(up)
            elif not self._training and up:
                self._restart(up)
            elif up != self._training and progress.next_save < until:
                progress.advance(progress.next_save)
                self._restart(up)
        progress.advance(self._trace.end_s)
        return progress.kept

    def _restart(self, up: frozenset[str]) -> None:
        self._training, self._progress.size = up, len(up)
        if up:
            self._progress.kept.restarts += 1
            self._progress.pause(self._costs.restart_s)
